"""Devices that a vendor's package adds to torch: what that package provides, and the session that trains on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from portwright.runtime.session import TorchSession
from portwright.runtime.world import Launch, World
from portwright.target import JobSpec


@dataclass(frozen=True)
class Plugin:
    """What a vendor's package does for its device that torch does itself for a GPU."""

    take_device: Callable[[Launch], torch.device]  # called once, before the processes meet
    collectives: str  # the backend of torch.distributed that speaks for the device
    mark_step: Callable[[], None]  # hands the ops collected so far to the device, and does not wait for it
    compiler: str  # the backend of torch.compile


class PluginSession(TorchSession):
    """TorchSession on a device that may collect ops until it is told to run them.

    Such a device runs what it has at a mark, or when a value is read. Without marks a whole stretch, or a whole
    evaluation, would become one program that grows with every batch.
    """

    # Double precision is scarce outside of CPUs and GPUs.
    _sum_dtype = torch.float32

    def __init__(
        self,
        job: JobSpec,
        device: torch.device,
        world: World,
        note: Callable[[str], None],
        plugin: Plugin,
    ) -> None:
        self._plugin = plugin
        super().__init__(job, device, world, note)

    def _compile(self) -> None:
        self._module.net.compile(backend=self._plugin.compiler)

    def _forward_backward(self, step: int) -> Any:
        loss = super()._forward_backward(step)
        self._plugin.mark_step()
        return loss

    def _update(self, step: int) -> Any:
        loss = super()._update(step)
        self._plugin.mark_step()
        return loss

    def evaluate(
        self, num_steps: int | None, on_step: Callable[[int], None] | None = None
    ) -> dict[str, float]:
        def mark(step: int) -> None:
            self._plugin.mark_step()
            if on_step is not None:
                on_step(step)

        return super().evaluate(num_steps, mark)
