"""Notes which torch function the user's code called, which module is running, and when a tensor leaves the device."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import _disable_current_modes

from portwright.graph.capturing.hosts import Hosts, tensors_in
from portwright.graph.capturing.tape import Tape
from portwright.patched import patched


@functools.cache
def _name(func: Any) -> str:
    return str(resolve_name(func) or getattr(func, "__name__", ""))


class CallWatch(TorchFunctionMode):
    """Names the torch function that runs, and decides where tensors are made and moved.

    Under capture all tensors are on the CPU. A device object is taken for the device of the step, as in
    `.to(x.device)`, unless the user's line says "cpu"; a device string is taken literally.
    """

    def __init__(self, tape: Tape, hosts: Hosts, in_step: bool) -> None:
        super().__init__()
        self.tape, self.hosts, self.in_step = tape, hosts, in_step

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        special = _SPECIAL.get(func)
        if special is not None:
            done, args, kwargs = special(self, func, args, kwargs)
            if done:
                return args
        tape, hosts = self.tape, self.hosts
        outer_call, outer_makes = tape.call, hosts.makes
        # Tensors that a call makes inside, as torch.triu makes positions, are where its arguments are.
        given = tensors_in((*args, *kwargs.values()))
        hosts.makes = self.in_step and all(map(hosts.has, given))
        is_plain = bool(given) and hosts.makes and not any(tensor.requires_grad for tensor in given)
        if kwargs.get("device") is not None:
            hosts.makes = hosts.makes and self.is_host(kwargs["device"])
            kwargs = {**kwargs, "device": self.real_device(kwargs["device"])}
        elif (default := _default_device()) is not None and func in _device_constructors():
            kwargs = {**kwargs, "device": self.real_device(default)}
        tape.call = outer_call or _name(func)
        try:
            # A target decomposes ops above autograd, but not those of the host.
            with torch._C._AutoDispatchBelowAutograd() if is_plain else nullcontext():
                return func(*args, **kwargs)
        finally:
            tape.call, hosts.makes = outer_call, outer_makes

    def is_host(self, device: Any) -> bool:
        if isinstance(device, str):
            return device.partition(":")[0] == "cpu"
        if device == _HOST:
            return True
        place, _ = self.tape.place()
        return place is not None and "cpu" in place.code and getattr(device, "type", "") == "cpu"

    def real_device(self, device: Any) -> Any:
        """Where a tensor is made under capture, whatever the user's code names."""
        try:
            named = torch.device(device)
        except (RuntimeError, TypeError):
            return device  # the call itself will refuse it
        if named.type in ("cpu", "meta"):
            return named
        self.note_device(named)
        return torch.device("cpu")

    def note_device(self, device: Any) -> None:
        self.tape.add_stop(
            "host_tensor",
            "aten._to_copy.default",
            f"the device {str(device)!r} is named, which is not the target's",
        )

    def note_read(self, op: str, name: str) -> None:
        self.tape.add_guess("host_read", op, f"a tensor is read on the host by torch.Tensor.{name}")

    def reads(self, tensor: Any) -> bool:
        """Whether the values of a tensor are unknown."""
        return isinstance(tensor, FakeTensor) and tensor.constant is None

    def leaves(self, tensor: Any) -> bool:
        return self.in_step and self.reads(tensor) and not self.hosts.has(tensor)


_HOST = torch.device("cpu", 0)
"""The `device` of a host tensor: the CPU for torch, yet unequal to the step's device, which has no index."""

# The original, since a target's mixed precision replaces it by its own function.
_F_DROPOUT = F.dropout
_Outcome = tuple[bool, Any, Any]  # whether it is done; then the result, else args and kwargs to go on with


def _device(watch: CallWatch, func: Any, args: Any, kwargs: Any) -> _Outcome:
    is_ours = watch.in_step and watch.hosts.has(args[0])
    return (True, _HOST, None) if is_ours else (False, args, kwargs)


def _default_device() -> torch.device | None:
    """What torch.set_default_device was given; to ask torch would make a tensor there."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def _to(watch: CallWatch, func: Any, args: Any, kwargs: Any) -> _Outcome:
    tensor, rest = args[0], list(args[1:])
    goal = rest[0] if rest and isinstance(rest[0], str | torch.device | Tensor) else kwargs.get("device")
    goal = kwargs.get("other", goal)
    if goal is None:
        return False, args, kwargs
    if isinstance(goal, Tensor):
        if watch.in_step and watch.hosts.has(tensor) and not watch.hosts.has(goal):
            tensor = watch.hosts.to_device(_converted(watch, tensor, goal.dtype))
        return False, (tensor, *rest), kwargs
    goes_to_host = watch.is_host(goal)
    if goes_to_host and watch.leaves(tensor):
        watch.note_read("aten._to_copy.default", "to")
    elif not goes_to_host and watch.in_step and watch.hosts.has(tensor):
        dtypes = [value for value in (*rest, kwargs.get("dtype")) if isinstance(value, torch.dtype)]
        tensor = watch.hosts.to_device(_converted(watch, tensor, dtypes[0] if dtypes else tensor.dtype))
    if rest and rest[0] is goal:
        rest[0] = watch.real_device(goal)
    return False, (tensor, *rest), kwargs


def _converted(watch: CallWatch, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A host tensor in its new type: a call that asks for a type and a device converts before it moves."""
    if tensor.dtype is dtype:
        return tensor
    convert: Tensor = watch.hosts.run(torch.ops.aten._to_copy.default, (tensor,), {"dtype": dtype})
    return convert


def _type(watch: CallWatch, func: Any, args: Any, kwargs: Any) -> _Outcome:
    kind = args[1] if len(args) > 1 else kwargs.get("dtype")
    if not isinstance(kind, str) or not watch.in_step:
        return False, args, kwargs
    watch.tape.add_stop(
        "host_tensor",
        "aten._to_copy.default",
        f"the tensor type {kind!r} is named, which belongs to another device",
    )
    return False, (args[0], kind.replace(".cuda.", ".")), {}


def _cpu(watch: CallWatch, func: Any, args: Any, kwargs: Any) -> _Outcome:
    if watch.leaves(args[0]):
        watch.note_read("aten._to_copy.default", "cpu")
    return False, args, kwargs


def _cuda(watch: CallWatch, func: Any, args: Any, kwargs: Any) -> _Outcome:
    watch.note_device(func.__name__)
    tensor = args[0]
    return True, watch.hosts.to_device(tensor) if watch.in_step and watch.hosts.has(tensor) else tensor, None


def _numpy(watch: CallWatch, func: Any, args: Any, kwargs: Any) -> _Outcome:
    tensor = args[0]
    if not watch.reads(tensor):
        return False, args, kwargs
    if watch.leaves(tensor):
        watch.note_read("aten._to_copy.default", func.__name__)
    dtype = torch.float32 if tensor.dtype is torch.bfloat16 else tensor.dtype
    with _disable_current_modes():
        # One element seen at every index, since a real array would take a large tensor's memory.
        return True, torch.ones((), dtype=dtype).expand(tensor.shape).numpy(), None


def _show(watch: CallWatch, func: Any, args: Any, kwargs: Any) -> _Outcome:
    if not watch.leaves(args[0]):
        return False, args, kwargs
    watch.note_read("aten._to_copy.default", func.__name__)
    return True, f"tensor(..., size={tuple(args[0].shape)}, dtype={args[0].dtype})", None


def _dropout(watch: CallWatch, func: Any, args: Any, kwargs: Any) -> _Outcome:
    """Dropout as one op with a boolean mask, as on every accelerator; only the CPU composes it of several."""
    names = ("input", "p", "training" if func is _F_DROPOUT else "train", "inplace")
    given = {"p": 0.5, names[2]: True, **dict(zip(names, args, strict=False)), **kwargs}
    tensor, rate = given["input"], given["p"]
    is_plain = watch.in_step and isinstance(tensor, Tensor) and not watch.hosts.has(tensor)
    if not is_plain or not given[names[2]] or given.get("inplace") or not 0 < rate < 1:
        return False, args, kwargs
    watch.tape.call, outer = watch.tape.call or "torch.nn.functional.dropout", watch.tape.call
    try:
        return True, torch.native_dropout(tensor, rate, True)[0], None
    finally:
        watch.tape.call = outer


_SPECIAL: dict[Any, Callable[[CallWatch, Any, Any, Any], _Outcome]] = {
    Tensor.to: _to,
    Tensor.type_as: _to,
    Tensor.device.__get__: _device,
    Tensor.type: _type,
    Tensor.cpu: _cpu,
    Tensor.cuda: _cuda,
    Tensor.xpu: _cuda,
    Tensor.numpy: _numpy,
    Tensor.__array__: _numpy,
    Tensor.__repr__: _show,
    Tensor.__format__: _show,
    _F_DROPOUT: _dropout,
    torch.dropout: _dropout,
}


@contextmanager
def watch_lists(watch: CallWatch) -> Iterator[None]:
    """Watches `tolist()`, which fake tensors implement themselves."""
    original = FakeTensor.tolist

    def tolist(tensor: FakeTensor) -> Any:
        if not watch.reads(tensor):
            return original(tensor)
        if watch.leaves(tensor):
            watch.note_read("aten._local_scalar_dense.default", "tolist")
        with _disable_current_modes():
            listed: Any = torch.ones((), dtype=tensor.dtype).item()
        for size in reversed(tensor.shape):
            listed = [listed] * size
        return listed

    with patched(FakeTensor, "tolist", tolist):
        yield


_LIBRARIES = ("torch.", "portwright.layers.", "portwright.losses.")
_names: WeakKeyDictionary[type[nn.Module], str | None] = WeakKeyDictionary()


@contextmanager
def watch_modules(tape: Tape, paths: dict[int, str]) -> Iterator[None]:
    """Keeps the tape's stack of running modules; modules that are not the model's own belong to the one that calls them.

    Compiled modules run uncompiled, so that their ops are seen.
    """
    original = nn.Module.__call__
    thread = threading.get_ident()

    @functools.wraps(original)
    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return original(module, *args, **kwargs)
        written = getattr(module, "_orig_mod", None)
        if isinstance(written, nn.Module):
            return written(*args, **kwargs)
        path = paths.get(id(module))
        tape.modules.append((tape.module if path is None else path, _library_name(module)))
        outer, tape.call = tape.call, ""
        try:
            return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        except Exception:
            if tape.failed_module is None:
                tape.failed_module = tape.module
            raise
        finally:
            tape.call = outer
            tape.modules.pop()

    with patched(nn.Module, "__call__", call):
        yield


def _library_name(module: nn.Module) -> str | None:
    """The class of a library whose code a module runs; '' for code of the user's, None for a container of modules."""
    kind = type(module)
    if kind not in _names:
        owner = next((c for c in kind.__mro__ if "forward" in vars(c)), kind)
        name = f"{owner.__module__}.{owner.__qualname__}"
        if owner.__module__ == nn.Sequential.__module__:
            _names[kind] = None
        else:
            _names[kind] = name if name.startswith(_LIBRARIES) else ""
    return _names[kind]
