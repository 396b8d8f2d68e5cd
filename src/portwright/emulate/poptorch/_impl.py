"""What the modules of PopTorch share: its error, whether a model is being compiled, wrapped objects."""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from typing import Any

import torch

from portwright.emulate.poptorch import poptorch_core
from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._refused import refused

_NO_DISPATCHER = "it belongs to the binding's dispatcher; Portwright records a model's ops itself."

_on_ipu = False
_tracing = False


class NameScopeHook:
    """Has every module below `module` name its operations after itself, while the hook is there."""

    def __init__(self, module: "torch.nn.Module"):
        self.scopes: list[str] = []
        self.hooks: list[Any] = []
        for name, child in module.named_modules():
            if name:
                self.hooks.append(child.register_forward_pre_hook(functools.partial(self._enter, name)))
                self.hooks.append(child.register_forward_hook(self._leave))

    def _enter(self, name: str, module: torch.nn.Module, inputs: Any) -> None:
        self.scopes.append(name.rpartition(".")[2])

    def _leave(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        self.scopes.pop()

    def remove(self):
        for hook in self.hooks:
            hook.remove()
        self.hooks.clear()


def createPoptorchError(msg):
    """Makes the error of a call or a program that PopTorch does not take, to be raised by the caller."""
    kind = "poptorch_py_error"
    error = poptorch_core.Error(f"'{kind}': {msg}")
    error.type, error.message = kind, msg
    return error


def isRunningOnIpu() -> bool:
    """Whether the code runs as part of a model that is being compiled for IPUs."""
    return _on_ipu


def setIpuContext(val: bool):
    global _on_ipu
    _on_ipu = val


def isDispatchTracing() -> bool:
    return _tracing


def setDispatchTracing(val: bool):
    global _tracing
    _tracing = val


def internal_cast(tensor, dtype):
    """Casts between float and half, which is all that PopTorch's own cast knows."""
    if dtype not in (torch.float32, torch.float16):
        raise ValueError(f"a cast of PopTorch goes to torch.float or torch.half, not to {dtype}.")
    return tensor.to(dtype)


@refused(_NO_DISPATCHER)
def applyOptimizer(optimizer): ...


class OptimizerWrapper(torch.nn.Module):
    """A model together with the optimizer that trains it."""

    def __init__(self, model, optimizer):
        super().__init__()
        self.model = model
        self.optimizer = optimizer

    def forward(self, *args, **kwargs):
        return self.model(*args, **kwargs)


@refused(_NO_DISPATCHER)
def destroyDispatcherOnExit(func): ...


@contextlib.contextmanager
def distributedCacheLock(model, opts):
    """Gives True to the process that compiles first; processes of one job do not share a cache here, so nobody waits."""
    if opts.Distributed.numProcesses > 1:
        logger.warning("every process of a distributed job compiles the model by itself under the emulator")
    yield False


class WeakPtr(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that is equal to another where both refer to the same object."""

    __hash__ = weakref.ref.__hash__

    def __eq__(self, other):
        mine, theirs = self(), other()
        return self is other if mine is None else mine is theirs


class WeakKeyPtrDict:
    """A dictionary by the identity of keys that it does not keep alive (tensors compare by value)."""

    def __init__(self, dict=None):
        self.data: Any = {}
        mine = weakref.ref(self)

        def forget(key: Any) -> None:
            there = mine()
            if there is not None:
                there.data.pop(key, None)

        self._forget = forget
        self.update(dict)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.data[WeakPtr(key, self._forget)] = value

    def __delitem__(self, key: Any) -> None:
        del self.data[WeakPtr(key)]

    def __getitem__(self, key: Any) -> Any:
        return self.data[WeakPtr(key)]

    def __contains__(self, key: Any) -> bool:
        return WeakPtr(key) in self.data

    def get(self, key, default=None):
        return self.data.get(WeakPtr(key), default)

    def update(self, dict=None):
        for key, value in (dict or {}).items():
            self[key] = value


_wrapper_types: list[type] = []
_unwrapped = WeakKeyPtrDict()


def registerWrapperType(wrapper_type):
    """Says that objects of this class are wrapped ones of its first base class."""
    if wrapper_type in _wrapper_types:
        raise AssertionError(f"{wrapper_type.__name__} was registered before.")
    _wrapper_types.append(wrapper_type)


def isWrapped(obj):
    return isinstance(obj, tuple(_wrapper_types))


def unwrapIfWrapped(obj):
    if isWrapped(obj):
        obj.__class__ = type(obj).__bases__[0]
    return obj


def traceMethod(label):
    """Wraps a method in a trace point of its object's profiling channel."""

    def decorate(method: Any) -> Any:
        @functools.wraps(method)
        def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
            with self._profiling.tracepoint(label):
                return method(self, *args, **kwargs)

        return traced

    return decorate


_CHANGING = (
    torch.nn.BatchNorm1d,
    torch.nn.BatchNorm2d,
    torch.nn.BatchNorm3d,
)  # their buffers change in forward()


def forEachParameterAndBuffer(model, fn):
    """Calls fn(name, tensor), leaving out statistics that a training step changes by design."""
    steady = ((path, module) for path, module in model.named_modules() if not isinstance(module, _CHANGING))
    buffers = (module.named_buffers(prefix=path, recurse=False) for path, module in steady)
    for name, tensor in itertools.chain(*buffers, model.named_parameters()):
        fn(name, tensor)


def unwrapModelIfNecessary(model: torch.nn.Module):
    for thing in (*model.buffers(), *model.parameters(), model):
        if isWrapped(thing):
            _unwrapped[thing] = type(thing)
            unwrapIfWrapped(thing)


def rewrapModelIfNecessary(model: torch.nn.Module):
    for thing in (*model.buffers(), *model.parameters(), model):
        wrapper = _unwrapped.get(thing)
        if wrapper is not None:
            thing.__class__ = wrapper


def getBufferAndParameterTensors(model):
    tensors: dict[str, torch.Tensor] = {}
    forEachParameterAndBuffer(model, tensors.__setitem__)
    return tensors


def getBufferAndParameterAddresses(model):
    """Where each buffer and each parameter lies: two dictionaries by name."""
    parameters = {name: (p.device, p.data_ptr()) for name, p in model.named_parameters()}
    tensors = getBufferAndParameterTensors(model)
    buffers = {name: (b.device, b.data_ptr()) for name, b in tensors.items() if name not in parameters}
    return buffers, parameters


def errorOnBufferOrParameterAddressChanges(old_addresses, new_addresses):
    """Refuses a forward() that put another tensor in the place of a buffer or parameter: the device has the old one."""
    for kind, old, new in zip(("buffer", "parameter"), old_addresses, new_addresses, strict=True):
        for name, address in old.items():
            if name not in new:
                raise createPoptorchError(f"forward() removes the {kind} {name} from the model.")
            if new[name] != address:
                raise createPoptorchError(
                    f"forward() puts a new tensor in the place of the {kind} {name}, which the compiled program does "
                    f"not see. Change it in place: self.{name}.copy_(value)."
                )
