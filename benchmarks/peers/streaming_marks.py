"""Moments between which a step lies."""

from __future__ import annotations

import time
from typing import Any

import torch


class Marks:
    """Events of the device, or the clock where there is none."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._marks: list[Any] = []

    def add(self) -> None:
        if self._device != "cuda":
            self._marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append(event)

    def seconds(self) -> list[float]:
        """Call it when the device is quiet."""
        pairs = list(zip(self._marks, self._marks[1:], strict=False))
        if self._device != "cuda":
            return [later - earlier for earlier, later in pairs]
        return [earlier.elapsed_time(later) / 1000 for earlier, later in pairs]
