"""Inference programs, one for each shape of a batch, all with the host's weights."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from portwright.errors import PortwrightError, UnsupportedError
from portwright.runtime.fixed_shape import Signature, check_constants, shapes_differ, signature_of
from portwright.targets.ipu.options import KEYS, Settings, make_options
from portwright.targets.ipu.step import KEEPER, Phase, Step, Traced, join

_MOST_SHAPES = 2  # the full batch and the short last one
_OURS = str(Path(__file__).parents[2])
_MODELS = str(Path(__file__).parents[2] / "models")
_TORCH = str(Path(torch.__file__).parent)


class _Program:
    def __init__(self, executor: Any, batch: Any) -> None:
        self.executor, self.batch = executor, batch
        self.traced: Traced | None = None
        self.is_stale = False  # the host has newer weights


class Programs:
    """One step's inference programs, each compiled at the first batch of its shape."""

    def __init__(
        self, poptorch: Any, step: Step, settings: Settings, note: Callable[[str], None], *, is_offline: bool
    ) -> None:
        self._poptorch, self.step, self._settings, self._note = poptorch, step, settings, note
        self._is_offline = is_offline
        self._made: dict[tuple[Phase, Signature], _Program] = {}

    def run(
        self, phase: Phase, batches: Iterable[tuple[Any, int]]
    ) -> Iterator[tuple[Traced, list[Tensor], int]]:
        """Yields the trace, the outputs and the size of each batch, in order."""
        group: list[tuple[Any, int]] = []
        for batch, size in batches:
            if group and signature_of(batch) != signature_of(group[0][0]):
                yield from self._run_group(phase, group)
                group = []
            group.append((batch, size))
            if len(group) == self._settings.eval_iterations:
                yield from self._run_group(phase, group)
                group = []
        if group:
            yield from self._run_group(phase, group)

    def _run_group(
        self, phase: Phase, group: list[tuple[Any, int]]
    ) -> Iterator[tuple[Traced, list[Tensor], int]]:
        """Runs a group of batches; one that is not full is filled up with its last batch, and the extra outputs are dropped."""
        num_batches = self._settings.eval_iterations
        batches = [batch for batch, _ in group]
        batches += [batches[-1]] * (num_batches - len(batches))
        program = self.get(phase, batches[0])
        for batch in batches:
            check_constants("eval_input", program.batch, batch, KEEPER)
        tensors = join(batches)
        with refusals(self._poptorch, f"the {phase} step"):
            if program.traced is None:
                with self.step.tracing_as(phase, batches[0]) as program.traced:
                    program.executor.compile(*tensors)
            # a detached program gets them when it is attached
            if program.is_stale and program.executor.isAttachedToDevice():
                program.executor.copyWeightsToDevice()
            program.is_stale = False
            outputs = program.executor(*tensors)
        for (_, size), parts in zip(group, program.traced.split(outputs, num_batches), strict=False):
            yield program.traced, parts, size

    def get(self, phase: Phase, batch: Any) -> _Program:
        signature = signature_of(batch)
        if (phase, signature) not in self._made:
            others = [known for other, known in self._made if other == phase]
            if len(others) == _MOST_SHAPES:
                raise shapes_differ("eval_input", others[0], signature, KEEPER)
            if others:
                self._note(
                    f"eval_input: a batch has another shape ({signature[0][0]} is {list(signature[0][2])}, others are "
                    f"{list(others[0][0][2])}): a second program is compiled for it."
                )
            self._made[phase, signature] = _Program(self._make(phase, batch), batch)
        return self._made[phase, signature]

    def _make(self, phase: Phase, batch: Any) -> Any:
        options = make_options(self._poptorch, self._settings, trains=False, is_offline=self._is_offline)
        self.step.eval()
        try:
            with self.step.tracing_as(phase, batch), refusals(self._poptorch, f"the {phase} step"):
                return self._poptorch.inferenceModel(self.step, options)
        finally:
            self.step.train()

    def forget_weights(self) -> None:
        """Notes that the programs' weights differ from the host's."""
        for program in self._made.values():
            program.is_stale = program.executor.isCompiled()

    def let_go(self) -> None:
        """Detaches from the IPUs."""
        for program in self._made.values():
            if program.executor.isCompiled() and program.executor.isAttachedToDevice():
                program.executor.detachFromDevice()

    def close(self) -> None:
        for program in self._made.values():
            program.executor.destroy()
        self._made.clear()


@contextmanager
def refusals(poptorch: Any, what: str) -> Iterator[None]:
    """Turns a refusal of PopTorch into one line that names the user's line."""
    try:
        yield
    except PortwrightError:
        raise
    except (poptorch.Error, AssertionError) as error:
        innermost = traceback.extract_tb(error.__traceback__)[-1].filename
        is_theirs = innermost.startswith(str(Path(poptorch.__file__).parent))
        if not isinstance(error, poptorch.Error) and not is_theirs:
            raise  # an assertion of the user's own
        text = " ".join(str(getattr(error, "message", "") or error).split())
        place = _user_place(error)
        at = f" at {place}" if place and place not in text else ""
        raise UnsupportedError(
            f"PopTorch {poptorch.__version__} refuses {what}{at}: {text or type(error).__name__}",
            _cure(text + at),
            details={"refused": {"step": what, "place": place, "reason": text}},
        ) from error


def _cure(text: str) -> str:
    """The cure in terms of params.yaml, where PopTorch names its own options."""
    named = [f"{option} is ipu.{key}" for option, key in KEYS.items() if option in text]
    if "replicas" in text and "blocks" in text:
        named.append("replicas are ipu.replication_factor, blocks ipu.blocks")
    if named:
        return f"In params.yaml, {' and '.join(named)}."
    if re.search(r"\.py:\d+", text):
        return "Change that line."
    return "Change the model, or the sections ipu and optimizer of params.yaml, as it says."


def _user_place(error: BaseException) -> str | None:
    """The innermost line of the user's code in an error's traceback."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        name = frame.filename
        if name.startswith("<") or "site-packages" in name or name.startswith(_TORCH):
            continue
        if not name.startswith(_OURS) or name.startswith(_MODELS):
            return f"{name}:{frame.lineno}"
    return None
