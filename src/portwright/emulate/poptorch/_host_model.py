"""The user's own model while a training executor owns its weights: the host's copy, which may be out of date."""

from __future__ import annotations

import copy
import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from portwright.emulate.poptorch import poptorch_core
from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._names import not_emulated
from portwright.emulate.poptorch._watch import current
from portwright.watching.places import PlaceFinder

if TYPE_CHECKING:
    from portwright.emulate.poptorch._poplar_executor import PoplarExecutor


_MOST_NAMED = 4


class _Seen(NamedTuple):
    tensor: torch.Tensor  # alive, or another one could get its id
    version: int
    dtype: torch.dtype
    shape: torch.Size
    requires_grad: bool


class HostChanges:
    """Remembers the host's tensors as they were at the last copy in either direction."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._said: set[str] = set()

    def settle(self, host: Mapping[str, torch.Tensor], names: Iterable[str] | None = None) -> None:
        """The device and the host agree on these tensors now."""
        for name in host if names is None else names:
            self._seen[name] = _see(host[name])
        self._said.clear()

    def check_types(self, host: Mapping[str, torch.Tensor]) -> None:
        """Refuses a model that no longer has the tensors which it was compiled with."""
        if self._seen and (gone := sorted(set(self._seen) ^ set(host))):
            raise refuse(
                f"the model was compiled with other tensors than it has now: {_named(gone)}. Change a model before its first call, "
                "or destroy() the executor and compile it anew."
            )
        for name, before in self._seen.items():
            now = host[name]
            if (now.dtype, now.shape) != (before.dtype, before.shape):
                raise refuse(
                    f"{name} was {before.dtype} {list(before.shape)} when the model was compiled, and is {now.dtype} "
                    f"{list(now.shape)} now. Use .half(), .to() and the like before wrapping, or destroy() the executor and "
                    "compile it anew."
                )

    def check(self, host: Mapping[str, torch.Tensor], *, training: bool) -> None:
        """Says once what the device cannot know of."""
        self.check_types(host)
        now = {name: _see(host[name]) for name in self._seen}
        changed = [
            name
            for name, before in self._seen.items()
            if now[name].tensor is not before.tensor or now[name].version != before.version
        ]
        if changed and "values" not in self._said:
            self._said.add("values")
            logger.warning(
                "the host's %s changed since the device got a copy, which the device does not see: call copyWeightsToDevice(), "
                "or load_state_dict() of the executor",
                _named(changed),
            )
        frozen = [
            name for name, before in self._seen.items() if now[name].requires_grad != before.requires_grad
        ]
        if training and frozen and "frozen" not in self._said:
            self._said.add("frozen")
            logger.warning(
                "requires_grad of %s changed after the model was compiled, which has no effect: what is trained is part of the "
                "program. destroy() the executor, and the next call compiles anew",
                _named(frozen),
            )


def _see(tensor: torch.Tensor) -> _Seen:
    version = 0 if tensor.is_inference() else tensor._version
    return _Seen(tensor, version, tensor.dtype, tensor.shape, tensor.requires_grad)


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


_CURES = {
    "clip_grad_norm_": "Have the device clip them: max_grad_norm of poptorch.optim.SGD, Adam or AdamW",
    "clip_grad_value_": "The device clips by their norm alone: max_grad_norm of poptorch.optim.SGD, Adam or AdamW",
}
_told: set[tuple[str, str]] = set()


def watch_clipping() -> None:
    """From here on, torch's functions warn, once a line, when they are given a weight that an executor trains.

    They are changed inside, where a script that has imported them by name finds the change, too.
    """
    for name, cure in _CURES.items():
        outer: Any = getattr(torch.nn.utils, name)
        for cell in outer.__closure__ or ():
            if getattr(cell.cell_contents, "__name__", None) == name:
                cell.cell_contents = _told_of(cell.cell_contents, cure)


def _told_of(clip: Any, cure: str) -> Any:
    @functools.wraps(clip)
    def call(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if current() is None and any(_owner_of(tensor) is not None for tensor in given):
            place, _ = PlaceFinder().find(sys._getframe(1), ())
            if (clip.__name__, str(place)) not in _told:
                _told.add((clip.__name__, str(place)))
                logger.warning(
                    "%s() on the host clips nothing: the gradients of a poptorch.trainingModel stay on the IPU, and the weights are "
                    "updated by the time it returns. %s (%s)",
                    clip.__name__,
                    cure,
                    place,
                )
        return clip(given, *args, **kwargs)

    return call


_owners: WeakIdKeyDictionary = WeakIdKeyDictionary()  # weight -> weak reference to its executor
_handles: WeakIdKeyDictionary = WeakIdKeyDictionary()  # executor -> hooks
_step_hook: Any = None


def guard_host(executor: Any, parameters: Iterable[Tensor]) -> None:
    """From here on, `backward()` that reaches one of these weights, and `optimizer.step()` on them, raise.

    Until `release_host(executor)`, or until the executor is gone. It keeps neither alive. An executor that only infers needs no
    guard: to train on the host and copyWeightsToDevice is documented.
    """
    global _step_hook
    if _step_hook is None:
        _step_hook = register_optimizer_step_pre_hook(_before_step)
        watch_clipping()
    owner = weakref.ref(executor)
    handles = _handles.setdefault(executor, [])
    for parameter in parameters:
        _owners[parameter] = owner
        if parameter.requires_grad:
            handles.append(parameter.register_hook(_refusal(owner)))


def release_host(executor: Any) -> None:
    """The weights are the host's again: the executor was destroyed, or gave them back."""
    for handle in _handles.pop(executor, []):
        handle.remove()
    for parameter in [p for p, owner in _owners.items() if owner() is executor]:
        del _owners[parameter]


def _refusal(owner: Any) -> Callable[[Tensor], None]:
    """The hook of one executor's weights; it keeps the executor's weak reference only."""

    def hook(gradient: Tensor) -> None:
        if owner() is not None and current() is None:
            raise _refuse(
                "backward() on the host reaches a weight that a poptorch.trainingModel trains on the IPU: its gradient would change "
                "nothing there. Leave backward() and optimizer.step() out: calling the training model computes gradients and updates "
                "the weights"
            )

    return hook


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not _owners or current() is not None:
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
    error: poptorch_core.Error = refuse(f"{message}.{where}")
    error.location = "" if place is None else str(place)
    return error


def watch_looks(tensors: Iterable[Tensor], executor: PoplarExecutor) -> None:
    """From here on, whoever looks at one of these tensors has the executor bring them up to date first."""
    classes: dict[type[Tensor], type[Tensor]] = {}
    for tensor in tensors:
        base = type(tensor)
        if base not in classes:
            classes[base] = _watched(base, weakref.ref(executor))
        tensor.__class__ = classes[base]


def release_looks(tensors: Iterable[Tensor]) -> None:
    """Makes them plain tensors again."""
    for tensor in tensors:
        unwrap(tensor)


def unseen() -> AbstractContextManager[Any]:
    """Inside, looks at the tensors do not count: they are the emulator's own."""
    return torch._C.DisableTorchFunctionSubclass()


def _plain(tensor: Tensor) -> Tensor:
    """What copies and files are made of: they are no one's but the host's."""
    value = tensor.detach()
    mine = (
        torch.nn.Parameter(value, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else value
    )
    mine.__dict__.update(tensor.__dict__)
    return mine


def _watched(base: type[Tensor], parent: weakref.ref[PoplarExecutor]) -> type[Tensor]:
    class Watched(base):  # type: ignore[misc, valid-type]
        _poptorch_base = base

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            executor = parent()
            if executor is not None:
                executor.copyWeightsToHostIfNeeded()
            with unseen():
                return func(*args, **(kwargs or {}))

        def __deepcopy__(self, memory: dict[int, Any]) -> Any:
            if id(self) not in memory:
                memory[id(self)] = copy.deepcopy(_plain(self), memory)
            return memory[id(self)]

        def __reduce_ex__(self, protocol: Any) -> Any:
            return _plain(self).__reduce_ex__(protocol)

    kind = "Parameter" if issubclass(base, torch.nn.Parameter) else "Buffer"
    Watched.__name__ = Watched.__qualname__ = f"Poptorch{kind}"
    Watched.__module__ = base.__module__
    return Watched


COPIES = "PORTWRIGHT_POPTORCH_COPIES"


def copies_are_implicit() -> bool:
    """Whether the host's parameters follow the device by themselves, or only when asked to.

    PopTorch 3.4 copies when the host looks at a weight for the first time after training, and so do implicit copies here.
    """
    chosen = os.environ.get(COPIES, "explicit")
    if chosen not in ("explicit", "implicit"):
        raise refuse(f"{COPIES} is {chosen!r}. Valid: explicit (the default), implicit.")
    return chosen == "implicit"


def wrap(model: torch.nn.Module, executor: PoplarExecutor) -> None:
    """Marks a model as one whose weights live on the device; its class stays a subclass of what it was."""
    model.__class__ = _wrapper_class(type(model), weakref.ref(executor))


def is_wrapped(thing: Any) -> bool:
    return hasattr(type(thing), "_poptorch_base")


def unwrap(thing: Any) -> None:
    """Gives a wrapped model or tensor its own class back."""
    if is_wrapped(thing):
        thing.__class__ = type(thing)._poptorch_base


def owner(model: torch.nn.Module) -> PoplarExecutor | None:
    """The training executor that has wrapped the model, as long as there is one."""
    parent = getattr(type(model), "_poptorch_parent", None) if is_wrapped(model) else None
    found: PoplarExecutor | None = parent() if parent is not None else None
    return found


class Weight:
    """A parameter read through an executor: as in the real package an object with the tensor's attributes, and no tensor."""

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self._parameter = parameter

    def replicaGrouping(self, comm_group_type: Any, shards: Any, variable_retrieval_mode: Any) -> None:
        raise not_emulated("replicaGrouping()", "all replicas have the same weights here.")

    def __getattr__(self, attr: str) -> Any:
        if attr == "_parameter":
            raise AttributeError(attr)
        return getattr(self._parameter, attr)

    def __repr__(self) -> str:
        return repr(self._parameter)


def _wrapper_class(base: type[torch.nn.Module], parent: weakref.ref[PoplarExecutor]) -> type[torch.nn.Module]:
    def note_stale(reading: str) -> None:
        executor = parent()
        if executor is not None:
            executor._note_stale(reading)

    class PoptorchModel(base):  # type: ignore[misc, valid-type]
        _poptorch_parent = parent
        _poptorch_base = base

        def copyWeightsToHostIfNeeded(self) -> bool:
            """Brings the host's weights up to date, and says whether they were not."""
            executor = parent()
            return executor.copyWeightsToHostIfNeeded() if executor is not None else False

        def destroy(self) -> None:
            """Releases the device and the program, and makes this a plain model again."""
            executor = parent()
            if executor is not None:
                executor.destroy()
            else:
                unwrap(self)

        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            note_stale("state_dict()")
            return super().state_dict(*args, **kwargs)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            note_stale("a call of the model on the host")
            return super().__call__(*args, **kwargs)

        def __reduce_ex__(self, protocol: Any) -> Any:
            # Copies and files are of the user's class: this one cannot be imported, and is no one else's. Pickle's own
            # function for a new object insists on the class that the object has now.
            note_stale("a copy or file of the model")
            _, arguments, *rest = super().__reduce_ex__(protocol)
            return (object.__new__, (base, *arguments[1:]), *rest)

    PoptorchModel.__name__ = f"Poptorch{base.__name__}"
    PoptorchModel.__qualname__ = PoptorchModel.__name__
    PoptorchModel.__module__ = base.__module__
    return PoptorchModel
