"""Asks the real Cerebras front end whether it takes a model: a child process a question, one validate_only step each.

Only in the SDK's environment. `ask(make_model, batch)` builds the model on the SDK's device, traces forward, backward and
optimizer (or forward alone), and lowers them; `ask_function(function, batch)` does so for a bare function. Accepted means that
a non-empty cirh.mlir came out: lowered by the front end, not placed on a wafer.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

MakeModel = Callable[[], nn.Module]
LossOf = Callable[[Any, Any], Tensor]
"""Given the compiled model and a batch, the scalar loss."""


@dataclass(frozen=True)
class Verdict:
    """What the front end said; `message` is empty when it accepted, `ops` counts the CIRH ops when it did."""

    accepted: bool
    message: str = ""
    ops: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    details: str = ""
    """The end of what the SDK printed, for a person who looks into a refusal."""

    def __bool__(self) -> bool:
        return self.accepted


@dataclass(frozen=True)
class Question:
    """A batch is a tensor, or a tuple, list or dict of tensors: a tuple or list is passed as arguments, a dict as keywords.
    Without `loss_of`, a scalar output is the loss and any other is squared and averaged, so that the gradient depends on it.
    """

    make_model: MakeModel
    batch: Any
    train: bool = True
    loss_of: LossOf | None = None
    limit_seconds: float = 180.0


def ask(
    make_model: MakeModel,
    batch: Any,
    train: bool = True,
    loss_of: LossOf | None = None,
    limit_seconds: float = 180.0,
) -> Verdict:
    """One question."""
    return ask_all([Question(make_model, batch, train, loss_of, limit_seconds)])[0]


def ask_all(questions: Sequence[Question], at_once: int = 1) -> list[Verdict]:
    """The verdicts in the order of the questions, with up to `at_once` children at a time."""
    sdk = prepare()
    verdicts: dict[int, Verdict] = {}
    waiting = list(enumerate(questions))[::-1]
    running: dict[int, _Child] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                place, question = waiting.pop()
                running[place] = _Child(sdk, question)
            nearest = min(child.deadline for child in running.values()) - time.monotonic()
            ready = select.select([child.reader for child in running.values()], [], [], max(nearest, 0.0))[0]
            for place, child in list(running.items()):
                verdict = child.read() if child.reader in ready else child.overdue()
                if verdict is not None:
                    verdicts[place] = verdict
                    running.pop(place).end()
    finally:
        for child in running.values():
            child.end()
    return [verdicts[place] for place in range(len(questions))]


class _Child:
    """A forked process that answers one question through a pipe, as JSON."""

    def __init__(self, sdk: Any, question: Question) -> None:
        self._started = time.monotonic()
        self._limit_seconds = question.limit_seconds
        self._folder = Path(tempfile.mkdtemp(prefix="front-end-"))
        self._said = b""
        self.reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self.reader)
            _answer_and_exit(sdk, question, self._folder, writer)
        os.close(writer)

    @property
    def deadline(self) -> float:
        return self._started + self._limit_seconds

    def overdue(self) -> Verdict | None:
        if time.monotonic() < self.deadline:
            return None
        return Verdict(False, f"no answer within {self._limit_seconds:g} s", seconds=self._limit_seconds)

    def read(self) -> Verdict | None:
        """The verdict once the child has closed its end."""
        part = os.read(self.reader, 65536)
        self._said += part
        if part:
            return None
        seconds = time.monotonic() - self._started
        details = _tail(self._folder / "output.txt")
        if not self._said:
            return Verdict(False, "the SDK's process died without an answer", {}, seconds, details)
        answer = json.loads(self._said)
        return Verdict(answer["accepted"], answer["message"], answer["ops"], seconds, details)

    def end(self) -> None:
        os.close(self.reader)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(
                self._pid, signal.SIGKILL
            )  # the child leads a group of its own: its loader's workers go too
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._folder, ignore_errors=True)


def ask_function(function: Callable[..., Any], batch: Any, train: bool = True, **options: Any) -> Verdict:
    """One question about a function: its floating-point arguments are made to depend on a parameter."""
    return ask(lambda: Lifted(function), batch, train, **options)


class Lifted(nn.Module):
    """A function as a model: a gradient flows into each of its floating-point arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        def lift(value: Any) -> Any:
            is_float = isinstance(value, Tensor) and value.is_floating_point()
            return value * self.scale.to(value.dtype).reshape([1] * value.dim()) if is_float else value

        return self.function(*map(lift, args), **{name: lift(value) for name, value in kwargs.items()})


# What the SDK's first step imports, and torch 2.4 for an optimizer: most of a child's time, if each has to do it.
_OF_A_STEP = (
    "torch._dynamo",
    "cerebras.pytorch.backend.ltc_backend",
    "cerebras.pytorch.core.appliance",
    "cerebras.pytorch.cs_op_lib",
)


def prepare() -> Any:
    """Imports the SDK once a process, before any fork; its own `lib` goes first on PATH because pip's wrapper scripts drop exit
    statuses."""
    sdk = import_sdk()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    lib = str(Path(sdk.__file__).parent / "lib")
    if not os.environ["PATH"].startswith(lib + os.pathsep):
        os.environ["PATH"] = lib + os.pathsep + os.environ["PATH"]
    return sdk


@functools.cache
def import_sdk() -> Any:
    """The SDK, with all that children would import each for itself."""
    import cerebras.pytorch as cstorch

    for name in _OF_A_STEP:
        importlib.import_module(name)
    gc.freeze()  # a child's collections would copy every page of these modules
    return cstorch


def _answer_and_exit(sdk: Any, question: Question, folder: Path, writer: int) -> None:
    """The child's whole life. It never returns, and what it prints goes to a file."""
    try:
        os.setsid()
        gc.disable()
        os.chdir(folder)
        output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  (pytest may have replaced them)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        try:
            ops = _lower(sdk, question, folder)
            answer = {"accepted": True, "message": "", "ops": ops}
        except BaseException as error:
            traceback.print_exc()
            sys.stderr.flush()
            answer = {
                "accepted": False,
                "message": _first_meaningful(
                    f"{type(error).__name__}: {error}", _tail(folder / "output.txt")
                ),
                "ops": {},
            }
        with os.fdopen(writer, "w") as pipe:
            json.dump(answer, pipe)
    finally:
        os._exit(0)


def _lower(sdk: Any, question: Question, folder: Path) -> dict[str, int]:
    loss_of = question.loss_of or _loss_of
    backend = sdk.backend("CSX", artifact_dir=str(folder / "artifacts"), validate_only=True)
    with backend.device:
        model = question.make_model()
    model.train(question.train)
    net = sdk.compile(model, backend)
    optimizer = sdk.optim.SGD(model.parameters(), lr=0.1) if question.train else None
    packed = _PackedBatch(question.batch)
    loader = sdk.utils.data.DataLoader(
        lambda: torch.utils.data.DataLoader([packed.tensors] * 2, batch_size=None)
    )

    @sdk.trace
    def step(tensors: Any) -> Tensor:
        unpacked = packed.unpack(tensors)
        if optimizer is None:
            with torch.no_grad():
                return loss_of(net, unpacked)
        loss = loss_of(net, unpacked)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    @sdk.step_closure
    def keep(loss: Tensor) -> None:
        """Makes the loss an output, so that nothing before it is dropped as unused."""

    for tensors in sdk.utils.data.DataExecutor(loader, num_steps=1):
        keep(step(tensors))
    texts = [path.read_text(errors="replace") for path in folder.rglob("cirh.mlir")]
    if not any(text.strip() for text in texts):
        raise RuntimeError("the front end left an empty cirh.mlir")
    return dict(Counter(_names(texts)))


def _names(texts: list[str]) -> Iterator[str]:
    """The op names of an MLIR text, in its generic ("cirh.Add"(...)) or pretty (= cirh.Add ...) form."""
    for text in texts:
        for match in re.finditer(r'^\s*(?:%[\w:, %]+=\s*)?"?cirh\.([A-Z]\w*)', text, re.MULTILINE):
            yield match.group(1)


class _PackedBatch:
    """The SDK wants the tensors of a batch to share their first dimension: ones that do not travel as a batch of one."""

    def __init__(self, batch: Any) -> None:
        named = (
            batch
            if isinstance(batch, Mapping)
            else {
                str(place): tensor
                for place, tensor in enumerate(batch if isinstance(batch, tuple | list) else [batch])
            }
        )
        self._is_dict = isinstance(batch, Mapping)
        self._shapes = {name: tensor.shape for name, tensor in named.items()}
        firsts = {shape[0] if shape else None for shape in self._shapes.values()}
        self._fits = len(firsts) == 1 and None not in firsts
        self.tensors = dict(named) if self._fits else {name: t.unsqueeze(0) for name, t in named.items()}

    def unpack(self, tensors: Mapping[str, Tensor]) -> Any:
        own = {name: tensors[name] if self._fits else tensors[name].squeeze(0) for name in self._shapes}
        return own if self._is_dict else tuple(own.values())


def _loss_of(net: Any, batch: Any) -> Tensor:
    output = net(**batch) if isinstance(batch, Mapping) else net(*batch)
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    if len(leaves) == 1 and leaves[0].dim() == 0 and leaves[0].is_floating_point():
        return leaves[0]
    parts = [(leaf * leaf if leaf.is_floating_point() else leaf).float().mean() for leaf in leaves]
    return torch.stack(parts).sum() if len(parts) > 1 else parts[0]


_MEANINGFUL = (
    r"does not yet support `([^`(]+)",
    r"Lowering failed due to `([^`]+)`",
    r"error: ([^\n]+)",
    r"(Assertion `[^']+' failed)",
    r"Unimplemented Error:[\s\S]*?compute_shape_(\w+)",
    r"(aten::\w+: attempted to run[^\n.]+)",
    r"(The tensor has a non-zero number of elements[^\n.]+)",
    r"(Trying to materialize a tensor[^\n]+)",
)


def _first_meaningful(error: str, output: str) -> str:
    """The line that says what is wrong; the SDK wraps it in its own stack and in advice."""
    for text in (error, output):
        for pattern in _MEANINGFUL:
            if found := re.search(pattern, text):
                return found.group(1).strip()[:300]
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return " ".join(lines[:2])[:300]


def _tail(path: Path, num_chars: int = 60000) -> str:
    return path.read_text(errors="replace")[-num_chars:] if path.is_file() else ""
