"""Copies beside the computation: streams of a GPU, or nothing where the device is the host itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor


class Mark(Protocol):
    """A point in a lane's work that others can wait for."""

    def synchronize(self) -> None: ...

    def query(self) -> bool: ...


class _Done:
    def synchronize(self) -> None:
        return

    def query(self) -> bool:
        return True


DONE: Mark = _Done()


class Lanes:
    """The computation's lane (whatever stream is current) and those of the copies up, down and of updates on the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_cuda = device.type == "cuda"
        self._streams: dict[str, Any] = {}

    def stream(self, name: str) -> Any:
        """The stream of a lane, None on a CPU. "up" and "down" go before the computation where both want the machine."""
        if not self.is_cuda:
            return None
        if name not in self._streams:
            self._streams[name] = torch.cuda.Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]
        return self._streams[name]

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Work inside goes to that lane."""
        stream = self.stream(name)
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            yield

    def mark(self) -> Mark:
        """A mark after all work given to the current lane so far."""
        if not self.is_cuda:
            return DONE
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def wait_for(self, mark: Mark) -> None:
        """What is given to the current lane from now on comes after the mark; the host does not wait."""
        if self.is_cuda and mark is not DONE:
            torch.cuda.current_stream(self.device).wait_event(mark)  # type: ignore[arg-type]

    def quieten(self) -> None:
        """Waits for the device: buffers just made may be memory that work already given to it still uses."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copies in the current lane; the host does not wait where its side is pinned."""
        target.copy_(source, non_blocking=self.is_cuda)
