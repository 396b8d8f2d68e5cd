"""Watches a step run: each op that the dispatcher sees below autograd, and what the user's code called to get there."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

from portwright.graph.guesses import Guesses, guess_shape
from portwright.graph.tape import Tape

aten = torch.ops.aten

_DEVICE = torch.ops.prim.device.default
_SAME = {aten.detach.default, aten.alias.default, aten.lift.default}
_LIBRARIES = ("torch.", "portwright.layers.", "portwright.losses.")


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records each op into a tape; it lies above the mode that makes tensors fake."""

    supports_higher_order_operators = True

    def __init__(self, tape: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape
        self._guesses = Guesses(tape)
        self._names: dict[Any, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:
            tensor = args[0]
            return tensor.fake_device if isinstance(tensor, FakeTensor) else func(*args)
        kwargs = kwargs or {}
        tape = self._tape
        if func in _SAME:
            result = func(*args, **kwargs)
            tape.alias(result, args[0])
            return result
        if func is aten._local_scalar_dense.default or func is aten.item.default:
            return self._read_scalar(func, args[0])
        if func is aten.equal.default:
            tape.add_stop("host_read", str(func), "two tensors are compared on the host")
            return True
        guess = guess_shape(func, args, kwargs)
        if guess is not None:
            tape.add_stop(
                "dynamic_shape", str(func), "the size of the result depends on the values of a tensor"
            )
            result = guess(*args, **kwargs)
        else:
            result = func(*args, **kwargs)
        name = self._names.get(func)
        if name is None:
            name = self._names[func] = str(func)
        grad_node = torch._C._current_autograd_node() if tape.phase == "backward" else None
        tape.add_node(name, args, kwargs, _tensors(result), grad_node)
        return result

    def _read_scalar(self, func: Any, tensor: Tensor) -> Any:
        if not isinstance(tensor, FakeTensor) or tensor.constant is not None:
            return func(tensor)  # the host has it
        called = self._tape.call or self._tape.called
        by = f" by {called}" if called else ""
        self._tape.add_stop("host_read", str(func), f"the value of a tensor is read on the host{by}")
        return self._guesses.scalar(tensor)


def _tensors(result: Any) -> Iterable[Tensor]:
    if isinstance(result, Tensor):
        return (result,)
    if isinstance(result, list | tuple):
        return [tensor for part in result for tensor in _tensors(part)]
    return ()


class CallWatch(TorchFunctionMode):
    """Knows which torch function the user's code called, and sees tensors leave the device.

    Under capture all tensors are on the CPU, and so is the host: a move to the CPU is one to the host where the user's line
    says "cpu", and none where it names the device of another tensor.
    """

    def __init__(self, tape: Tape, in_step: bool) -> None:
        super().__init__()
        self._tape, self._in_step = tape, in_step
        self._names: dict[Any, str] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        special = _SPECIAL.get(func)
        if special is not None and (result := special(self, func, args, kwargs)) is not _GO_ON:
            return result
        if "device" in kwargs and kwargs["device"] is not None:
            kwargs = {**kwargs, "device": self._device(kwargs["device"], func)}
        name = self._names.get(func)
        if name is None:
            name = self._names[func] = resolve_name(func) or getattr(func, "__name__", "")
        tape = self._tape
        outer, tape.call = tape.call, tape.call or name
        try:
            return func(*args, **kwargs)
        finally:
            tape.call = outer

    def _device(self, device: Any, func: Any) -> Any:
        """Where a tensor really goes: nowhere."""
        try:
            device = torch.device(device)
        except RuntimeError:
            return device  # let the call itself refuse it
        if device.type in ("cpu", "meta"):
            return torch.device(device.type)
        self.note_device(device, func)
        return torch.device("cpu")

    def note_device(self, device: Any, func: Any) -> None:
        self._tape.add_stop(
            "host_tensor",
            "aten._to_copy.default",
            f"the device {str(device)!r} is named, and the step runs on the target",
        )

    def line_has(self, word: str) -> bool:
        place, _ = self._tape.place()
        return place is not None and word in place.code

    def note_read(self, op: str, name: str) -> None:
        self._tape.add_stop("host_read", op, f"a tensor is read on the host by {name}")


_GO_ON = object()


def _is_unknown(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.constant is None


def _to(watch: CallWatch, func: Any, args: Any, kwargs: Any) -> Any:
    devices = [a for a in args[1:2] if isinstance(a, str | torch.device)]
    device = devices[0] if devices else kwargs.get("device")
    if device is None:
        return _GO_ON
    try:
        target = torch.device(device)
    except RuntimeError:
        return _GO_ON
    if target.type != "cpu":
        watch.note_device(target, func)
    elif watch._in_step and _is_unknown(args[0]) and (isinstance(device, str) or watch.line_has("cpu")):
        watch.note_read("aten._to_copy.default", "torch.Tensor.to")
    here = torch.device("cpu")
    args = (args[0], here, *args[2:]) if devices else args
    kwargs = kwargs if devices else {**kwargs, "device": here}
    return func(*args, **kwargs)


def _cpu(watch: CallWatch, func: Any, args: Any, kwargs: Any) -> Any:
    if watch._in_step and _is_unknown(args[0]):
        watch.note_read("aten._to_copy.default", "torch.Tensor.cpu")
    return _GO_ON


def _cuda(watch: CallWatch, func: Any, args: Any, kwargs: Any) -> Any:
    watch.note_device(func.__name__, func)
    return args[0]


def _numpy(watch: CallWatch, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if not _is_unknown(tensor):
        return _GO_ON
    if watch._in_step:
        watch.note_read("aten._to_copy.default", f"torch.Tensor.{func.__name__}")
    import numpy as np

    dtype = torch.empty(0, dtype=tensor.dtype if tensor.dtype is not torch.bfloat16 else torch.float32)
    with torch.utils._python_dispatch._disable_current_modes():
        kind = torch.empty(0, dtype=dtype.dtype).numpy().dtype
    array = np.broadcast_to(np.ones((), dtype=kind), tuple(tensor.shape))
    return array.copy() if array.size <= 2**20 else array


def _tolist(watch: CallWatch, func: Any, args: Any, kwargs: Any) -> Any:
    tensor = args[0]
    if not _is_unknown(tensor):
        return _GO_ON
    if watch._in_step:
        watch.note_read("aten._local_scalar_dense.default", "torch.Tensor.tolist")
    one: Any = 1.0 if tensor.dtype.is_floating_point else tensor.dtype is not torch.bool and 1
    for size in reversed(tensor.shape):
        one = [one] * size
    return one


def _show(watch: CallWatch, func: Any, args: Any, kwargs: Any) -> Any:
    if watch._in_step and _is_unknown(args[0]):
        watch.note_read("aten._to_copy.default", f"torch.Tensor.{func.__name__}")
        return f"tensor(..., size={tuple(args[0].shape)}, dtype={args[0].dtype})"
    return _GO_ON


_SPECIAL: dict[Any, Callable[[CallWatch, Any, Any, Any], Any]] = {
    Tensor.to: _to,
    Tensor.cpu: _cpu,
    Tensor.cuda: _cuda,
    Tensor.xpu: _cuda,
    Tensor.numpy: _numpy,
    Tensor.__array__: _numpy,
    Tensor.tolist: _tolist,
    Tensor.__repr__: _show,
    Tensor.__format__: _show,
}


@contextmanager
def watch_modules(tape: Tape, paths: dict[int, str]) -> Iterator[None]:
    """Keeps the tape's stack of running modules; modules that are not the model's own belong to the one that calls them."""
    original = nn.Module.__call__
    thread = threading.get_ident()

    @functools.wraps(original)
    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return original(module, *args, **kwargs)
        path = paths.get(id(module))
        tape.modules.append((tape.module if path is None else path, _library_name(type(module))))
        outer, tape.call = tape.call, ""
        try:
            return original(module, *args, **kwargs)
        except Exception:
            if tape.failed_module is None:
                tape.failed_module = tape.module
            raise
        finally:
            tape.call = outer
            tape.modules.pop()

    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


@functools.cache
def _library_name(kind: Any) -> str | None:
    """The class of a library whose code a module runs; '' for code of the user's, None for a container of modules."""
    owner = next((c for c in kind.__mro__ if "forward" in vars(c)), kind)
    name = f"{owner.__module__}.{owner.__qualname__}"
    if owner.__module__ == nn.Sequential.__module__:
        return None
    return name if name.startswith(_LIBRARIES) else ""
