"""Inputs of checkpointed layers in host memory: they leave the device in forward, and are back before their layer is computed again."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import torch
from torch import Tensor

from portwright.errors import UserError
from portwright.runtime.streaming.lanes import DONE, Lanes, Mark
from portwright.runtime.streaming.staging import Copy, Staging
from portwright.runtime.streaming.unit import dense_stride

MIN_BYTES = 1 << 20  # smaller ones cost more to move than they take
_NUM_RECENT = 2  # inputs that stay: backward begins with them
_MOST_KNOWN = 1000


class OffloadedActivations:
    """A context for `checkpoint(layer, x, use_reentrant=False)`: what it keeps for backward goes to the host, to the bit.

    Tensors that several layers get (a mask, an encoder's output) stay on the device, as do those in keyword arguments.
    Host buffers are made once and used again, step after step.
    """

    def __init__(
        self, lanes: Lanes, staging: Staging, min_bytes: int = MIN_BYTES, num_ahead: int = 1
    ) -> None:
        self._lanes, self._staging = lanes, staging
        self._min_bytes, self._num_ahead = min_bytes, num_ahead
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._recent: deque[_Saved] = deque()
        self._leaving: _Saved | None = None
        self._arriving: list[tuple[Tensor, Mark]] = []
        self._last: weakref.ref[_Saved] | None = None
        self._known: dict[int, tuple[weakref.ref[Any], weakref.ref[_Saved]]] = {}
        self._buffers = _Buffers(staging)

    def __enter__(self) -> OffloadedActivations:
        self._hooks.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._hooks.__exit__(*failure)

    @property
    def host_bytes(self) -> int:
        """Bytes of all buffers, in use or not."""
        return self._buffers.num_bytes

    def forget(self) -> None:
        """Called when a step is over or was abandoned: drops what it left on the device."""
        self._recent.clear()
        self._let_go()
        self._drop_unused()
        self._known.clear()
        self._last = None

    def _pack(self, tensor: Tensor) -> _Saved | Tensor:
        if not self._is_worth_it(tensor):
            return tensor
        self._drop_unused()
        shared = self._shared(tensor)
        if shared is not None:
            shared.stay(tensor)
            return shared
        saved = _Saved(tensor, self._last)
        storage = tensor.untyped_storage()
        if len(self._known) >= _MOST_KNOWN:
            self._known = {key: refs for key, refs in self._known.items() if refs[0]() and refs[1]()}
        self._known[storage._cdata] = (weakref.ref(storage), weakref.ref(saved))
        self._last = weakref.ref(saved)
        self._recent.append(saved)
        while len(self._recent) > _NUM_RECENT:
            self._send(self._recent.popleft())
        return saved

    def _unpack(self, saved: _Saved | Tensor) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        if saved.on_device is not None:
            saved.check()
            tensor = saved.on_device
        else:
            tensor = self._fetched(saved)
        if saved in self._recent:
            self._recent.remove(saved)  # backward is here: the graph holds it as long as it is needed
        elif saved is self._leaving:
            self._lanes.wait_for(saved.read)
            self._leaving = None
        before = saved.before
        for _ in range(self._num_ahead):
            earlier = None if before is None else before()
            if earlier is None:
                break
            if earlier.on_device is None and earlier.arriving is None:
                self._fetch(earlier)
            before = earlier.before
        return tensor

    def _is_worth_it(self, tensor: Tensor) -> bool:
        return (
            type(tensor) is Tensor
            and tensor.device.type == self._lanes.device.type
            and tensor.layout is torch.strided
            and tensor.nbytes > 0
            and tensor.nbytes >= self._min_bytes
            and not (tensor.is_conj() or tensor.is_neg())
            and (tensor.is_contiguous() or tuple(tensor.stride()) == dense_stride(tensor))
        )

    def _shared(self, tensor: Tensor) -> _Saved | None:
        """The same values, kept for an earlier layer of this pass."""
        storage_ref, saved_ref = self._known.get(tensor.untyped_storage()._cdata, (None, None))
        saved = None if saved_ref is None else saved_ref()
        if saved is None or storage_ref is None or storage_ref() is not tensor.untyped_storage():
            return None
        return saved if saved.is_same(tensor) else None

    def _send(self, saved: _Saved) -> None:
        if saved.stays or saved.on_device is None:
            return
        self._let_go()
        saved.note_change()
        saved.buffer, last_use = self._buffers.take(saved.num_bytes)
        self._buffers.give_back_with(saved)
        made = self._lanes.mark()
        with self._lanes.on("activations down"):
            self._lanes.wait_for(made)
            self._lanes.wait_for(last_use)
            stream = self._lanes.stream("activations down")
            saved.left = self._staging.down(saved.host_bytes(), _flat(saved.on_device), stream)
            saved.read = self._lanes.mark()
        self._leaving = saved

    def _let_go(self) -> None:
        """Frees the device's memory of what was sent last, for work that comes after the copy.

        One layer later the copy is long done, so that the computation does not really wait, nor does the host.
        """
        saved, self._leaving = self._leaving, None
        if saved is None:
            return
        self._lanes.wait_for(saved.read)
        saved.note_change()
        if not saved.stays:
            saved.on_device = None

    def _fetch(self, saved: _Saved) -> None:
        assert saved.left is not None
        flat = torch.empty(saved.num_bytes, dtype=torch.uint8, device=self._lanes.device)
        made = self._lanes.mark()
        with self._lanes.on("activations up"):
            self._lanes.wait_for(made)  # the memory may have been in use until then
            if saved.left.in_stream is None:
                saved.left.synchronize()
            else:
                self._lanes.wait_for(saved.left.in_stream)
            copy = self._staging.up(flat, saved.host_bytes(), self._lanes.stream("activations up"))
        assert copy.in_stream is not None
        saved.last_use.mark = copy.in_stream
        saved.arriving = (flat, copy.in_stream)
        self._arriving.append(saved.arriving)

    def _fetched(self, saved: _Saved) -> Tensor:
        saved.check()
        if saved.arriving is None:
            self._fetch(saved)
        assert saved.arriving is not None
        flat, mark = saved.arriving
        self._lanes.wait_for(mark)
        self._arriving = [pair for pair in self._arriving if pair is not saved.arriving]
        saved.arriving = None  # the layer has it now
        return flat.view(saved.dtype).as_strided(saved.shape, saved.stride)

    def _drop_unused(self) -> None:
        """Drops what was fetched for a backward pass that an error ended, once the copies into that memory are done."""
        for _, mark in self._arriving:
            self._lanes.wait_for(mark)
        self._arriving.clear()


class _LastUse:
    def __init__(self) -> None:
        self.mark: Mark = DONE


class _Saved:
    """One tensor that autograd keeps; lives as long as the graph that wants it."""

    def __init__(self, tensor: Tensor, before: weakref.ref[_Saved] | None) -> None:
        self.on_device: Tensor | None = tensor
        self.shape, self.stride, self.dtype = tensor.shape, tensor.stride(), tensor.dtype
        self.num_bytes = tensor.nbytes
        self.before = before  # what was kept before it is wanted after it
        self.stays = False
        self.buffer: Tensor | None = None
        self.left: Copy | None = None  # until the host has it
        self.read: Mark = DONE  # until the device's memory has been read
        self.arriving: tuple[Tensor, Mark] | None = None
        self.last_use = _LastUse()  # of the buffer
        self._offset, self._version = tensor.storage_offset(), tensor._version
        self._was_changed = False

    def is_same(self, tensor: Tensor) -> bool:
        return (tensor.shape, tensor.stride(), tensor.dtype, tensor.storage_offset(), tensor._version) == (
            self.shape, self.stride, self.dtype, self._offset, self._version,
        )  # fmt: skip

    def stay(self, tensor: Tensor) -> None:
        self.on_device, self.stays = tensor, True

    def host_bytes(self) -> Tensor:
        assert self.buffer is not None
        return self.buffer[: self.num_bytes]

    def note_change(self) -> None:
        """Notes the tensor's version: until it is copied, it must not be written to."""
        if self.on_device is not None and self.on_device._version != self._version:
            self._was_changed = True

    def check(self) -> None:
        self.note_change()
        if self._was_changed:
            raise UserError(
                f"the input of a streamed layer, of shape {tuple(self.shape)}, was changed in place after the layer was called, "
                "and backward needs it as it was.",
                "Replace the operation (`x += y`, ReLU(inplace=True)) by one that makes a new tensor.",
            )


class _Buffers:
    """Host memory that comes back with the graph that used it."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._free: list[tuple[Tensor, _LastUse]] = []
        self._returned: deque[tuple[Tensor, _LastUse]] = deque()  # filled by finalizers, in any thread
        self.num_bytes = 0

    def take(self, num_bytes: int) -> tuple[Tensor, Mark]:
        """The smallest that is large enough and not twice too large, and the last work that reads it."""
        while self._returned:
            self._free.append(self._returned.popleft())
        fitting = [i for i, (b, _) in enumerate(self._free) if num_bytes <= b.numel() <= 2 * num_bytes]
        if fitting:
            buffer, last_use = self._free.pop(min(fitting, key=lambda i: self._free[i][0].numel()))
            return buffer, last_use.mark
        size = -(-num_bytes // 4096) * 4096
        buffer = self._staging.store.array(f"activations of {size} bytes", size, "activations")
        self.num_bytes += size
        return buffer, DONE

    def give_back_with(self, saved: _Saved) -> None:
        weakref.finalize(saved, self._returned.append, (saved.buffer, saved.last_use)).atexit = False  # type: ignore[arg-type]


def _flat(tensor: Tensor) -> Tensor:
    """Its memory in the order in which it lies."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
