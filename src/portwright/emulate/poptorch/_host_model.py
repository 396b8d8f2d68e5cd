"""The user's own model while a training executor owns its weights: the host's copy, which may be out of date."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any

import torch

from portwright.emulate.poptorch import _impl
from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._refused import not_emulated

if TYPE_CHECKING:
    from portwright.emulate.poptorch._poplar_executor import PoplarExecutor

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


def unwrap(model: torch.nn.Module) -> None:
    _impl.unwrapIfWrapped(model)


def owner(model: torch.nn.Module) -> PoplarExecutor | None:
    """The training executor that has wrapped the model, as long as there is one."""
    parent = getattr(type(model), "_poptorch_parent", None) if _impl.isWrapped(model) else None
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
    _impl.registerWrapperType(PoptorchModel)
    return PoptorchModel


def warn_stale(reading: str) -> None:
    logger.warning(
        "%s reads the host's weights, which are older than the device's: call copyWeightsToHost() first "
        "(or set %s=implicit, and they follow as in PopTorch 3.4)",
        reading,
        COPIES,
    )
