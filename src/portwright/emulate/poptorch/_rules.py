"""What may be in a model that PopTorch compiles, and what may be done beside it on the host.

`watching` lies around the one trace of a model: it sees the functions that the model calls, the ops below them, its modules
and blocks, and raises poptorch.Error with the user's line for what the real one does not take. What each op may do is said
by the table of the target IPU, as for `portwright plan`.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from portwright.emulate.poptorch import ops, poptorch_core
from portwright.emulate.poptorch._calls import Calls
from portwright.emulate.poptorch._host_model import guard_host, release_host
from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._memory import MemoryReport, check_memory
from portwright.emulate.poptorch._watch import Watch, active, current
from portwright.patched import patched

_TORCH = str(Path(torch.__file__).parent) + "/"
_NO_DRAWS = ("seed", "getstate", "setstate", "get_state", "set_state")
_MEANING = (
    "is drawn once, while the model is compiled: each later call uses the same number, and takes the same branch. Draw with torch "
    "(torch.rand, torch.where), or give it to the model as an input"
)


@contextmanager
def told_draws(watch: Watch) -> Iterator[None]:
    """Warns of each line of the model that calls a function of `random` or `numpy.random`.

    Functions that were imported by name are seen by what they leave behind, without their line.
    """
    told = []

    def watched(name: str, draw: Any) -> Any:
        @functools.wraps(draw)
        def call(*args: Any, **kwargs: Any) -> Any:
            if watch.sees_model and not sys._getframe(1).f_code.co_filename.startswith(_TORCH):
                told.append(name)
                watch.note_once(f"{name}() {_MEANING}")
            return draw(*args, **kwargs)

        return call

    numpy_random: Any = sys.modules.get("numpy.random")
    before = _states(numpy_random)
    with ExitStack() as stack:
        for home, owner in (
            (random, random._inst),
            (numpy_random, getattr(getattr(numpy_random, "mtrand", None), "_rand", None)),
        ):
            for name, draw in list(vars(home).items()) if home is not None else ():
                if name not in _NO_DRAWS and owner is not None and getattr(draw, "__self__", None) is owner:
                    called = f"{home.__name__}.{name}"
                    stack.enter_context(patched(home, name, watched(called, draw)))
        yield
    for name, state in _states(numpy_random).items():
        if state != before.get(name) and not told:
            logger.warning("what forward() draws from %s %s", name, _MEANING)


def _states(numpy_random: Any) -> dict[str, Any]:
    states: dict[str, Any] = {"random": random.getstate()}
    if numpy_random is not None:
        kind, key, *rest = numpy_random.get_state()
        states["numpy.random"] = (kind, key.tobytes(), *rest)
    return states


_MOST_NAMED = 4
_PLAIN = (bool, int, float, complex, str, bytes, tuple, frozenset, type(None))
_STATISTICS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


class PythonState:
    """The attributes of a model's own modules before forward() runs."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = _attributes(model)

    def warn_of_changes(self) -> None:
        """Says which attributes forward() has set: it runs once, so they stay as they are from now on."""
        now = _attributes(self._model)
        changed = [name for name, value in now.items() if not _is_same(self._before.get(name, self), value)]
        if changed:
            more = f" and {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
            logger.warning(
                "forward() sets %s%s, which happens once, when the model is compiled: later calls run the program, in which the "
                "value is a constant. Keep what changes in a buffer (register_buffer, changed in place), or return it",
                ", ".join(f"self.{name}" for name in changed[:_MOST_NAMED]),
                more,
            )


def warn_of_training_mode(model: nn.Module) -> None:
    """Says that a model infers as in training, where that makes a difference."""
    for name, part in model.named_modules():
        drops = isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0
        counts = isinstance(part, _STATISTICS) and part.track_running_stats
        if part.training and (drops or counts):
            logger.warning(
                "an inferenceModel is compiled of a model in training mode: %s '%s' %s. Call model.eval() before",
                type(part).__name__,
                name,
                "drops values" if drops else "normalises by each batch and changes its statistics",
            )
            return


def _attributes(model: nn.Module) -> dict[str, Any]:
    found = {}
    for path, part in model.named_modules():
        if not type(part).__module__.startswith("torch."):
            prefix = f"{path}." if path else ""
            found.update({prefix + name: value for name, value in vars(part).items() if name[:1] != "_"})
    return found


def _is_same(before: Any, now: Any) -> bool:
    if before is now:
        return True
    return type(before) is type(now) and isinstance(now, _PLAIN) and bool(before == now)


__all__ = ["MemoryReport", "Watch", "check_memory", "guard_host", "release_host", "watching"]


@contextmanager
def watching(options: Any, *, training: bool) -> Iterator[Watch]:
    """Watches over the one trace of a model: the code that runs inside is what PopTorch compiles."""
    watch = Watch(options, training=training)
    with ExitStack() as stack:
        stack.enter_context(active(watch))
        stack.enter_context(_watched_modules(watch))
        stack.enter_context(_refused_backward(watch))
        stack.enter_context(_refused_optimizers(watch))
        stack.enter_context(_refused_compilation(watch))
        stack.enter_context(_unchecked_distributions())
        stack.enter_context(told_draws(watch))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # an IPU has no kernel that keeps no scores
        stack.callback(watch.close)
        stack.enter_context(
            patched(ops.Block, "_stages_manager", options._execution_strategy._stages_manager)
        )
        try:
            with Calls(watch):
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

    @functools.wraps(original)
    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if current() is not watch or watch.is_paused:
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

    with patched(nn.Module, "__call__", call):
        yield


@contextmanager
def _refused_backward(watch: Watch) -> Iterator[None]:
    """The one way to gradients that is no function of torch's for modes: torch.autograd.backward, in older versions."""
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> None:
        if watch.sees_model:
            raise watch.refuse_backward("torch.autograd.backward")
        original(*args, **kwargs)

    with patched(torch.autograd, "backward", backward):
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
        if watch.sees_model:
            raise refuse(f"{type(optimizer).__name__}.step()")

    def zero_grad(optimizer: Any, set_to_none: bool = True) -> None:
        if current() is watch and not watch.is_paused:
            raise refuse(f"{type(optimizer).__name__}.zero_grad()")
        original(optimizer, set_to_none)

    original: Any = Optimizer.zero_grad
    hook = register_optimizer_step_pre_hook(before_step)
    try:
        with patched(Optimizer, "zero_grad", zero_grad):
            yield
    finally:
        hook.remove()


@contextmanager
def _refused_compilation(watch: Watch) -> Iterator[None]:
    """Functions of torch.compile: each call of one has torch's own compiler take over the Python that runs, which is seen here."""

    def guarded(original: Any, is_refused: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if watch.sees_model and is_refused(*args):
                raise watch.refuse_here(
                    "a function of torch.compile is called inside of the model, whose code does not go through PopTorch. Call the "
                    "function as it was written"
                )
            return original(*args, **kwargs)

        return call

    with ExitStack() as stack:
        always = guarded(torch.compile, lambda *args: True)
        stack.enter_context(patched(torch, "compile", always))
        frames = sys.modules.get("torch._dynamo.eval_frame")  # is there once something was compiled
        for name in ("set_eval_frame", "_maybe_set_eval_frame"):
            if hasattr(frames, name):
                # None and False stand for functions that are not to be compiled.
                setter = guarded(getattr(frames, name), lambda callback: callable(callback))
                stack.enter_context(patched(frames, name, setter))
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
