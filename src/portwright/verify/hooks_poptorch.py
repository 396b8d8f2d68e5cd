"""Hooks PopTorch's executor: records the steps of the emulator, counts those of the real package.

The emulator keeps loss, gradients and weights apart from the host's tensors, which stay as the script left them.
Of a step on a real IPU the host sees only the call.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from portwright.patched import in_place_of
from portwright.verify.launch import refuse
from portwright.verify.record_steps import Watch
from portwright.verify.recording import Draw

TRAINING_CALLS = "poptorch.trainingModel"


def record_emulated(watch: Watch) -> None:
    """Records each training call of the emulator's executors as a step."""
    from portwright.emulate.poptorch import _update
    from portwright.emulate.poptorch._executable import Run
    from portwright.emulate.poptorch._poplar_executor import PoplarExecutor

    seen = _Seen()

    @in_place_of(Run, "_keep")
    def noting_loss(
        keep: Any, self: Any, run: int, replica: int, results: Any, gradients: Any, weights: Any
    ) -> None:
        seen.note_loss(self._executable, results)
        keep(self, run, replica, results, gradients, weights)

    @in_place_of(_update.UpdateRule, "apply")
    def noting_gradients(apply: Any, self: Any, weights: Any, grads: Any) -> None:
        scale = self.loss_scale
        seen.gradients.append({name: g.detach().float() / scale for name, g in grads.items()})
        apply(self, weights, grads)

    @in_place_of(PoplarExecutor, "__call__")
    def recorded(call: Any, /, self: Any, *args: Any, **kwargs: Any) -> Any:
        if watch.is_paused:
            return call(self, *args, **kwargs)
        if not self._training:
            with _paused(watch, None):
                return call(self, *args, **kwargs)
        watch.vendor_calls[TRAINING_CALLS] = watch.vendor_calls.get(TRAINING_CALLS, 0) + 1
        with torch.enable_grad():
            watch.enter_root(self._user_model, args, kwargs)
        if self.isCompiled() and not watch.steps:
            self.copyWeightsToDevice()  # the original's values were just copied into the host's weights
        seen.clear()
        with _paused(watch, None):
            result = call(self, *args, **kwargs)
        _close_step(watch, self, seen)
        return result

    @in_place_of(PoplarExecutor, "_compile")
    def compiled(compile_plain: Any, self: Any, parsed: Any) -> None:
        with _paused(watch, seen.draws_of(self) if self._training else None):
            compile_plain(self, parsed)


class _Seen:
    """What happened inside one call of an executor."""

    def __init__(self) -> None:
        self.losses: list[torch.Tensor] = []
        self.gradients: list[dict[str, torch.Tensor]] = []
        self._draws: dict[int, list[Draw]] = {}  # by id of the executor; each is traced once

    def clear(self) -> None:
        self.losses.clear()
        self.gradients.clear()

    def draws_of(self, executor: Any) -> list[Draw]:
        return self._draws.setdefault(id(executor), [])

    def note_loss(self, executable: Any, results: Sequence[torch.Tensor]) -> None:
        place = executable.results.get("loss")
        if place is None:
            if executable.training:
                refuse(
                    "the model on the IPU returns no loss, so that there is none to compare.",
                    "Return the loss from forward(), beside the outputs.",
                )
            return
        self.losses.append(results[place].detach().clone())


@contextmanager
def _paused(watch: Watch, draws: list[Draw] | None) -> Iterator[None]:
    """Pauses recording while the emulator traces a model; only its dropout calls are kept, in `draws`."""
    before, draw = watch.is_paused, watch.draw
    watch.is_paused = True
    if draws is not None:
        watch.draw = lambda function, rate, size: draws.append(Draw(function, float(rate), int(size)))  # type: ignore[method-assign]
    try:
        yield
    finally:
        watch.is_paused = before
        watch.draw = draw  # type: ignore[method-assign]


def _close_step(watch: Watch, executor: Any, seen: _Seen) -> None:
    if len(seen.gradients) != 1:
        refuse(
            f"one call of the executor made {len(seen.gradients)} updates, and steps are compared one by one.",
            "Verify with Options.deviceIterations(1).",
        )
    (gradients,) = seen.gradients
    watch.before_backward(seen.losses, seen.losses)
    for each in seen.draws_of(executor):
        watch.note_draw(each)
    optimizer = executor._link.optimizer
    host = executor._host_weights()
    parameters = dict(executor._model.named_parameters())
    kept = {name: tensor.detach().clone() for name, tensor in host.items()}
    for name, parameter in parameters.items():
        gradient = gradients.get(name)
        parameter.grad = None if gradient is None else gradient.to(parameter.dtype).reshape(parameter.shape)
    watch.before_update(optimizer, False)
    executor._image.write_host(host)
    watch.after_update(optimizer, False)  # does not return after the last step
    with torch.no_grad():
        for name, tensor in host.items():
            tensor.data.copy_(kept[name])
    for parameter in parameters.values():
        parameter.grad = None


def record_when_loaded(watch: Watch) -> None:
    """Records the emulator's steps when the script itself loads it, as `run.py IPU --emulate` does."""
    from portwright import emulate

    done = set[str]()

    @in_place_of(emulate, "lend")
    def lending(lend: Any, package: str) -> ModuleType:
        module: ModuleType = lend(package)
        if package == "poptorch" and package not in done:
            done.add(package)
            record_emulated(watch)
        return module


def count_real(watch: Watch) -> None:
    """Counts the training calls of the real PopTorch if the script imports it."""
    if "poptorch" not in sys.modules:
        sys.meta_path.insert(0, _WhenImported(watch))


class _WhenImported(importlib.abc.MetaPathFinder):
    """Hooks the package right after it is imported."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "poptorch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def executing(module: ModuleType) -> None:
            execute(module)
            _count_calls(self._watch, module)

        loader.exec_module = executing
        return spec


def _count_calls(watch: Watch, module: Any) -> None:
    executor = getattr(module, "PoplarExecutor", None)
    if executor is None:
        return

    @in_place_of(executor, "__call__")
    def counted(call: Any, /, self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "_training", False):
            watch.vendor_calls[TRAINING_CALLS] = watch.vendor_calls.get(TRAINING_CALLS, 0) + 1
        return call(self, *args, **kwargs)
