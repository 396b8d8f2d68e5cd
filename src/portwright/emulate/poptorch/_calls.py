"""Sees the torch functions that a model calls while it is traced: reads on the host, devices, types, losses, backward."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from portwright.emulate.poptorch import _losses
from portwright.graph.capturing.hosts import tensors_in

if TYPE_CHECKING:
    from portwright.emulate.poptorch._watch import Watch

IPU = torch.device("ipu:0")
"""What a tensor of the graph says that it is on, when the model asks; below, all of it is on the CPU."""

_TORCH = str(Path(torch.__file__).parent) + "/"
# whether it is done; the result, or args and kwargs
_Handler = Callable[["Calls", Any, Any, Any], tuple[bool, Any, Any]]

# What the real one puts on the IPU where no device is named: _SetDefaultDeviceType.
_FACTORIES = {
    getattr(torch, name)
    for name in (
        *("arange", "empty", "full", "full_like", "linspace", "logspace", "ones", "rand", "randint", "randn"),
        *("randperm", "range", "tensor", "zeros", "zeros_like", "normal"),
    )
}
# Torch refuses these for half and float together. Where PopTorch has a layer, its weights take the type of its input; other
# products are computed in float.
_LAYERS = {
    getattr(home, name)
    for home in (torch, F)
    for name in (
        *("linear", "bilinear", "conv1d", "conv2d", "conv3d", "layer_norm", "group_norm"),
        *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    )
    if hasattr(home, name)
}
_PRODUCTS = {
    getattr(home, name)
    for home in (torch, Tensor)
    for name in ("matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "addmm", "baddbmm", "addmv")
    if hasattr(home, name)
}
_LOWERED = {torch.float64: torch.float32}


class Calls(TorchFunctionMode):
    """Lies above the dispatcher, where a function still has its name."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch
        self._of_torch: dict[CodeType, bool] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        watch = self.watch
        if watch.is_paused or watch.phase not in ("forward", "backward"):
            return func(*args, **kwargs)
        if watch.phase == "backward":
            if func in _READS and not watch.is_readable(tensors_in((*args, *kwargs.values()))):
                raise watch.refuse_read(_name(func))
            return func(*args, **kwargs)
        handler = _backward if func is Tensor.backward else _HANDLERS.get(func)  # others may have replaced it
        if handler is not None:
            done, args, kwargs = handler(self, func, args, kwargs)
            if done:
                return args
        if func in _PRODUCTS or func in _LAYERS:
            args, kwargs = _unify(func, args, kwargs)
        kwargs = self._lower(func, kwargs)
        makes_outer = watch.makes_on_ipu
        given = tensors_in((*args, *kwargs.values()))
        # What a function makes beside the tensors that it is given lies where they lie.
        watch.makes_on_ipu = watch.residence.sort(given)
        if not given or func in _FACTORIES:
            watch.makes_on_ipu, kwargs = self._choose_device(func, kwargs, watch.makes_on_ipu)
        try:
            result = func(*args, **kwargs)
        finally:
            watch.makes_on_ipu = makes_outer
        if func in _losses.FUNCTIONS:
            watch.mark_loss(result, _losses.FUNCTIONS[func])
        return result

    def is_users_call(self) -> bool:
        """Whether the function was called outside of torch; asked from a handler."""
        frame: Any = sys._getframe(3)
        code = frame.f_code
        known = self._of_torch.get(code)
        if known is None:
            known = self._of_torch[code] = code.co_filename.startswith(_TORCH)
        return not known

    def _choose_device(self, func: Any, kwargs: Any, beside: bool) -> tuple[bool, Any]:
        device = kwargs.get("device")
        if device is None:
            if func in _FACTORIES and not beside and self.is_users_call():
                self.watch.note_once("no device is named in %s(): the tensor is made on the IPU", _name(func))
            return beside or func in _FACTORIES, kwargs
        if is_ipu(device):
            return True, {**kwargs, "device": torch.device("cpu")}
        if not self.is_users_call():
            return True, kwargs  # torch's own code goes where its input is
        if not is_cpu(device):
            raise self.watch.refuse_device(_name(func), device)
        return False, kwargs

    def _lower(self, func: Any, kwargs: Any) -> Any:
        lowered = _LOWERED.get(kwargs.get("dtype"))
        if lowered is None:
            return kwargs
        self.watch.note_once(
            "%s is asked for float64, which an IPU has not: it is float32 there", _name(func)
        )
        return {**kwargs, "dtype": lowered}


def _unify(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    given = tensors_in((*args, *kwargs.values()))
    if not {torch.float16, torch.float32} <= {tensor.dtype for tensor in given}:
        return args, kwargs
    dtype = given[0].dtype if func in _LAYERS else torch.float32

    def cast(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

    return tuple(map(cast, args)), {name: cast(value) for name, value in kwargs.items()}


def is_ipu(device: Any) -> bool:
    return _kind_of(device) == "ipu"


def is_cpu(device: Any) -> bool:
    return _kind_of(device) in ("cpu", "meta")


def _kind_of(device: Any) -> str:
    kind: str = device if isinstance(device, str) else getattr(device, "type", "")
    return kind.partition(":")[0]


def _name(func: Any) -> str:
    return str(resolve_name(func) or getattr(func, "__name__", "a function of torch"))


def _read(calls: Calls, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any, Any]:
    if any(map(calls.watch.residence.has, tensors_in((*args, *kwargs.values())))):
        raise calls.watch.refuse_read(_name(func))
    return False, args, kwargs


def _backward(calls: Calls, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any, Any]:
    raise calls.watch.refuse_backward(_name(func))


def _get_device(calls: Calls, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any, Any]:
    if calls.watch.residence.has(args[0]) and calls.is_users_call():
        return True, IPU, None
    return False, args, kwargs


def _to(calls: Calls, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any, Any]:
    tensor, rest = args[0], list(args[1:])
    rest = [_LOWERED.get(value, value) if isinstance(value, torch.dtype) else value for value in rest]
    position = next((i for i, value in enumerate(rest) if isinstance(value, (str, torch.device))), None)
    device = kwargs.get("device") if position is None else rest[position]
    if device is not None and calls.is_users_call():
        if not is_ipu(device) and not is_cpu(device):
            raise calls.watch.refuse_device(_name(func), device)
        if is_cpu(device) and calls.watch.residence.has(tensor):
            raise calls.watch.refuse_read(_name(func))
        if is_ipu(device):
            tensor = _put_on_ipu(calls, tensor)
            if position is None:
                kwargs = {**kwargs, "device": torch.device("cpu")}
            else:
                rest[position] = torch.device("cpu")
    if any(map(calls.watch.residence.has, [*rest, kwargs.get("other")])):
        tensor = _put_on_ipu(calls, tensor)  # x.to(y), x.type_as(y): to where y is
    return False, (tensor, *rest), kwargs


def _put_on_ipu(calls: Calls, tensor: Tensor) -> Tensor:
    on_ipu: Tensor = torch.ops.aten.alias.default(tensor)
    calls.watch.residence.add(on_ipu)
    return on_ipu


def _type(calls: Calls, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any, Any]:
    kind = args[1] if len(args) > 1 else kwargs.get("dtype")
    if isinstance(kind, str) and ".cuda." in kind:
        raise calls.watch.refuse_device(_name(func), kind)
    if kind in (torch.float64, "torch.DoubleTensor", torch.DoubleTensor):
        return False, (args[0], torch.float32), {}
    return False, args, kwargs


def _batch_norm(calls: Calls, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any, Any]:
    """Statistics in float beside weights in half, which torch refuses: they take part in the type of the input."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    statistics: list[Any] = [given.get("running_mean"), given.get("running_var")]
    weight: Any = given.get("weight")
    dtype = given["input"].dtype
    if not all(isinstance(tensor, Tensor) for tensor in (*statistics, weight)) or weight.dtype is not dtype:
        return False, args, kwargs
    if all(tensor.dtype is dtype for tensor in statistics):
        return False, args, kwargs
    cast = {name: given[name].to(dtype) for name in ("running_mean", "running_var")}
    result = func(**{**given, **cast})
    if given.get("training"):
        with torch.no_grad():
            for name, tensor in cast.items():
                given[name].copy_(tensor)
    return True, result, None


def _double(calls: Calls, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any, Any]:
    calls.watch.note_once("%s is asked for float64, which an IPU has not: it is float32 there", _name(func))
    return True, args[0].to(torch.float32), None


def _elsewhere(calls: Calls, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any, Any]:
    raise calls.watch.refuse_device(_name(func), func.__name__)


def _new(calls: Calls, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any, Any]:
    """`x.new_zeros(...)`, `torch.ones_like(x)`: made where x is, unless a device is named."""
    device = kwargs.get("device")
    if device is not None and is_ipu(device):
        kwargs = {**kwargs, "device": torch.device("cpu")}
    elif device is not None and not is_cpu(device):
        raise calls.watch.refuse_device(_name(func), device)
    return False, args, kwargs


_READS = {
    getattr(home, name)
    for home, names in (
        (
            Tensor,
            (
                "item",
                "tolist",
                "numpy",
                "cpu",
                "is_nonzero",
                "equal",
                "allclose",
                "__bool__",
                "__int__",
                "__float__",
            ),
        ),
        (
            Tensor,
            ("__index__", "__complex__", "__array__", "__repr__", "__format__", "__contains__", "data_ptr"),
        ),
        (
            Tensor,
            ("__dlpack__", "__deepcopy__", "__reduce_ex__", "untyped_storage", "storage", "_typed_storage"),
        ),
        (Tensor, ("share_memory_", "apply_", "map_", "map2_")),
        (torch, ("equal", "allclose", "is_nonzero", "to_dlpack")),
    )
    for name in names
    if hasattr(home, name)
}


def _one_hot(calls: Calls, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any, Any]:
    """torch's own looks at the values first, to check them."""
    given = {**dict(zip(("input", "num_classes"), args, strict=False)), **kwargs}
    tensor, num_classes = given["input"], given.get("num_classes", -1)
    if not calls.watch.residence.has(tensor):
        return False, args, kwargs
    if num_classes < 0:
        raise calls.watch.refuse_read("one_hot without num_classes")
    makes_outer, calls.watch.makes_on_ipu = calls.watch.makes_on_ipu, True
    try:
        classes = torch.arange(num_classes, dtype=tensor.dtype)
        return True, (tensor.unsqueeze(-1) == classes).to(torch.int64), None
    finally:
        calls.watch.makes_on_ipu = makes_outer


def _split(calls: Calls, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any, Any]:
    if calls.watch.residence.has(args[1] if len(args) > 1 else kwargs.get("tensor_indices_or_sections")):
        raise calls.watch.refuse_read("tensor_split by a tensor of indices")
    return False, args, kwargs


def _set_data(calls: Calls, func: Any, args: Any, kwargs: Any) -> tuple[bool, Any, Any]:
    raise calls.watch.refuse_here(
        "x.data = y puts another tensor in the place of x, which a compiled step does not see. Write into it: x.copy_(y) under "
        "torch.no_grad()"
    )


def _make_handlers() -> dict[Any, _Handler]:
    handlers: dict[Any, _Handler] = {
        Tensor.device.__get__: _get_device,
        Tensor.to: _to,
        Tensor.type_as: _to,
        F.batch_norm: _batch_norm,
        Tensor.type: _type,
        Tensor.double: _double,
        torch.autograd.grad: _backward,
        torch.autograd.backward: _backward,
    }
    handlers |= dict.fromkeys(_READS, _read)
    handlers |= {torch._C._nn.one_hot: _one_hot, torch.tensor_split: _split, Tensor.tensor_split: _split}
    handlers[Tensor.data.__set__] = _set_data  # type: ignore[attr-defined]
    for name in ("cuda", "xpu", "hpu", "ipu"):
        if hasattr(Tensor, name):
            handlers[getattr(Tensor, name)] = _elsewhere
    for name in ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"):
        handlers[getattr(Tensor, name)] = _new
    for name in ("empty_like", "ones_like", "rand_like", "randn_like", "randint_like"):
        handlers[getattr(torch, name)] = _new
    return handlers


_HANDLERS = _make_handlers()
