"""Loading ahead of the device.

The real package loads in a process of its own and hands tensors over in a ring of shared buffers. Here batches are
loaded when they are asked for, in the caller's process and with random numbers of their own: the same batches in the
same order, nothing drawn from the caller's random numbers, and no process that could be left over. What overlaps in
time on real hardware is not emulated, as no time is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from portwright.emulate.poptorch._errors import AssertedError, refuse
from portwright.emulate.poptorch._impl import createPoptorchError
from portwright.emulate.poptorch._loading import Buffers, Layout, Randomness, check_settings, told
from portwright.emulate.poptorch._refused import partly, refused

_NO_RING = "it is a part of the ring of buffers between two processes, and batches are loaded in one here."


@partly("it loads in the caller's process, so that nothing overlaps in time")
class AsynchronousWorker:
    """Loads the elements of a dataset one after another, and starts again when it is told to."""

    def __init__(
        self,
        buffer_size,
        miss_sleep_time_in_ms,
        dataset,
        load_indefinitely,
        early_preload,
        sharing_strategy,
        rebatched_size,
    ):
        check_settings(buffer_size, miss_sleep_time_in_ms, sharing_strategy, rebatched_size)
        self._dataset = dataset
        self._rebatched_size = rebatched_size
        self._drop_last = bool(getattr(dataset, "rebatched_drop_last", True))
        self._randomness = Randomness()
        self._loaded: deque[Any] = deque()
        self._iterator: Iterator[Any] | None = None
        self._first: Layout | None = None
        self._error: BaseException | None = None
        self._was_used = False
        self._buffers = Buffers(buffer_size)
        try:
            self._open()
            self._load(buffer_size if early_preload else 1)
        except Exception as error:
            self.terminate()
            raise createPoptorchError(
                f"AsynchronousDataAccessor: its worker failed to start, {told(error)}."
            ) from error
        if not self._loaded:
            self.terminate()
            raise createPoptorchError(
                "AsynchronousDataAccessor: its worker failed to start, the dataset is empty."
            )

    def terminate(self):
        self._iterator = None  # torch's own loader ends its processes with it
        self._loaded.clear()

    def resetIterator(self):
        if self._was_used:
            self._open()
            self._was_used = False

    def dataIsAvailable(self):
        return bool(self._loaded)

    def endOfFile(self):
        return self._iterator is None and not self._loaded

    def acquireElementIfAvailable(self):
        """The next element, or None at the end of the dataset."""
        self.assertNoError()
        if not self._loaded:
            try:
                self._load(1)
            except Exception as error:
                self._error = error
                self._iterator = None
                self.assertNoError()
        if not self._loaded:
            return None
        self._was_used = True
        element = self._loaded.popleft()
        self._buffers.hand_out(element)
        return element

    def assertNoError(self):
        if self._error is not None:
            raise refuse(
                f"the data could not be loaded: {told(self._error)}.", AssertedError
            ) from self._error

    def releaseElement(self):
        """Nothing to do: an element is the caller's own, not a buffer that is filled again."""

    def _open(self) -> None:
        self._loaded.clear()
        self._iterator = None  # before the next one, so that a loader's processes are not there twice
        with self._randomness:
            own = getattr(
                self._dataset, "_worker_batches", None
            )  # of a loader, which would give its accessor instead
            source = iter(self._dataset) if own is None else own()
        self._iterator = self._elements(source)

    def _load(self, count: int) -> None:
        while self._iterator is not None and len(self._loaded) < count:
            with self._randomness:
                element = next(self._iterator, None)
            if element is None:
                self._iterator = None
            else:
                self._loaded.append(element)

    def _elements(self, source: Iterator[Any]) -> Iterator[Any]:
        size = self._rebatched_size
        if size is None:
            for batch in source:
                yield self._layout(batch).build(batch, None)
            return
        held: list[torch.Tensor] = []
        layout = None
        for batch in source:
            layout = self._layout(batch, any_batch=True)
            parts = layout.tensors(batch)
            held = [torch.cat(pair) for pair in zip(held, parts, strict=True)] if held else parts
            while len(held[0]) >= size:
                yield layout.build(batch, [tensor[:size] for tensor in held])
                held = [tensor[size:] for tensor in held]
        if layout is not None and len(held[0]) and not self._drop_last:
            yield layout.build(batch, held)

    def _layout(self, batch: Any, any_batch: bool = False) -> Layout:
        """How this batch is made up, which must be as the first one was: the device's buffers were made for that."""
        layout = Layout(batch, any_batch)
        if self._first is None:
            self._first = layout
        else:
            layout.fit(self._first)
        return layout


class _AsynchronousWorkerProcess:
    @refused(_NO_RING)
    def __init__(
        self,
        buffer_size,
        miss_sleep_time_in_ms,
        dataset,
        load_indefinitely,
        early_preload,
        sharing_strategy,
        rebatched_size,
    ): ...

    @refused(_NO_RING)
    def isAlive(self): ...

    @refused(_NO_RING)
    def exitCode(self): ...

    @refused(_NO_RING)
    def join(self): ...

    @refused(_NO_RING)
    def start(self): ...


class _HostCommandHandler:
    @refused(_NO_RING)
    def __init__(self, command_pipe): ...

    @refused(_NO_RING)
    def checkMessages(self, blocking=False, ignore_setup_complete=True): ...

    @refused(_NO_RING)
    def priorityCommandWaiting(self): ...

    @refused(_NO_RING)
    def waitUntilSetupComplete(self): ...

    @refused(_NO_RING)
    def startIteratingPending(self): ...

    @refused(_NO_RING)
    def resetIteratorPending(self): ...

    @refused(_NO_RING)
    def waitUntilStartIteration(self): ...


class _EndOfFileFlag:
    @refused(_NO_RING)
    def __init__(self, eof_mem=None): ...

    @refused(_NO_RING)
    def setResetFlag(self): ...

    @refused(_NO_RING)
    def waitForReset(self): ...

    @refused(_NO_RING)
    def isEofIndex(self, index): ...

    @refused(_NO_RING)
    def leftOver(self, index): ...

    @refused(_NO_RING)
    def clearFlag(self): ...

    @refused(_NO_RING)
    def setFlag(self, buffer_idx, last_batch_size=0): ...


class _RingBufferIndex:
    @refused(_NO_RING)
    def __init__(self, buffer_size, indices_mem=None): ...

    @refused(_NO_RING)
    def increment(self): ...

    @refused(_NO_RING)
    def reset(self): ...

    @refused(_NO_RING)
    def set(self, value): ...

    @refused(_NO_RING)
    def value(self): ...

    @refused(_NO_RING)
    def __call__(self): ...


class _IDataRingBuffer:
    @refused(_NO_RING)
    def __init__(self, buffer_size, data_len, indices_mem=None): ...

    @refused(_NO_RING)
    def setBuffer(self, buffer, data_idx): ...

    @property
    @refused(_NO_RING)
    def current(self): ...

    @property
    @refused(_NO_RING)
    def indices_mem(self): ...

    @refused(_NO_RING)
    def currentIndex(self): ...

    @refused(_NO_RING)
    def reset(self): ...


class _DataRingBufferWriter(_IDataRingBuffer):
    @refused(_NO_RING)
    def markWriteComplete(self): ...

    @refused(_NO_RING)
    def isAvailable(self): ...


class _DataRingBufferReader(_IDataRingBuffer):
    @refused(_NO_RING)
    def __init__(self, buffer_size, data_len, indices_mem=None): ...

    @refused(_NO_RING)
    def isAvailable(self): ...

    @refused(_NO_RING)
    def hasLock(self): ...

    @refused(_NO_RING)
    def lock(self): ...

    @refused(_NO_RING)
    def unlockIfLocked(self): ...
