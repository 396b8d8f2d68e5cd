"""Gradients on their way to the host: taken layer by layer as backward makes them, and copied down beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from portwright.errors import UserError
from portwright.runtime.streaming.lanes import DONE, Lanes, Mark
from portwright.runtime.streaming.unit import Unit, dense_stride

CopyDown = Callable[
    [Tensor, Tensor], Mark
]  # host bytes, device bytes; in the current lane, and when the host has them


class GradientLayout:
    """Where the gradients of a layer's trained weights lie in flat memory."""

    def __init__(self, unit: Unit) -> None:
        self.starts: list[int] = []
        self._entries = [unit.entries[index] for index in unit.trained]
        self.num_bytes = 0
        for entry in self._entries:
            self.starts.append(self.num_bytes)
            self.num_bytes += -(-entry.num_bytes // 256) * 256

    def views(self, flat: Tensor) -> list[Tensor]:
        views = []
        for start, entry in zip(self.starts, self._entries, strict=True):
            part = flat[start : start + entry.num_bytes].view(entry.dtype)
            views.append(part.as_strided(entry.master.shape, dense_stride(entry.master)))
        return views


@dataclass
class HostGradients:
    """A place of the host's ring, and what lies in it."""

    buffer: Tensor
    unit: Unit | None = None
    views: list[Tensor] = field(default_factory=list)


@dataclass
class Arrival:
    """The gradients of one layer from one backward pass: on the host once `mark` is reached."""

    unit: Unit
    place: HostGradients
    mark: Mark
    present: list[int]  # positions in `unit.trained` that got a gradient
    norms: list[Tensor]  # of those, on the device; empty where nobody wants them


@dataclass
class _Open:
    """A layer whose backward is going on."""

    buffer_index: int
    views: list[Tensor]
    present: list[int]


class Gradients:
    """Takes gradients from the stand-ins; `deliver` gets each layer's when its backward is over."""

    def __init__(
        self,
        units: list[Unit],
        lanes: Lanes,
        copy_down: CopyDown,
        ring: list[Tensor],
        deliver: Callable[[Arrival], None],
        num_buffers: int = 2,
    ) -> None:
        self._lanes, self._copy_down, self._deliver = lanes, copy_down, deliver
        self._layouts = {unit: GradientLayout(unit) for unit in units}
        size = largest_gradient(units)
        self._buffers = [
            torch.empty(size, dtype=torch.uint8, device=lanes.device)
            for _ in range(num_buffers if size else 0)
        ]
        self._sent: list[Mark] = [DONE] * len(self._buffers)
        self._next_buffer = 0
        self.num_bytes = size * len(self._buffers)
        self.wants_norms = False
        self._open: dict[Unit, _Open] = {}
        self._finished: set[Unit] = set()
        self._free = [HostGradients(buffer) for buffer in ring]
        self._returned = threading.Condition()
        self._failure: BaseException | None = None
        for unit in units:
            for position, index in enumerate(unit.trained):
                self._watch(unit, position, unit.stand_ins[index])

    def _watch(self, unit: Unit, position: int, stand_in: torch.nn.Parameter) -> None:
        def take(parameter: Tensor) -> None:
            self._take(unit, position, parameter)

        stand_in.register_post_accumulate_grad_hook(take)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """A backward pass is about to come."""
        self._finished.clear()

    def _take(self, unit: Unit, position: int, parameter: Tensor) -> None:
        grad = parameter.grad
        parameter.grad = None
        if grad is None:
            return
        if unit in self._finished:
            raise UserError(
                f"the layer '{unit.name}' got another gradient after its own backward pass was over.",
                f"Leave it out of runconfig.streaming.layers, or use runconfig.execution: resident ({unit.entries[unit.trained[position]].name}).",
            )
        opened = self._open.get(unit)
        if opened is None:
            index = self._next_buffer
            if any(other.buffer_index == index for other in self._open.values()):
                self._finish(next(u for u, other in self._open.items() if other.buffer_index == index))
            self._next_buffer = (index + 1) % len(self._buffers)
            self._lanes.wait_for(self._sent[index])
            opened = self._open[unit] = _Open(index, self._layouts[unit].views(self._buffers[index]), [])
        opened.views[position].copy_(grad.to_dense() if grad.is_sparse else grad)
        opened.present.append(position)
        if len(opened.present) == len(unit.trained):
            self._finish(unit)

    def left_for(self, unit: Unit) -> None:
        """Backward has come to `unit`: all that came before it is over."""
        for other in [u for u in self._open if u is not unit]:
            self._finish(other)

    def end(self) -> None:
        """The backward pass is over."""
        for unit in list(self._open):
            self._finish(unit)

    def abandon(self) -> None:
        """An error ended the pass: what has not been sent is dropped."""
        self._open.clear()

    def _finish(self, unit: Unit) -> None:
        opened = self._open.pop(unit)
        self._finished.add(unit)
        opened.present.sort()
        norms = [_norm(opened.views[p]) for p in opened.present] if self.wants_norms else []
        layout, buffer = self._layouts[unit], self._buffers[opened.buffer_index]
        place = self._take_place()
        made = self._lanes.mark()
        with self._lanes.on("down"):
            self._lanes.wait_for(made)
            mark = self._copy_down(place.buffer[: layout.num_bytes], buffer[: layout.num_bytes])
            self._sent[opened.buffer_index] = self._lanes.mark()
        place.unit, place.views = unit, layout.views(place.buffer)
        self._deliver(Arrival(unit, place, mark, opened.present, norms))

    def _take_place(self) -> HostGradients:
        with self._returned:
            self._returned.wait_for(lambda: bool(self._free) or self._failure is not None)
            if self._failure is not None:
                raise self._failure
            return self._free.pop()

    def give_back(self, place: HostGradients) -> None:
        """The host has no use for these any more."""
        with self._returned:
            place.unit, place.views = None, []
            self._free.append(place)
            self._returned.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._returned:
            self._failure = error
            self._returned.notify_all()


def largest_gradient(units: list[Unit]) -> int:
    """Bytes of the layer whose gradients take the most."""
    return max((GradientLayout(unit).num_bytes for unit in units), default=0)


def _norm(grad: Tensor) -> Tensor:
    if grad.dtype in (torch.float16, torch.bfloat16):
        norm: Tensor = torch.linalg.vector_norm(grad, dtype=torch.float32)
        return norm
    return torch._foreach_norm([grad])[0]
