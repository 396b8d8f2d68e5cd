"""poptorch.DataLoader and what it stands on: batches as large as one call of a model takes."""

# mypy: disable-error-code="type-arg"

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, Optional, Sequence, Union

import torch
from torch.utils.data import IterableDataset

from portwright.emulate.poptorch import _dataloader, _loader_marks, _utils, profiling
from portwright.emulate.poptorch._errors import AssertedError, refuse
from portwright.emulate.poptorch._impl import createPoptorchError
from portwright.emulate.poptorch._loading import warn_if_unpicklable
from portwright.emulate.poptorch._logging import logger
from portwright.emulate.poptorch._partition import _SubDataset
from portwright.emulate.poptorch._refused import partly
from portwright.emulate.poptorch.enums import DataLoaderMode, SharingStrategy
from portwright.emulate.poptorch.options import Options

if TYPE_CHECKING:
    from portwright.emulate import poptorch


__all__ = ["AsynchronousDataAccessor", "DataLoader", "_SubDataset"]


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
        mode = _mode(mode)
        self._options = options
        self._is_iterable = isinstance(dataset, IterableDataset)
        self._is_user_batch_sampler_set = batch_sampler is not None
        self._shuffle_map_style_data_in_distributed_env = False
        if batch_sampler is not None:
            _check_batch_sampler(options, batch_size, shuffle, auto_distributed_partitioning)
            batch_size = getattr(batch_sampler, "batch_size", batch_size)
            self.batch_sampler_drop_last = drop_last
        options._freeze()
        self._combined_batch_size: Optional[int] = None
        self._num_batches_to_combine: Optional[int] = None
        if batch_size is not None:
            self._num_batches_to_combine = _loader_marks.batches_of_a_call(options)
            self._combined_batch_size = batch_size * self._num_batches_to_combine
        if self._is_iterable:
            _check_iterable(options, num_workers, auto_distributed_partitioning, kwargs)
        else:
            if not drop_last:
                self._warn_of_rest(dataset, batch_sampler, batch_size)
            elif batch_sampler is None:
                self._warn_of_nothing(dataset)
            if options.Distributed.numProcesses > 1 and auto_distributed_partitioning:
                dataset = self._part_of(dataset, shuffle, drop_last)
                self._shuffle_map_style_data_in_distributed_env = bool(shuffle)
                shuffle = False

        loaded_size = 1 if batch_sampler is not None else self._combined_batch_size
        joined_later = mode is DataLoaderMode.Async and not drop_last and (self._combined_batch_size or 1) > 1
        rebatched_size = None
        rest_dropped = False if batch_sampler is not None else drop_last  # torch refuses both
        if mode is DataLoaderMode.AsyncRebatched or joined_later:
            if rebatched_worker_size is not None:
                loaded_size = self._worker_size(rebatched_worker_size)
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

    def _part_of(self, dataset: Any, shuffle: Optional[bool], drop_last: bool) -> Any:
        if shuffle and not self._options.exists("random_seed"):
            raise refuse(
                "shuffle=True in several processes needs options.randomSeed(), the same in each, so that they agree on "
                "the order.",
                AssertedError,
            )
        if self._combined_batch_size is None:
            raise refuse("batch_size=None goes with auto_distributed_partitioning=False only.", AssertedError)
        return _SubDataset(dataset, self._options, self._combined_batch_size, drop_last)

    def _worker_size(self, size: int) -> int:
        if self._combined_batch_size is None or not 0 < size <= self._combined_batch_size:
            raise refuse(
                f"rebatched_worker_size must be from 1 to the combined batch size, {self._combined_batch_size}, not {size}.",
                AssertedError,
            )
        return size

    def _warn_of_nothing(self, dataset: Any) -> None:
        """drop_last=True leaves an incomplete batch out, also where it is the only one."""
        size, needed = (
            _length(dataset),
            (self._combined_batch_size or 1) * self._options.Distributed.numProcesses,
        )
        if size is not None and size < needed:
            logger.warning(
                "the dataset has %d elements, and one call takes %d (batch_size x deviceIterations x gradientAccumulation x "
                "replicationFactor, for every process): the DataLoader gives no batch at all. Make these smaller, or the dataset larger",
                size,
                needed,
            )

    def _warn_of_rest(self, dataset: Any, batch_sampler: Any, batch_size: Optional[int]) -> None:
        """drop_last=False may end on a smaller batch, which a compiled model does not take."""
        combined, several = self._combined_batch_size, self._num_batches_to_combine
        if combined is None or several is None:
            return
        cure = "the model takes whole batches only: drop_last=True leaves it out"
        if batch_sampler is not None:
            batches = _length(batch_sampler)
            if batches is None:
                logger.warning(
                    "batch_sampler has no length: the last batch may be smaller than %d, and %s",
                    combined,
                    cure,
                )
            elif batches % several:
                logger.warning(
                    "%d batches of batch_sampler do not fill calls of %d: the last batch has a size of %d, and %s",
                    batches,
                    several,
                    batches % several * (batch_size or 1),
                    cure,
                )
            return
        step = combined * self._options.Distributed.numProcesses
        if len(dataset) % step:
            logger.warning(
                "%d elements do not fill calls of %d: the last batch has a size of %d, and %s",
                len(dataset),
                step,
                len(dataset) % step,
                cure,
            )

    def __len__(self) -> int:
        if self._accessor is None or not self._accessor.rebatched_size:
            return super().__len__()
        whole, rest = divmod(len(self.dataset), self._accessor.rebatched_size)  # type: ignore[arg-type]
        return whole + (1 if rest and not self.rebatched_drop_last else 0)

    @property
    def _profiling(self) -> profiling.Channel:
        return profiling.Channel("poptorch.DataLoader")

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
        if self._shuffle_map_style_data_in_distributed_env:
            self.dataset.shuffle_global_indices()  # type: ignore[attr-defined]
            self.dataset.swap_range()  # type: ignore[attr-defined]
        batches: Iterator[Any] = super().__iter__()
        if self._is_user_batch_sampler_set and self._num_batches_to_combine != 1:
            several, drop_last = self._num_batches_to_combine, self.batch_sampler_drop_last
            batches = _utils.combined_batch_generator(batches, several, drop_last)
        return batches


class _Epoch:
    """The batches of a loader; keeps the loader, which a for loop may be the only one to hold."""

    def __init__(self, loader: DataLoader, batches: Iterator[Any]) -> None:
        self._loader = loader
        self._batches = batches

    def __iter__(self) -> _Epoch:
        return self

    def __next__(self) -> Any:
        return _loader_marks.mark(next(self._batches), self._loader._num_batches_to_combine)

    def __len__(self) -> int:
        return len(self._loader)


class AsynchronousDataAccessor:
    """Loads a dataset (any iterable) ahead of the device; see `_dataloader` for what is emulated of that."""

    _worker: _dataloader.AsynchronousWorker | None = None

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
        if isinstance(dataset, DataLoader):
            if dataset._accessor is not None:
                raise createPoptorchError(
                    "this DataLoader loads ahead by itself already. Iterate over it, or make it with "
                    "mode=poptorch.DataLoaderMode.Sync."
                )
            smaller_at_the_end = not dataset._is_user_batch_sampler_set and not dataset.drop_last
            if smaller_at_the_end and rebatched_size is None and (dataset.combinedBatchSize or 1) > 1:
                raise refuse("a DataLoader with drop_last=False needs rebatched_size as well.", AssertedError)
        # A loader's own accessor must not keep it alive: with both in a circle, its processes would be ended badly.
        self._dataset: Any = weakref.proxy(dataset) if getattr(dataset, "_loads_ahead", False) else dataset
        self.rebatched_size = rebatched_size
        warn_if_unpicklable(dataset, sharing_strategy)
        self._worker = _dataloader.AsynchronousWorker(
            buffer_size,
            miss_sleep_time_in_ms,
            self._dataset,
            load_indefinitely,
            early_preload,
            sharing_strategy,
            rebatched_size,
        )

    def terminate(self) -> None:
        """Ends the loading; there is no going on after it."""
        if self._worker is not None:
            self._worker.terminate()
            self._worker = None

    def __del__(self) -> None:
        self.terminate()

    def __len__(self) -> int:
        length = len(self._dataset)
        if self.rebatched_size and getattr(self._dataset, "_accessor", None) is not self:
            size = getattr(self._dataset, "batch_size", None)
            if size is None:
                raise TypeError("rebatched data has a length only where the dataset has a batch_size.")
            return int(length * size // self.rebatched_size)
        return length

    def __iter__(self) -> AsynchronousDataAccessor:
        self._working().resetIterator()
        return self

    def __next__(self) -> Any:
        worker = self._working()
        worker.releaseElement()
        element = worker.acquireElementIfAvailable()
        if element is None:
            raise StopIteration
        return element

    def _working(self) -> _dataloader.AsynchronousWorker:
        if self._worker is None:
            raise refuse("the loading of this data was terminated. Make a new loader.", AssertedError)
        return self._worker


def _mode(mode: Any) -> DataLoaderMode:
    if not isinstance(mode, DataLoaderMode):
        names = ", ".join(f"DataLoaderMode.{member.name}" for member in DataLoaderMode)
        raise refuse(f"mode must be one of {names}, not {mode!r}.", AssertedError)
    return mode


def _check_batch_sampler(options: Any, batch_size: Any, shuffle: Any, partitioned: bool) -> None:
    if batch_size != 1 or shuffle:
        raise createPoptorchError("batch_sampler decides about batch_size and shuffle: give no other.")
    if options.Distributed.numProcesses > 1 and partitioned:
        raise createPoptorchError("batch_sampler goes with auto_distributed_partitioning=False only.")


def _check_iterable(options: Any, num_workers: int, partitioned: bool, others: Dict[str, Any]) -> None:
    if partitioned and options.Distributed.numProcesses > 1:
        raise refuse(
            "an IterableDataset cannot be divided among processes: use auto_distributed_partitioning=False, and have "
            "the dataset give each process its part.",
            AssertedError,
        )
    if num_workers > 1 and "worker_init_fn" not in others:
        logger.warning(
            "every one of %d workers gives the whole IterableDataset: each element comes %d times. Divide it with "
            "worker_init_fn",
            num_workers,
            num_workers,
        )


def _length(batch_sampler: Any) -> Optional[int]:
    try:
        return len(batch_sampler)
    except (NotImplementedError, TypeError):
        return None
