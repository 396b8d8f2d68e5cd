"""What may be in a model that PopTorch compiles, and what may be done beside it on the host.

`watching` lies around the one trace of a model: it sees the functions that the model calls, the ops below them, its modules
and blocks, and raises poptorch.Error with the user's line for what the real one does not take. What each op may do is said
by the table of the target IPU, as for `portwright plan`.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from portwright.emulate.poptorch import _active, _impl, poptorch_core
from portwright.emulate.poptorch._calls import Calls
from portwright.emulate.poptorch._host_guard import guard_host, release_host
from portwright.emulate.poptorch._host_random import told_draws
from portwright.emulate.poptorch._memory import MemoryReport, check_memory
from portwright.emulate.poptorch._recording import Recorder
from portwright.emulate.poptorch._watch import Watch

__all__ = ["MemoryReport", "Watch", "check_memory", "guard_host", "release_host", "watching"]


@contextmanager
def watching(options: Any, *, training: bool) -> Iterator[Watch]:
    """Watches over the one trace of a model: the code that runs inside is what PopTorch compiles."""
    watch = Watch(options, training=training)
    strategy = options._execution_strategy
    was_on_ipu = _impl.isRunningOnIpu()
    with ExitStack() as stack:
        stack.enter_context(_active.active(watch))
        stack.enter_context(_watched_modules(watch))
        stack.enter_context(_refused_backward(watch))
        stack.enter_context(_refused_optimizers(watch))
        stack.enter_context(_refused_compilation(watch))
        stack.enter_context(_unchecked_distributions())
        stack.enter_context(told_draws(watch))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # an IPU has no kernel that keeps no scores
        stack.callback(watch.close)
        stack.callback(_impl.setIpuContext, was_on_ipu)
        stack.callback(strategy.onEndTracing)
        _impl.setIpuContext(True)
        strategy.onStartTracing()
        try:
            with Recorder(watch), Calls(watch):
                yield watch
                watch.is_paused = True
            watch.check()
        except poptorch_core.Error:
            raise
        except Exception as error:
            translated = _translate(error, watch)
            if translated is None:
                raise
            raise translated from error


def _translate(error: Exception, watch: Watch) -> poptorch_core.Error | None:
    """The error of a read that torch refuses before it comes to us."""
    said = str(error)
    if "_local_scalar_dense" not in said and "data-dependent" not in said.lower():
        return None
    place = watch.finder.find_raised(error, (sys._getframe(1).f_code,))
    return watch.refuse_read("a function of torch", place)


@contextmanager
def _watched_modules(watch: Watch) -> Iterator[None]:
    """Knows the module that runs, and refuses compiled ones."""
    original = nn.Module.__call__
    thread = threading.get_ident()

    @functools.wraps(original)
    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread or watch.is_paused:
            return original(module, *args, **kwargs)
        tape = watch.tape
        is_outermost = not watch.paths
        if is_outermost:
            watch.enter_model(module, args, kwargs)
        tape.modules.append((watch.paths.get(id(module), tape.module), None))
        try:
            result = original(module, *args, **kwargs)
            if is_outermost:
                watch.leave_model(result)
            return result
        finally:
            tape.modules.pop()

    with mock.patch.object(nn.Module, "__call__", call):
        yield


@contextmanager
def _refused_backward(watch: Watch) -> Iterator[None]:
    """The one way to gradients that is no function of torch's for modes: torch.autograd.backward, in older versions."""
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        if _active.current() is watch and watch.phase == "forward" and not watch.is_paused:
            raise watch.refuse_backward("torch.autograd.backward")
        original(*args, **kwargs)

    with mock.patch.object(torch.autograd, "backward", backward):
        yield


@contextmanager
def _refused_optimizers(watch: Watch) -> Iterator[None]:
    """An optimizer has no place in a model: the executor was given it."""
    from torch.optim import Optimizer
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def refuse(name: str) -> poptorch_core.Error:
        return watch.refuse_here(
            f"{name} inside of the model: PopTorch updates the weights itself. Give the optimizer to poptorch.trainingModel"
        )

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if _active.current() is watch and not watch.is_paused and watch.phase == "forward":
            raise refuse(f"{type(optimizer).__name__}.step()")

    def zero_grad(optimizer: Any, set_to_none: bool = True) -> None:
        if _active.current() is watch and not watch.is_paused:
            raise refuse(f"{type(optimizer).__name__}.zero_grad()")
        original(optimizer, set_to_none)

    original: Any = Optimizer.zero_grad
    hook = register_optimizer_step_pre_hook(before_step)
    try:
        with mock.patch.object(Optimizer, "zero_grad", zero_grad):
            yield
    finally:
        hook.remove()


@contextmanager
def _refused_compilation(watch: Watch) -> Iterator[None]:
    """Functions of torch.compile: each call of one has torch's own compiler take over the Python that runs, which is seen here."""
    thread = threading.get_ident()

    def guarded(original: Any, is_refused: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            is_here = threading.get_ident() == thread and not watch.is_paused and watch.phase == "forward"
            if is_here and is_refused(*args):
                raise watch.refuse_here(
                    "a function of torch.compile is called inside of the model, whose code does not go through PopTorch. Call the "
                    "function as it was written"
                )
            return original(*args, **kwargs)

        return call

    with ExitStack() as stack:
        always = guarded(torch.compile, lambda *args: True)
        stack.enter_context(mock.patch.object(torch, "compile", always))
        frames = sys.modules.get("torch._dynamo.eval_frame")  # is there once something was compiled
        for name in ("set_eval_frame", "_maybe_set_eval_frame"):
            if hasattr(frames, name):
                # None and False stand for functions that are not to be compiled.
                setter = guarded(getattr(frames, name), lambda callback: callable(callback))
                stack.enter_context(mock.patch.object(frames, name, setter))
        yield


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    """Distributions check their arguments by reading them; the real one has them not do so."""
    from torch.distributions import Distribution

    was = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(was)
