"""Adam on the device for some of the layers: their state passes over the bus in chunks while it would idle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from portwright.runtime.streaming.lanes import DONE, Lanes, Mark
from portwright.runtime.streaming.unit_update import NativeUpdate
from portwright.runtime.streaming.updates import Rates

CHUNK = 4 << 20  # elements that are on the device at once, in each of the chunks in flight
NUM_CHUNKS = 3


@dataclass(eq=False)
class _Chunk:
    weight: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    grad: Tensor
    half: Tensor
    free: Mark = DONE


class DeviceUpdate:
    """Three lanes: state up, the update itself, state down; a chunk of each is under way at any time.

    The CPU would read and write the same bytes of host memory for these layers, and the gradient on top.
    """

    def __init__(self, lanes: Lanes, half: torch.dtype, state_dtype: torch.dtype) -> None:
        self._lanes = lanes
        device = lanes.device

        def made(dtype: torch.dtype) -> Tensor:
            return torch.empty(CHUNK, dtype=dtype, device=device)

        self._chunks = [
            _Chunk(made(torch.float32), made(state_dtype), made(state_dtype), made(torch.float32), made(half))
            for _ in range(NUM_CHUNKS)
        ]
        self._state_dtype = state_dtype
        self._next = 0
        self.num_bytes = sum(
            part.nbytes
            for chunk in self._chunks
            for part in (chunk.weight, chunk.exp_avg, chunk.exp_avg_sq, chunk.grad, chunk.half)
        )
        self.holds = torch.zeros((), device=device)  # 1 once a loss was not finite: nothing changes any more

    def update(
        self,
        update: NativeUpdate,
        position: int,
        grad: Tensor,
        rates: Rates,
        made: Mark,
        in_slot: Tensor | None,
    ) -> tuple[Mark, Mark]:
        """Gives the work to the lanes: when the new weight is on the device (in `in_slot` too), and when all is on the host.

        `grad` is flat on the device, and there once `made` is reached.
        """
        place = update.place(position)
        options = update.options(position, rates)
        on_host = update.device_copy(position)
        num_elements = grad.numel()
        computed: Mark = DONE
        done: Mark = DONE
        for start in range(0, num_elements, CHUNK):
            end = min(start + CHUNK, num_elements)
            chunk = self._chunks[self._next]
            self._next = (self._next + 1) % NUM_CHUNKS
            weight, exp_avg, exp_avg_sq, wide, half = (
                part[: end - start]
                for part in (chunk.weight, chunk.exp_avg, chunk.exp_avg_sq, chunk.grad, chunk.half)
            )
            with self._lanes.on("state up"):
                self._lanes.wait_for(chunk.free)
                self._lanes.copy(weight, place.weight[start:end])
                self._lanes.copy(exp_avg, place.exp_avg[start:end])
                self._lanes.copy(exp_avg_sq, place.exp_avg_sq[start:end])
                here = self._lanes.mark()
            with self._lanes.on("state"):
                if start == 0:
                    self._lanes.wait_for(made)
                self._lanes.wait_for(here)
                wide.copy_(grad[start:end])
                self._step(weight, wide, exp_avg, exp_avg_sq, options)
                new = half if on_host is not None and on_host.dtype == half.dtype else weight
                if new is half:
                    half.copy_(weight)
                if in_slot is not None:
                    in_slot[start:end].copy_(new)
                computed = self._lanes.mark()
            with self._lanes.on("state down"):
                self._lanes.wait_for(computed)
                self._lanes.copy(place.weight[start:end], weight)
                self._lanes.copy(place.exp_avg[start:end], exp_avg)
                self._lanes.copy(place.exp_avg_sq[start:end], exp_avg_sq)
                if on_host is not None:
                    self._lanes.copy(on_host[start:end], new)
                done = chunk.free = self._lanes.mark()
        return computed, done

    def _step(
        self, weight: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, options: dict[str, Any]
    ) -> None:
        wide_state = exp_avg.dtype is torch.float32
        first, second = (exp_avg, exp_avg_sq) if wide_state else (exp_avg.float(), exp_avg_sq.float())
        decoupled = options["decoupled"]
        kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
        kernel(
            [weight],
            [grad],
            [first],
            [second],
            [],
            [torch.full((), float(options["step"]), device=weight.device)],
            lr=options["lr"],
            beta1=options["beta1"],
            beta2=options["beta2"],
            weight_decay=options["weight_decay"],
            eps=options["eps"],
            amsgrad=False,
            maximize=False,
            found_inf=self.holds,
        )
        if not wide_state:
            exp_avg.copy_(first)
            exp_avg_sq.copy_(second)

    def hold_if_not_finite(self, loss: Tensor) -> None:
        bad = (~torch.isfinite(loss.detach())).to(self.holds.dtype)
        self.holds.copy_(torch.maximum(self.holds, bad))

    def release(self) -> None:
        """Lets updates go on, once other weights are loaded."""
        self.holds.zero_()
