"""poptorch.DataLoader: batches as large as one call of a model takes.

The real package may load in a process of its own. Here batches are loaded when they are asked for, in the caller's process and with
random numbers of their own: the same batches in the same order, and nothing drawn from the caller's random numbers.
"""

# mypy: disable-error-code="type-arg"

from __future__ import annotations

import io
import pickle
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, Optional, Sequence, TypeVar, Union

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import IterableDataset

from portwright.emulate.poptorch._errors import AssertedError, refuse
from portwright.emulate.poptorch._inputs import (
    combined_batch_generator,
    flattenTensorStructure,
    reconstructTensorStructure,
)
from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._names import not_emulated, partly
from portwright.emulate.poptorch.enums import DataLoaderMode, SharingStrategy
from portwright.emulate.poptorch.options import Options
from portwright.watching.random_states import capture_rng, restore_rng, untouched_rng

if TYPE_CHECKING:
    from portwright.emulate import poptorch

_MARK = "_poptorch_micro_batches"
_CPU = torch.device("cpu")
_Result = TypeVar("_Result")


def batches_of_a_call(options: Any) -> int:
    """How many micro-batches of data one call of a model with these options takes."""
    return int(
        options.device_iterations * options.replication_factor * options.Training.gradient_accumulation
    )


def refuse_several_processes(options: Any) -> None:
    if options.Distributed.numProcesses > 1:
        raise not_emulated(
            "Options.Distributed with several processes",
            "run one process, with Options.replicationFactor for more replicas.",
        )


class DataLoader(torch.utils.data.DataLoader):
    """torch's DataLoader, whose batches hold what one call takes: batch_size x all that the options run in a call."""

    _accessor: AsynchronousDataAccessor | None = None
    _loads_ahead = False
    rebatched_drop_last = True

    def __init__(
        self,
        options: "poptorch.Options",
        dataset: "torch.utils.data.Dataset",
        batch_size: int = 1,
        shuffle: bool = None,  # type: ignore[assignment]
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: Optional[bool] = None,
        auto_distributed_partitioning: bool = True,
        mode: "poptorch.DataLoaderMode" = DataLoaderMode.Sync,
        async_options: Optional[Dict[str, Any]] = None,
        rebatched_worker_size: Optional[int] = None,
        batch_sampler: Optional[Union[torch.utils.data.Sampler[Sequence], Iterable[Sequence]]] = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(options, Options):
            raise refuse(f"options must be a poptorch.Options, not {type(options).__name__}.", AssertedError)
        if not isinstance(mode, DataLoaderMode):
            names = ", ".join(f"DataLoaderMode.{member.name}" for member in DataLoaderMode)
            raise refuse(f"mode must be one of {names}, not {mode!r}.", AssertedError)
        self._options = options
        self._is_user_batch_sampler_set = batch_sampler is not None
        if batch_sampler is not None:
            if batch_size != 1 or shuffle:
                raise refuse("batch_sampler decides about batch_size and shuffle: give no other.")
            batch_size = getattr(batch_sampler, "batch_size", batch_size)
            self.batch_sampler_drop_last = drop_last
        refuse_several_processes(options)
        options._freeze()
        self._combined_batch_size: Optional[int] = None
        self._num_batches_to_combine: Optional[int] = None
        if batch_size is not None:
            self._num_batches_to_combine = batches_of_a_call(options)
            self._combined_batch_size = batch_size * self._num_batches_to_combine
        if isinstance(dataset, IterableDataset):
            if num_workers > 1 and "worker_init_fn" not in kwargs:
                logger.warning(
                    "every one of %d workers gives the whole IterableDataset: each element comes %d times. Divide it with "
                    "worker_init_fn",
                    num_workers,
                    num_workers,
                )
        else:
            self._warn_of_incomplete(dataset, batch_sampler, batch_size, drop_last)

        loaded_size = 1 if batch_sampler is not None else self._combined_batch_size
        joined_later = mode is DataLoaderMode.Async and not drop_last and (self._combined_batch_size or 1) > 1
        rebatched_size = None
        rest_dropped = False if batch_sampler is not None else drop_last  # torch refuses both
        if mode is DataLoaderMode.AsyncRebatched or joined_later:
            if rebatched_worker_size is not None:
                if (
                    self._combined_batch_size is None
                    or not 0 < rebatched_worker_size <= self._combined_batch_size
                ):
                    raise refuse(
                        f"rebatched_worker_size must be from 1 to the combined batch size, {self._combined_batch_size}, not "
                        f"{rebatched_worker_size}.",
                        AssertedError,
                    )
                loaded_size = rebatched_worker_size
            rebatched_size = self._combined_batch_size
            self.rebatched_drop_last, rest_dropped = rest_dropped, False
        elif rebatched_worker_size is not None:
            logger.warning("rebatched_worker_size has no effect without mode=DataLoaderMode.AsyncRebatched")
        if batch_sampler is None and shuffle is None:
            shuffle = False
        super().__init__(
            dataset,
            batch_size=loaded_size,
            shuffle=shuffle,
            batch_sampler=batch_sampler,  # type: ignore[arg-type]
            num_workers=num_workers,
            drop_last=rest_dropped,
            persistent_workers=num_workers > 0 if persistent_workers is None else persistent_workers,
            **kwargs,
        )
        if mode is not DataLoaderMode.Sync:
            given = async_options or {}
            if "rebatched_size" in given:
                raise refuse(
                    "async_options must not have rebatched_size: the mode decides about it.", AssertedError
                )
            self._loads_ahead = True
            self._accessor = AsynchronousDataAccessor(self, **given, rebatched_size=rebatched_size)
        elif async_options:
            logger.warning("async_options have no effect with mode=DataLoaderMode.Sync")

    def _warn_of_incomplete(self, dataset: Any, batch_sampler: Any, batch_size: Any, drop_last: bool) -> None:
        """drop_last=True leaves an incomplete batch out, also the only one; without, a compiled model does not take it."""
        combined, several = self._combined_batch_size, self._num_batches_to_combine
        if combined is None or several is None or (drop_last and batch_sampler is not None):
            return
        size = _length(dataset if batch_sampler is None else batch_sampler)
        if drop_last:
            if size is not None and size < combined:
                logger.warning(
                    "the dataset has %d elements, and one call takes %d (batch_size x deviceIterations x gradientAccumulation x "
                    "replicationFactor): the DataLoader gives no batch at all. Make these smaller, or the dataset larger",
                    size,
                    combined,
                )
            return
        cure = "the model takes whole batches only: drop_last=True leaves it out"
        if size is None:
            logger.warning(
                "batch_sampler has no length: the last batch may be smaller than %d, and %s", combined, cure
            )
            return
        rest = size % combined if batch_sampler is None else size % several * (batch_size or 1)
        if rest:
            what = "elements" if batch_sampler is None else "batches of batch_sampler"
            calls = combined if batch_sampler is None else several
            logger.warning(
                "%d %s do not fill calls of %d: the last batch has a size of %d, and %s",
                size,
                what,
                calls,
                rest,
                cure,
            )

    def __len__(self) -> int:
        if self._accessor is None or not self._accessor.rebatched_size:
            return super().__len__()
        whole, rest = divmod(len(self.dataset), self._accessor.rebatched_size)  # type: ignore[arg-type]
        return whole + (1 if rest and not self.rebatched_drop_last else 0)

    @property
    def combinedBatchSize(self) -> Optional[int]:
        """How many elements of the dataset one call of the model takes; None with batch_size=None."""
        return self._combined_batch_size

    @property
    def options(self) -> "poptorch.Options":
        return self._options

    def terminate(self) -> None:
        """Ends the loading ahead, where the mode is not Sync."""
        if self._accessor is not None:
            self._accessor.terminate()
            self._iterator = None  # torch's, with the processes that it would keep for the next epoch

    def __del__(self) -> None:
        self.terminate()

    def __iter__(self) -> Any:
        return _Epoch(self, self._worker_batches() if self._accessor is None else iter(self._accessor))

    def _worker_batches(self) -> Iterator[Any]:
        """The batches themselves, from the start; whoever loads ahead takes them from here."""
        batches: Iterator[Any] = super().__iter__()
        if self._is_user_batch_sampler_set and self._num_batches_to_combine != 1:
            several, drop_last = self._num_batches_to_combine, self.batch_sampler_drop_last
            batches = combined_batch_generator(batches, several, drop_last)
        return batches


class _Epoch:
    """The batches of a loader; keeps the loader, which a for loop may be the only one to hold."""

    def __init__(self, loader: DataLoader, batches: Iterator[Any]) -> None:
        self._loader = loader
        self._batches = batches

    def __iter__(self) -> _Epoch:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        if self._loader._num_batches_to_combine is not None:
            for leaf in tree_leaves(batch):
                if isinstance(leaf, torch.Tensor):  # what the user computes from it carries no mark
                    setattr(leaf, _MARK, self._loader._num_batches_to_combine)
        return batch

    def __len__(self) -> int:
        return len(self._loader)


def warn_of_other_options(tensors: Iterable[torch.Tensor], micro_batches: int) -> bool:
    """Says that a batch was made for other options than the model's, and gives whether it was."""
    for tensor in tensors:
        made_for = getattr(tensor, _MARK, micro_batches)
        if made_for != micro_batches:
            logger.warning(
                "the DataLoader made this batch for %d micro-batches (deviceIterations x gradientAccumulation x replicationFactor of "
                "its options), and the model cuts it into %d: each has %g times as many samples as the loader's batch_size. Give both "
                "the same options",
                made_for,
                micro_batches,
                made_for / micro_batches,
            )
            return True
    return False


class AsynchronousDataAccessor:
    """Loads a dataset (any iterable) ahead of the device."""

    @partly(
        "batches are loaded when they are asked for: the same ones in the same order, without overlap in time."
    )
    def __init__(
        self,
        dataset: Union["torch.utils.data.Dataset", DataLoader],
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = 0.1,
        load_indefinitely: bool = True,
        early_preload: bool = False,
        sharing_strategy: "poptorch.SharingStrategy" = SharingStrategy.ForkServer,
        rebatched_size: Optional[int] = None,
    ) -> None:
        self._batches: Iterator[Any] = iter(())
        if isinstance(dataset, DataLoader):
            if dataset._accessor is not None:
                raise refuse(
                    "this DataLoader loads ahead by itself already. Iterate over it, or make it with "
                    "mode=poptorch.DataLoaderMode.Sync."
                )
            smaller_at_the_end = not dataset._is_user_batch_sampler_set and not dataset.drop_last
            if smaller_at_the_end and rebatched_size is None and (dataset.combinedBatchSize or 1) > 1:
                raise refuse("a DataLoader with drop_last=False needs rebatched_size as well.", AssertedError)
        if rebatched_size is not None and not (isinstance(rebatched_size, int) and rebatched_size > 1):
            raise refuse(
                f"rebatched_size must be None or larger than 1, not {rebatched_size!r}.", AssertedError
            )
        # A loader's own accessor must not keep it alive: with both in a circle, its processes would be ended badly.
        self._dataset: Any = weakref.proxy(dataset) if getattr(dataset, "_loads_ahead", False) else dataset
        self.rebatched_size = rebatched_size
        self._randomness = _Randomness()
        self._is_terminated = self._was_used = False
        if sharing_strategy is not SharingStrategy.Fork:
            _warn_if_unpicklable(dataset, sharing_strategy)
        # By weak references: the batches whose buffers a real machine would fill again.
        self._handed: deque[list[weakref.ref[torch.Tensor]]] = deque(maxlen=max(buffer_size, 2))
        self._said_held = False
        try:
            self._batches = self._load()
            first = next(self._batches, None)
        except Exception as error:
            raise refuse(
                f"AsynchronousDataAccessor: its worker failed to start, {_in_short(error)}."
            ) from error
        if first is None:
            raise refuse("AsynchronousDataAccessor: its worker failed to start, the dataset is empty.")
        self._first = [first]

    def terminate(self) -> None:
        """Ends the loading; there is no going on after it."""
        self._batches, self._is_terminated = iter(()), True

    def __len__(self) -> int:
        length = len(self._dataset)
        if self.rebatched_size and getattr(self._dataset, "_accessor", None) is not self:
            size = getattr(self._dataset, "batch_size", None)
            if size is None:
                raise TypeError("rebatched data has a length only where the dataset has a batch_size.")
            return int(length * size // self.rebatched_size)
        return length

    def __iter__(self) -> AsynchronousDataAccessor:
        self._check_not_terminated()
        if self._was_used:
            self._batches, self._was_used = self._load(), False
        return self

    def _check_not_terminated(self) -> None:
        if self._is_terminated:
            raise refuse("the loading of this data was terminated. Make a new loader.", AssertedError)

    def __next__(self) -> Any:
        self._check_not_terminated()
        self._was_used = True
        batch = self._first.pop() if self._first else next(self._batches)
        self._warn_of_held(batch)
        return batch

    def _warn_of_held(self, batch: Any) -> None:
        reused = self._handed[0] if len(self._handed) == self._handed.maxlen else []
        if not self._said_held and any(tensor() is not None for tensor in reused):
            self._said_held = True
            logger.warning(
                "a batch is still held %d batches later; on a real machine its memory holds that later one now: clone() what you keep",
                self._handed.maxlen,
            )
        self._handed.append([weakref.ref(tensor) for tensor in flattenTensorStructure(batch)])

    def _load(self) -> Iterator[Any]:
        # of a loader, which would give its accessor instead
        own = getattr(self._dataset, "_worker_batches", None)
        source = self._randomness.run(lambda: iter(self._dataset) if own is None else own())
        held: list[torch.Tensor] = []
        size, last, end = self.rebatched_size, None, object()
        while (batch := self._randomness.run(lambda: next(source, end))) is not end:
            if size is None:
                yield batch
                continue
            last, parts = batch, flattenTensorStructure(batch)
            held = [torch.cat(pair) for pair in zip(held, parts, strict=True)] if held else parts
            while len(held[0]) >= size:
                yield reconstructTensorStructure(batch, [tensor[:size] for tensor in held])
                held = [tensor[size:] for tensor in held]
        if held and len(held[0]) and not getattr(self._dataset, "rebatched_drop_last", True):
            yield reconstructTensorStructure(last, held)


class _Randomness:
    """Random numbers that go on where the caller's were, and leave the caller's alone: those of another process."""

    def __init__(self) -> None:
        self._state = capture_rng(_CPU)

    def run(self, function: Callable[[], _Result]) -> _Result:
        with untouched_rng(_CPU):
            restore_rng(self._state, _CPU)
            try:
                return function()
            finally:
                self._state = capture_rng(_CPU)


class _DryPickler(pickle.Pickler):
    """Goes through an object as pickling does, but past the data of tensors and arrays."""

    def reducer_override(self, obj: Any) -> Any:
        return (int, ()) if isinstance(obj, (torch.Tensor, torch.Generator, np.ndarray)) else NotImplemented


def _warn_if_unpicklable(dataset: Any, strategy: SharingStrategy) -> None:
    """Says of a dataset that another process could not get it, since the real package would stop there."""
    with suppress(RecursionError):
        try:
            _DryPickler(io.BytesIO()).dump(dataset)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            logger.warning(
                "the dataset cannot be pickled, which sharing_strategy=%s needs on a real machine (%s); use "
                "SharingStrategy.Fork, or classes and functions that a module defines",
                strategy.name,
                error,
            )


def _in_short(error: Exception) -> str:
    """One line; that of a worker process of torch's loader has its traceback before the last one."""
    lines = str(error).strip().splitlines() or [""]
    if lines[0].startswith("Caught "):
        return lines[-1].rstrip(".")
    return f"{type(error).__name__}: {lines[0]}".rstrip(".: ")


def _length(data: Any) -> Optional[int]:
    try:
        return len(data)
    except (NotImplementedError, TypeError):
        return None
