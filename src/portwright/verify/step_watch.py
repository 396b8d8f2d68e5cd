"""Runs a training script up to an update of its weights, and hands over the step that led there.

torch's entry points are replaced while the script runs, and restored before the step is used.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter

from portwright.job.main_script import run_as_main
from portwright.verify.step_plan import StepPlan, feed_what_changes, plan_step
from portwright.verify.tape import HostRead, NoAccelerator, Tape, memory_of, state_of

_MOST_PASSES = 16  # backward passes without an optimizer or a changed parameter
_MOST_UPDATES = 50  # of other optimizers before the wanted one


@dataclass(frozen=True, eq=False)
class Clipping:
    """A call of a torch function that clips gradients between the backward pass and the update."""

    function: Callable[..., Any]
    parameters: tuple[Tensor, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, eq=False)
class WatchedStep:
    """One update of a script, before it happens."""

    plan: StepPlan
    names: tuple[str, ...]  # of the plan's modules, as in the script
    optimizer: Optimizer | None  # None: the script updates by hand
    num_optimizers: int
    clippings: tuple[Clipping, ...] = ()
    reads: tuple[HostRead, ...] = ()
    host_made: Any = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class NoTrainingError(Exception):
    """The script ended before the wanted update."""


class StepWatch:
    """Waits for the first update by optimizer `number`, counted in the order of their first updates.

    `use` is called with the step, after torch is restored, and need not return. With `captures_odd`, tensors with another
    first dimension than the batch are captured, not fed.
    """

    def __init__(
        self, use: Callable[[WatchedStep], None], number: int = 0, *, captures_odd: bool = False
    ) -> None:
        self._use, self._number, self._captures_odd = use, number, captures_odd
        self.tape = Tape()
        self._optimizers: list[Optimizer] = []  # in the order of creation
        self._updating: list[Optimizer] = []  # in the order of first updates
        self._clippings: list[Clipping] = []
        self._pending: tuple[WatchedStep, list[Tensor]] | None = None
        self._num_other_updates = 0
        self._done = False
        self._changes_gradients = False
        self._undo = contextlib.ExitStack()

    def run(self, words: Sequence[str]) -> None:
        """Runs `SCRIPT ARGS` or `-m MODULE ARGS` as the main program."""
        self._install()
        try:
            run_as_main(words)
        except SystemExit as error:
            if error.code not in (None, 0) and self._pending is None and not self._done:
                raise
        except Exception:
            if self._pending is None:  # else it failed after a whole step
                raise
        finally:
            self._undo.close()
            self._leave_tape()  # again: torch restores it after a call that the end interrupted
        self._end()

    def _end(self) -> None:
        if self._done:
            return
        if self._pending is not None:
            self._finish(self._pending[0])
        elif self.tape.backwards and self._number == 0:
            self._finish(self._watched(None))
        else:
            raise NoTrainingError

    # -- events --------------------------------------------------------------------------------------------

    def _on_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Called before an update and after it, since a closure may compute the gradients inside of it."""
        if self._done or not self.tape.backwards:
            return
        if not any(optimizer is known for known in self._updating):
            self._updating.append(optimizer)
        if self._number < len(self._updating) and optimizer is self._updating[self._number]:
            self._on_own_update(optimizer)
            return
        self._num_other_updates += 1
        self.tape.backwards.clear()
        self._clippings.clear()
        if self._num_other_updates > _MOST_UPDATES:
            self._done = True
            raise NoTrainingError

    def _on_own_update(self, optimizer: Optimizer | None) -> None:
        watched = self._watched(optimizer)
        if self._pending is not None:
            first, kept = self._pending
            self._finish(replace(first, plan=feed_what_changes(first.plan, kept, watched.plan)))
        elif watched.plan.doubtful:
            # A second step shows which tensor is a mask (unchanged) and which is a target (changed).
            plan = watched.plan
            self._pending = watched, [plan.constants[place].detach().clone() for place in plan.doubtful]
            self.tape.begin_step()
            self._clippings.clear()
        else:
            self._finish(watched)

    def _watched(self, optimizer: Optimizer | None) -> WatchedStep:
        trained = [p for group in optimizer.param_groups for p in group["params"]] if optimizer else []
        plan = plan_step(self.tape, trained, captures_odd=self._captures_odd)
        return WatchedStep(
            plan,
            tuple(_name_of(module, sys._getframe()) for module in plan.modules),
            optimizer,
            max(len(self._optimizers), len(self._updating), 1),
            tuple(self._clippings),
            tuple(self.tape.reads),
            self.tape.host_made,
            tuple(self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        if self.tape.autocasts:
            yield "autocast of the loop left out"
        if self._changes_gradients:
            yield "what the loop does to gradients by hand, between backward and update, left out"

    def _finish(self, watched: WatchedStep) -> None:
        self._done = True
        self._undo.close()
        with _plain_torch():
            self._use(watched)

    def _on_backward(self, run: Callable[[], Any], tensors: Any, gradients: Any, wanted: Any = ()) -> Any:
        tensors = (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)
        if gradients is not None:
            gradients = (gradients,) if isinstance(gradients, Tensor) else tuple(gradients)
        is_outer = not self.tape.is_inside and not self._done
        if is_outer and not self._optimizers and len(self.tape.backwards) == _MOST_PASSES:
            del self.tape.backwards[1:]
            self._finish(self._watched(None))
        return self.tape.call_backward(run, tensors, gradients, wanted)

    def _on_write(self, written: tuple[Tensor, ...]) -> None:
        """A write to a parameter after a backward pass is an update by hand if there is no optimizer; with one, a write to a
        gradient is noted as a change by hand."""
        if self._done:
            return
        if self._optimizers:
            trained = (p for one in self._optimizers for group in one.param_groups for p in group["params"])
            gradients = {memory_of(p.grad) for p in trained if p.grad is not None}
            self._changes_gradients |= any(memory_of(tensor) in gradients for tensor in written)
            return
        if self._number:
            return
        own = {memory_of(t) for t in (*state_of(self.tape.modules).values(), *self.tape.trained.values())}
        if any(memory_of(tensor) in own for tensor in written):
            self._on_own_update(None)

    # -- torch's entry points ------------------------------------------------------------------------------

    def _install(self) -> None:
        tape, undo = self.tape, self._undo
        for handle in (
            register_optimizer_step_pre_hook(self._on_update),
            register_optimizer_step_post_hook(self._on_update),
        ):
            undo.callback(handle.remove)
        call = nn.Module.__call__

        def call_module(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return tape.call_module(module, lambda *a, **k: call(module, *a, **k), args, kwargs)

        backward, grad = torch.autograd.backward, torch.autograd.grad

        def call_backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            self._on_backward(lambda: backward(tensors, grad_tensors, *args, **kwargs), tensors, grad_tensors)

        def call_grad(outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **kwargs: Any) -> Any:
            wanted = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
            is_loop = all(isinstance(one, nn.Parameter) for one in wanted) and not kwargs.get("create_graph")
            if not is_loop:
                return tape.call_function(
                    "torch.autograd.grad", grad, (outputs, inputs, grad_outputs, *args), kwargs
                )
            return self._on_backward(
                lambda: grad(outputs, inputs, grad_outputs, *args, **kwargs), outputs, grad_outputs, wanted
            )

        apply = torch.autograd.Function.__dict__["apply"].__func__

        def call_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            function = apply.__get__(cls, type(cls))
            return tape.call_function(cls.__name__, function, args, kwargs)

        made = Optimizer.__init__

        def make(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            made(optimizer, *args, **kwargs)
            if not any(optimizer is known for known in self._optimizers):
                self._optimizers.append(optimizer)

        fetch = _BaseDataLoaderIter.__next__

        def fetch_batch(iterator: Any) -> Any:
            with tape.not_recording():  # no part of the step
                batch = fetch(iterator)
            if not tape.is_inside:
                tape.fetch(batch)
            return batch

        self._replace(nn.Module, "__call__", call_module)
        self._replace(torch.autograd, "backward", call_backward)
        self._replace(torch.autograd, "grad", call_grad)
        self._replace(torch.autograd.Function, "apply", classmethod(call_apply))
        self._replace(Optimizer, "__init__", make)
        self._replace(_BaseDataLoaderIter, "__next__", fetch_batch)
        self._replace(DataLoader, "_get_iterator", _iterate_here)
        self._replace(torch, "compile", _leave_uncompiled)
        for name in ("from_numpy", "frombuffer"):  # a TorchFunctionMode does not see these
            self._replace(torch, name, self._noting_host(getattr(torch, name)))
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            clip = self._noting_clip(getattr(torch.nn.utils, name))
            self._replace(torch.nn.utils, name, clip)
            self._replace(torch.nn.utils.clip_grad, name, clip)
        if not hasattr(torch, "accelerator"):
            self._replace(torch, "accelerator", NoAccelerator)
        if not torch.cuda.is_available():
            for owner, name in ((Tensor, "cuda"), (Tensor, "pin_memory")):
                self._replace(owner, name, lambda tensor, *args, **kwargs: tensor)
            for name in ("set_device", "synchronize"):
                self._replace(torch.cuda, name, lambda *args, **kwargs: None)
        tape.on_write = self._on_write
        tape.__enter__()  # type: ignore[no-untyped-call]
        undo.callback(self._leave_tape)

    def _leave_tape(self) -> None:
        """Removes the tape from torch's stack of modes, where the script may have put others above it."""
        self.tape.is_over = True
        modes = _take_modes()
        for mode in reversed(modes):
            if mode is not self.tape:
                torch._C._push_on_torch_function_stack(mode)

    def _noting_host(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def make(*args: Any, **kwargs: Any) -> Tensor:
            tensor = function(*args, **kwargs)
            self.tape.host_made[tensor] = True
            return tensor

        return make

    def _noting_clip(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            self._clippings.append(Clipping(function, tuple(parameters), args, kwargs))
            with self.tape.not_recording():
                return function(parameters, *args, **kwargs)

        return clip

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        own = vars(owner)
        if name in own:
            self._undo.callback(setattr, owner, name, own[name])
        else:
            self._undo.callback(delattr, owner, name)
        setattr(owner, name, value)


def _iterate_here(loader: Any) -> Any:
    """Iterates in this process, without workers."""
    loader.num_workers, loader.timeout = 0, 0
    return _SingleProcessDataLoaderIter(loader)


def _leave_uncompiled(model: Any = None, **options: Any) -> Any:
    return model if model is not None else lambda function: function


@contextlib.contextmanager
def _plain_torch() -> Iterator[None]:
    """Leaves the script's modes (autocast, no_grad, function modes) for the block."""
    modes = _take_modes()
    try:
        with torch.enable_grad(), torch.autocast("cpu", enabled=False):
            yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)


def _take_modes() -> list[Any]:
    """Removes and returns all torch function modes, the innermost first."""
    return [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]


def _name_of(module: nn.Module, frame: FrameType | None) -> str:
    """The script's name of a module: a variable, or an attribute of `self`."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(("portwright.verify", "torch.")):
            frame = frame.f_back
            continue
        for names in (frame.f_locals, frame.f_globals):
            for name, value in list(names.items()):
                if value is module and name != "self" and not name.startswith("_"):
                    return str(name)
        owner = frame.f_locals.get("self")
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            if value is module:
                return str(name)
        frame = frame.f_back
    return type(module).__name__
