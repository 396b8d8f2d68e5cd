"""trainingModel, inferenceModel and load: the ways to a PoplarExecutor."""
# The vendor's signatures are kept word for word.

from __future__ import annotations

import copy
import weakref
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

import torch

from portwright.emulate.poptorch import _executable_file, _host_model, _impl
from portwright.emulate.poptorch._errors import StateError, refuse
from portwright.emulate.poptorch._poplar_executor import PoplarExecutor

if TYPE_CHECKING:
    from portwright.emulate import poptorch


def poptorchAtExit():
    """Lets devices go at the end of a process; emulated ones need nothing."""


def load(
    filename: str, edit_opts_fn: Optional[Callable[["poptorch.Options"], None]] = None
) -> "poptorch.PoplarExecutor":
    """Gives an executor for a saved model: its frozen program and weights, without the user's class."""
    return _executable_file.load(filename, _version(), trainingModel, inferenceModel, edit_opts_fn)


def trainingModel(
    model: Union["torch.nn.Module", "poptorch.PoplarExecutor"],
    options: Optional["poptorch.Options"] = None,
    optimizer: Optional["torch.optim.Optimizer"] = None,
) -> "poptorch.PoplarExecutor":
    """Wraps a model whose forward() computes the loss: each call trains it.

    Without an optimizer it is SGD at a rate of 0.01. The model itself stays with the host, and its weights there follow
    on copyWeightsToHost().
    """
    module = _module_of(model)
    if _impl.isWrapped(module):
        executor = _host_model.owner(module)
        where = f" at {executor._made_at}" if executor is not None and executor._made_at else ""
        raise refuse(
            f"{type(module).__bases__[0].__name__} has already been wrapped in trainingModel(){where}. "
            "Call destroy() on it before wrapping it again.",
            StateError,
        )
    return PoplarExecutor(
        model=copy.copy(module),
        options=options,
        training=True,
        optimizer=optimizer,
        user_model=module,
        poptorch_version=_version(),
    )


def inferenceModel(
    model: Union["torch.nn.Module", "poptorch.PoplarExecutor"], options: Optional["poptorch.Options"] = None
) -> "poptorch.PoplarExecutor":
    """Wraps a model for inference; one that a trainingModel trains gets its weights at each call after training."""
    module = _module_of(model)
    executor = PoplarExecutor(
        model=copy.copy(module), options=options, training=False, poptorch_version=_version()
    )
    trainer = _host_model.owner(module)
    if trainer is None and isinstance(model, PoplarExecutor):
        trainer = model._source()
    if trainer is not None:
        executor._source = weakref.ref(trainer)
    return executor


def _module_of(model: Any) -> Any:
    if isinstance(model, PoplarExecutor):
        return model._user_model
    if not isinstance(model, torch.nn.Module):
        raise refuse(f"a torch.nn.Module is wrapped, not {type(model).__name__} ({model!r}).")
    if isinstance(model, torch.jit.ScriptModule) or isinstance(
        getattr(model, "_orig_mod", None), torch.nn.Module
    ):
        raise refuse(
            f"{type(model).__name__} is a module that torch.jit or torch.compile has compiled. Wrap the module as it was written."
        )
    if isinstance(model, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
        raise refuse(
            f"{type(model).__name__} spreads a model over GPUs or processes. Wrap the module that it holds (.module), and set "
            "Options.replicationFactor() for copies on several IPUs."
        )
    return model


def _version() -> str:
    from portwright.emulate import poptorch

    return poptorch.__version__
