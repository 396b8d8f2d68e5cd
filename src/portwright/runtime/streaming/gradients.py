"""Gradients on their way to the host: taken layer by layer as backward makes them, and copied down beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from portwright.errors import UserError
from portwright.runtime.streaming.lanes import DONE, Lanes, Mark
from portwright.runtime.streaming.unit import Unit, aligned

# host bytes, device bytes; in the current lane, and when the host has them
CopyDown = Callable[[Tensor, Tensor], Mark]


class GradientLayout:
    """Where the gradients of a layer's trained weights lie in flat memory."""

    def __init__(self, unit: Unit) -> None:
        self.starts: list[int] = []
        self._entries = [unit.entries[index] for index in unit.trained]
        self.num_bytes = 0
        for entry in self._entries:
            self.starts.append(self.num_bytes)
            self.num_bytes += aligned(entry.num_bytes)

    def runs(self, positions: list[int]) -> list[tuple[int, int]]:
        """The bytes of these gradients, neighbours together."""
        found: list[tuple[int, int]] = []
        for position in positions:
            first = self.starts[position]
            last = first + aligned(self._entries[position].num_bytes)
            if found and found[-1][1] == first:
                found[-1] = (found[-1][0], last)
            else:
                found.append((first, last))
        return found

    def views(self, flat: Tensor) -> list[Tensor]:
        views = []
        for start, entry in zip(self.starts, self._entries, strict=True):
            part = flat[start : start + entry.num_bytes].view(entry.dtype)
            views.append(part.as_strided(entry.master.shape, entry.stride))
        return views

    def host_views(self, place: Tensor) -> list[Tensor]:
        """The same bytes in a place of the host's ring."""
        return self.views(place)


@dataclass(eq=False)
class Delivery:
    """The gradients of one layer from one backward pass, which come to the host in pieces."""

    unit: Unit
    buffer: Tensor | None  # a place of the host's ring; None: nothing came in this pass, but in one before
    views: list[Tensor]  # of it, by position in `unit.trained`
    num_open: int = 0  # pieces still in work
    is_whole: bool = False  # no more pieces will come


@dataclass(eq=False)
class Piece:
    """Some gradients of a delivery: on the host once `mark` is reached."""

    delivery: Delivery
    mark: Mark
    positions: list[int]
    is_final: bool
    is_done: bool = (
        False  # the device has updated the weights itself, and all of it is on the host with `mark`
    )


# Updates a weight on the device: (unit, position, flat gradient, when it is there) -> when the gradient is used, when all is done.
UpdateHere = Callable[[Unit, int, Tensor, Mark], tuple[Mark, Mark]]


@dataclass(eq=False)
class _Open:
    """A layer whose backward is going on."""

    buffer_index: int
    views: list[Tensor]  # on the device
    delivery: Delivery
    waiting: list[int]  # small ones, which go together at the end
    num_taken: int = 0


class Gradients:
    """Takes gradients from the stand-ins; `deliver` gets large ones at once, and the rest when the layer's backward is over."""

    # elements of a gradient that is sent by itself, so that its update begins before the layer's end
    alone_from: float = 1 << 20
    _sums_first = False  # gradients are averaged over processes before norms are taken

    def __init__(
        self,
        units: list[Unit],
        lanes: Lanes,
        copy_down: CopyDown,
        ring: list[Tensor],
        deliver: Callable[[Piece], None],
        num_buffers: int = 2,
    ) -> None:
        self._lanes, self._copy_down, self._deliver = lanes, copy_down, deliver
        self._layouts = {unit: self._lay_out(unit) for unit in units}
        size = max((layout.num_bytes for layout in self._layouts.values()), default=0)
        self._buffers = [
            torch.empty(size, dtype=torch.uint8, device=lanes.device)
            for _ in range(num_buffers if size else 0)
        ]
        self._sent: list[list[Mark]] = [[] for _ in self._buffers]  # marks after which a buffer is free
        self.here: set[Unit] = set()  # layers that are updated on the device
        self.update_here: UpdateHere | None = None
        self._next_buffer = 0
        self.num_bytes = size * len(self._buffers)
        self.wants_norms = False
        self.is_scaled = False  # the loss, and so the gradients
        self.norms: dict[Tensor, Tensor] = {}  # of the gradients since `begin`, by master
        self._open: dict[Unit, _Open] = {}
        self._hooks: list[Any] = []
        self._finished: set[Unit] = set()
        self._free = list(ring)
        self._returned = threading.Condition()
        self._failure: BaseException | None = None
        for unit in units:
            for position, index in enumerate(unit.trained):
                self._watch(unit, position, unit.stand_ins[index])

    def _lay_out(self, unit: Unit) -> GradientLayout:
        return GradientLayout(unit)

    def _watch(self, unit: Unit, position: int, stand_in: torch.nn.Parameter) -> None:
        def take(parameter: Tensor) -> None:
            self._take(unit, position, parameter)

        self._hooks.append(stand_in.register_post_accumulate_grad_hook(take))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Lets go of the stand-ins: a hook is a reference that Python's collector does not see."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def begin(self) -> None:
        """To be called before a backward pass."""
        self._finished.clear()
        self.norms.clear()

    def _take(self, unit: Unit, position: int, parameter: Tensor) -> None:
        grad = parameter.grad
        parameter.grad = None
        if grad is None:
            return
        entry = unit.entries[unit.trained[position]]
        if unit in self._finished:
            raise UserError(
                f"the layer '{unit.name}' got another gradient (of '{entry.name}') after its own backward pass was over.",
                "Leave it out of runconfig.streaming.layers, or use runconfig.execution: resident.",
            )
        opened = self._open.get(unit) or self._begin_unit(unit)
        view = opened.views[position]
        view.copy_(grad.to_dense() if grad.is_sparse else grad)
        if self.wants_norms and not self._sums_first:
            self.norms[entry.master] = norm_of(view, self.is_scaled)
        opened.num_taken += 1
        is_final = opened.num_taken == len(unit.trained)
        if grad.numel() >= self.alone_from and not is_final:
            self._send(unit, opened, [position])
        else:
            opened.waiting.append(position)
        if is_final:
            self._finish(unit)

    def _begin_unit(self, unit: Unit) -> _Open:
        index = self._next_buffer
        for other in [u for u, opened in self._open.items() if opened.buffer_index == index]:
            self._finish(other)
        self._next_buffer = (index + 1) % len(self._buffers)
        for mark in self._sent[index]:
            self._lanes.wait_for(mark)
        self._sent[index] = []
        layout, place = self._layouts[unit], None if unit in self.here else self._take_place()
        delivery = Delivery(unit, place, [] if place is None else layout.host_views(place))
        opened = self._open[unit] = _Open(index, layout.views(self._buffers[index]), delivery, [])
        return opened

    def left_for(self, unit: Unit) -> None:
        """To be called when backward reaches a call of `unit`: the layer before it is done."""
        if unit in self._finished:  # its weights are being updated, and this call was made with the old ones
            raise UserError(
                f"the layer '{unit.name}' is called several times, and not every call uses all that it trains.",
                "Leave it out of runconfig.streaming.layers, or use runconfig.execution: resident.",
            )
        for other in [u for u in self._open if u is not unit]:
            self._finish(other)

    def end(self) -> None:
        """To be called after a backward pass."""
        for unit in list(self._open):
            self._finish(unit)

    def abandon(self) -> list[Delivery]:
        """Ends a pass after an error: drops what has not been sent; gives the deliveries that were begun."""
        begun = [opened.delivery for opened in self._open.values()]
        self._open.clear()
        return begun

    def _finish(self, unit: Unit) -> None:
        opened = self._open.pop(unit)
        self._finished.add(unit)
        self._send(unit, opened, sorted(opened.waiting), is_final=True)

    def _send(self, unit: Unit, opened: _Open, positions: list[int], is_final: bool = False) -> None:
        layout, place = self._layouts[unit], opened.delivery.buffer
        if place is None:
            self._update_here(unit, opened, positions, is_final)
            return
        buffer = self._buffers[opened.buffer_index]
        made = self._lanes.mark()
        mark: Mark = DONE
        with self._lanes.on("down"):
            self._lanes.wait_for(made)
            for first, last in layout.runs(positions):
                mark = self._copy_down(place[first:last], buffer[first:last])
            self._sent[opened.buffer_index].append(self._lanes.mark())
        self._deliver(Piece(opened.delivery, mark, positions, is_final))

    def _update_here(self, unit: Unit, opened: _Open, positions: list[int], is_final: bool) -> None:
        assert self.update_here is not None
        made, done = self._lanes.mark(), DONE
        for position in positions:
            view = opened.views[position]
            flat = view.as_strided((view.numel(),), (1,))
            used, done = self.update_here(unit, position, flat, made)
            self._sent[opened.buffer_index].append(used)
        self._deliver(Piece(opened.delivery, done, positions, is_final, is_done=True))

    def _take_place(self) -> Tensor:
        with self._returned:
            self._returned.wait_for(lambda: bool(self._free) or self._failure is not None)
            if self._failure is not None:
                raise self._failure
            return self._free.pop()

    def give_back(self, place: Tensor) -> None:
        """Frees a place of the host's ring."""
        with self._returned:
            self._free.append(place)
            self._returned.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._returned:
            self._failure = error
            self._returned.notify_all()


def largest_gradient(units: list[Unit]) -> int:
    """Bytes of the layer whose gradients take the most."""
    return max((GradientLayout(unit).num_bytes for unit in units), default=0)


def norm_of(grad: Tensor, is_scaled: bool = False) -> Tensor:
    """The norm as a resident session computes it; for a scaled loss, whose gradients may be huge, it is not finite only if one of them is not."""
    if grad.dtype in (torch.float16, torch.bfloat16):
        norm: Tensor = torch.linalg.vector_norm(grad, dtype=torch.float32)
    else:
        norm = torch._foreach_norm([grad])[0]
    if not is_scaled:
        return norm
    return torch.where(norm.isfinite(), norm.double(), torch.linalg.vector_norm(grad, dtype=torch.float64))
