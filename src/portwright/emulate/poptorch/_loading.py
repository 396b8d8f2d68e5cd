"""What a batch is made of, the random numbers of who loads it, and what cannot be loaded."""

from __future__ import annotations

import contextlib
import io
import pickle
import random
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from portwright.emulate.poptorch import enums
from portwright.emulate.poptorch._errors import AssertedError, refuse
from portwright.emulate.poptorch._impl import createPoptorchError
from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._utils import flattenTensorStructure, getCustomParser
from portwright.emulate.poptorch.poptorch_core import Error


class Layout:
    """The kind of a batch (a tensor, a dict, a sequence, a registered type), and shape and type of its tensors."""

    def __init__(self, batch: Any, any_batch: bool) -> None:
        self._parser = getCustomParser(batch)
        self._keys = list(batch) if isinstance(batch, dict) else None
        self._single = isinstance(batch, torch.Tensor)
        self._names: list[Any] = []
        self._said = False
        for index, tensor in enumerate(self._items(batch)):
            self._names.append(self._keys[index] if self._keys else index)
            if not isinstance(tensor, torch.Tensor):
                raise createPoptorchError(
                    f"an element of the dataset holds {type(tensor).__name__} at {self._names[-1]!r}. It must be a "
                    "tensor, or a flat list, tuple or dict of tensors"
                )
        tensors = list(self._items(batch))
        if not tensors:
            raise createPoptorchError("an element of the dataset holds no tensor")
        if any_batch and {tensor.shape[:1] for tensor in tensors} != {tensors[0].shape[:1] or None}:
            shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
            raise createPoptorchError(
                f"rebatched_size needs tensors with the same first dimension, not {shapes}"
            )
        from_dim = 1 if any_batch else 0
        self.parts = [
            (name, tuple(tensor.shape[from_dim:]), tensor.dtype)
            for name, tensor in zip(self._names, tensors, strict=True)
        ]

        self._types = [tensor.dtype for tensor in tensors]

    def fit(self, first: Layout) -> None:
        """Takes the place of the first batch, whose shapes must be the same and whose types are taken over."""
        if [part[:2] for part in self.parts] != [part[:2] for part in first.parts]:
            raise createPoptorchError(
                f"a batch of {self} follows a first one of {first}, and the buffers are made for the first. Use "
                "drop_last=True, rebatched_size or collate_fn to have them all alike"
            )
        if self._types != first._types and not first._said:
            first._said = True
            logger.warning("a batch of %s is converted to the types of the first one: %s", self, first)
        self._types = first._types

    def tensors(self, batch: Any) -> list[torch.Tensor]:
        return [tensor.to(dtype) for tensor, dtype in zip(self._items(batch), self._types, strict=True)]

    def build(self, batch: Any, tensors: list[torch.Tensor] | None) -> Any:
        """The batch as it is handed out, with other tensors in it."""
        tensors = self.tensors(batch) if tensors is None else tensors
        if self._single:
            return tensors[0]
        if self._parser is not None:
            return self._parser.reconstruct(batch, iter(tensors))
        return tensors if self._keys is None else dict(zip(self._keys, tensors, strict=True))

    def _items(self, batch: Any) -> Iterable[Any]:
        if self._single:
            return [batch]
        if self._parser is not None:
            return list(self._parser.yieldTensors(batch))
        if self._keys is not None:
            return [batch[key] for key in self._keys]
        if not isinstance(batch, (list, tuple)):
            raise createPoptorchError(
                f"an element of the dataset is {type(batch).__name__}. It must be a tensor, or a flat list, tuple or "
                "dict of tensors"
            )
        return batch

    def __str__(self) -> str:
        return ", ".join(f"{name}: {list(shape)} {dtype}" for name, shape, dtype in self.parts)


class Randomness:
    """Random numbers that go on where the caller's were, and leave the caller's alone: those of another process."""

    def __init__(self) -> None:
        self._state = self._read()

    def __enter__(self) -> None:
        self._callers = self._read()
        self._write(self._state)

    def __exit__(self, *error: object) -> None:
        self._state = self._read()
        self._write(self._callers)

    @staticmethod
    def _read() -> tuple[Any, Any, Any]:
        return torch.get_rng_state(), random.getstate(), np.random.get_state()

    @staticmethod
    def _write(state: tuple[Any, Any, Any]) -> None:
        torch.set_rng_state(state[0])
        random.setstate(state[1])
        np.random.set_state(state[2])


class Buffers:
    """Which batches were handed out last: on a real machine the next ones come into the same memory."""

    def __init__(self, count: int) -> None:
        self._handed: deque[list[weakref.ref[torch.Tensor]]] = deque(maxlen=max(count, 2))
        self._said = False

    def hand_out(self, element: Any) -> None:
        """Takes note of a batch, and says once if the one whose buffer it would come into is still held."""
        reused = self._handed[0] if len(self._handed) == self._handed.maxlen else []
        if not self._said and any(tensor() is not None for tensor in reused):
            self._said = True
            logger.warning(
                "a batch is still held %d batches later; on a real machine its memory holds that later one now: clone() what you keep",
                self._handed.maxlen,
            )
        self._handed.append([weakref.ref(tensor) for tensor in flattenTensorStructure(element)])


def told(error: BaseException) -> str:
    """What an error says, in one line and in the middle of a sentence; the whole of it is chained."""
    if isinstance(error, Error):
        return error.message.rstrip(".")
    lines = str(error).strip().splitlines() or [""]
    if lines[0].startswith(
        "Caught "
    ):  # by a worker process of torch's loader, with its traceback before the last line
        return lines[-1].rstrip(".")
    return f"{type(error).__name__}: {lines[0]}".rstrip(".: ")


def check_settings(buffer_size: Any, sleep: Any, strategy: Any, rebatched_size: Any) -> None:
    if not isinstance(buffer_size, int) or isinstance(buffer_size, bool) or buffer_size < 1:
        raise refuse(f"buffer_size must be a whole number from 1, not {buffer_size!r}.", AssertedError)
    if not isinstance(sleep, (int, float)) or sleep < 0:
        raise refuse(f"miss_sleep_time_in_ms must be a number from 0, not {sleep!r}.", AssertedError)
    if not isinstance(strategy, enums.SharingStrategy):
        names = ", ".join(f"SharingStrategy.{member.name}" for member in enums.SharingStrategy)
        raise refuse(f"sharing_strategy must be one of {names}, not {strategy!r}.", AssertedError)
    if rebatched_size is not None and not (isinstance(rebatched_size, int) and rebatched_size > 1):
        raise refuse(f"rebatched_size must be None or larger than 1, not {rebatched_size!r}.", AssertedError)


class _Sink(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(data)


class _DryPickler(pickle.Pickler):
    """Goes through an object as pickling does, but past the data of tensors and arrays, and keeps nothing."""

    def reducer_override(self, obj: Any) -> Any:
        return (int, ()) if isinstance(obj, (torch.Tensor, torch.Generator, np.ndarray)) else NotImplemented


def warn_if_unpicklable(dataset: Any, strategy: enums.SharingStrategy) -> None:
    """Says of a dataset that another process could not get it, since the real package would stop there."""
    if strategy is enums.SharingStrategy.Fork:
        return
    with contextlib.suppress(RecursionError):
        try:
            _DryPickler(_Sink()).dump(dataset)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            logger.warning(
                "the dataset cannot be pickled, which sharing_strategy=%s needs on a real machine (%s); use "
                "SharingStrategy.Fork, or classes and functions that a module defines",
                getattr(strategy, "name", strategy),
                error,
            )
