"""Training on the host beside an executor that trains the same weights: an error here, silently useless in the real one.

A weight that an executor trains gets a hook, which autograd calls when a gradient reaches it; nothing else is looked at, so
that other models of the process train as ever.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from portwright.emulate.poptorch import _active, _impl, poptorch_core
from portwright.emulate.poptorch._host_clipping import watch_clipping
from portwright.graph.capturing.places import PlaceFinder

_owners: WeakIdKeyDictionary = WeakIdKeyDictionary()  # weight -> weak reference to its executor
_handles: WeakIdKeyDictionary = WeakIdKeyDictionary()  # executor -> hooks
_step_hook: Any = None


def guard_host(executor: Any = None, parameters: Iterable[Tensor] = ()) -> None:
    """From here on, `backward()` that reaches one of these weights, and `optimizer.step()` on them, raise.

    Until `release_host(executor)`, or until the executor is gone. It keeps neither alive. An executor that only infers needs no
    guard: to train on the host and copyWeightsToDevice is documented.
    """
    global _step_hook
    if _step_hook is None:
        _step_hook = register_optimizer_step_pre_hook(_before_step)
        watch_clipping(is_owned)
    if executor is None:
        return
    owner = weakref.ref(executor)
    handles = _handles.setdefault(executor, [])
    for parameter in parameters:
        _owners[parameter] = owner
        if parameter.requires_grad:
            handles.append(parameter.register_hook(_Refusal(owner)))


def release_host(executor: Any) -> None:
    """The weights are the host's again: the executor was destroyed, or gave them back."""
    for handle in _handles.pop(executor, []):
        handle.remove()
    for parameter in [p for p, owner in _owners.items() if owner() is executor]:
        del _owners[parameter]


def is_owned(parameter: Tensor) -> bool:
    """Whether an executor trains this tensor of the host."""
    return _owner_of(parameter) is not None


class _Refusal:
    """The hook of one executor's weights; it keeps the executor's weak reference only."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __call__(self, gradient: Tensor) -> None:
        if self._owner() is None or _active.current() is not None:
            return
        raise _refuse(
            "backward() on the host reaches a weight that a poptorch.trainingModel trains on the IPU: its gradient would change "
            "nothing there. Leave backward() and optimizer.step() out: calling the training model computes gradients and updates "
            "the weights"
        )


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not _owners or _active.current() is not None:
        return
    for group in optimizer.param_groups:
        if group["params"] and _owner_of(group["params"][0]) is not None:
            raise _refuse(
                f"{type(optimizer).__name__}.step() on the host changes weights that a poptorch.trainingModel trains on the IPU. "
                "Leave it out: calling the training model updates the weights; give changed settings to setOptimizer()"
            )


def _owner_of(parameter: Tensor) -> Any:
    owner = _owners.get(parameter)
    return None if owner is None else owner()


def _refuse(message: str) -> poptorch_core.Error:
    place, _ = PlaceFinder().find(sys._getframe(1), ())
    where = "" if place is None else f" [{place}]"
    error: poptorch_core.Error = _impl.createPoptorchError(f"{message}.{where}")
    error.location = "" if place is None else str(place)
    return error
