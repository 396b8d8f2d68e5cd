"""Sees every op of a trace below autograd, and keeps it as a node of our own graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from portwright.graph.capturing.guesses import guess_shape
from portwright.graph.capturing.trace import tensors_in

if TYPE_CHECKING:
    from portwright.emulate.poptorch._watch import Watch

aten = torch.ops.aten

# Handles of a tensor that autograd and torch.fx make for themselves.
_SAME = {aten.detach.default, aten.alias.default, aten.lift.default, aten.lift_fresh.default}
_READS = {aten._local_scalar_dense.default, aten.item.default, aten.equal.default, aten.allclose.default}
# Their results have sizes that PopTorch knows from the arguments.
_SIZED = {aten.bincount.default, aten._ctc_loss.default, aten._ctc_loss.Tensor, aten.linalg_lstsq.default}
# Indices given as a list are made on the host by torch itself; a copy is how a constant gets onto the IPU.
_TAKE_HOST = {"index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_", "copy_", "copy"}
_INT32 = torch.iinfo(torch.int32)
_QUIET = {torch.ops.prim.device.default} if hasattr(torch.ops.prim, "device") else set()


class Residence:
    """Which tensors are on the IPU; others are the host's, and the host may look at them.

    On the IPU are weights, buffers, inputs, what is made there, and what is computed from any of these.
    """

    def __init__(self) -> None:
        self._on_ipu: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._on_host: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def add(self, tensor: Tensor) -> None:
        self._on_ipu[tensor] = True

    def add_host(self, tensor: Tensor) -> None:
        """A tensor that the model brought; one that a function makes for itself is where its arguments are."""
        self._on_host[tensor] = True

    def sort(self, tensors: list[Tensor]) -> bool:
        """Keeps those of the arguments of a function that are the host's; whether some are the IPU's."""
        hosts = [tensor for tensor in tensors if not self.has(tensor)]
        for tensor in hosts:
            self.add_host(tensor)
        return len(hosts) < len(tensors)

    def is_host(self, tensor: Tensor) -> bool:
        return tensor in self._on_host and tensor not in self._on_ipu

    def has(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and tensor in self._on_ipu


class Recorder(TorchDispatchMode):
    """Keeps the ops of the forward pass; those of the gradients only get their tag."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        watch = self._watch
        if watch.is_paused or func in _QUIET or watch.phase in ("before", "after"):
            return func(*args, **kwargs)
        given = tensors_in((*args, *kwargs.values()))
        if watch.phase == "backward":
            if func not in _SAME:
                watch.note_kept(given)
            return func(*args, **kwargs)
        has_ipu = any(map(watch.residence.has, given))
        stray = next(filter(watch.residence.is_host, given), None)
        is_device = has_ipu or (watch.makes_on_ipu and stray is None)
        if func in _SAME:
            result = func(*args, **kwargs)
            watch.alias(result, args[0])
            if func is aten.lift_fresh.default:
                _check_range(watch, result)
            if is_device or (func is aten.lift_fresh.default and watch.makes_on_ipu):
                watch.residence.add(result)
            return result
        if has_ipu and not watch.num_trusted:
            if stray is not None and func._opname not in _TAKE_HOST:
                raise watch.refuse_host_tensor(str(func), stray)
            if func in _READS:
                raise watch.refuse_read(str(func))
            if func not in _SIZED and guess_shape(func, args, kwargs) is not None:
                raise watch.refuse_shape(str(func))
        result = func(*args, **kwargs)
        results = tensors_in((result,))
        if not given:
            for tensor in results:
                _check_range(watch, tensor)
        watch.add_node(str(func), args, kwargs, results, is_device)
        for tensor in results:
            if is_device:
                watch.residence.add(tensor)
            else:
                watch.residence.add_host(tensor)
        return result


def _check_range(watch: Watch, tensor: Tensor) -> None:
    """A constant of 64 bits is one of 32 on an IPU."""
    if tensor.dtype is not torch.int64 or not tensor.numel():
        return
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        low, high = int(tensor.min()), int(tensor.max())
    if low < _INT32.min or high > _INT32.max:
        raise watch.refuse_here(
            f"a constant of torch.int64 has the value {high if high > _INT32.max else low}: IPUs compute with 32-bit integers. Use "
            f"one from {_INT32.min} to {_INT32.max}"
        )
