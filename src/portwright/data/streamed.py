"""Data that can only be iterated: IterableDatasets behind a DataLoader, and iterables of batches."""

from __future__ import annotations

import copy
import json
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from portwright.data.failures import Failure, describe, name_cause, name_of, too_short_error
from portwright.data.order import is_resumed_by_itself, iterates_like
from portwright.data.seeding import RandomStream, derive_seed, make_generator, untouched_cuda_rng
from portwright.data.source import END, NeedsFreshInput, Numbered, Shared, Source, Wanted
from portwright.data.workers import Progress, StreamBatches, as_is, copy_loader, pin, pins
from portwright.errors import PortwrightError, UserError
from portwright.stream.progress import tell_progress

_NOTHING_MORE = object()


class StreamSource(Source):
    """Batches from an iterable; every rank reads all of it and takes its part of each batch.

    In the main process the iterable draws from a RandomStream that is seeded by the epoch. So all ranks read the same
    batches, and an epoch that is read again gives the same batches.
    """

    knows_its_end = False

    def __init__(self, given: Any, shared: Shared) -> None:
        self._loader: DataLoader[Any] | None = None
        if isinstance(given, DataLoader) and not _is_opaque(given, shared):
            self._loader = given
        self._inner: Any = given if self._loader is None else self._loader.dataset
        super().__init__(shared, name_of(self._inner), self._inner)
        collate_fn: Any = as_is
        drop_last = False
        self._num_workers = 0
        if self._loader is not None:
            self.batch_size, drop_last, collate_fn = given.batch_size, given.drop_last, given.collate_fn
            self._num_workers = given.num_workers
        if self._num_workers:
            self._progress = Progress(self._num_workers)
        if self._num_parts > 1:
            shared.check_batch_size(self.batch_size)
            shared.note(
                f"every process reads all of {self._what} and takes its part of each batch. If it shards by itself, "
                "let it say so by attributes num_replicas and rank."
            )
        self._measure(drop_last)
        self._batches = StreamBatches(
            self._inner, self.batch_size, drop_last, collate_fn, shared.seed, self._progress
        )
        self._is_one_shot = hasattr(self._inner, "__next__") and iter(self._inner) is self._inner
        self._is_stateful = is_resumed_by_itself(self._inner) and self._num_workers == 0
        self._has_set_epoch = callable(getattr(self._inner, "set_epoch", None))
        self._num_passes = 0  # how often this process has begun to iterate
        self._random = RandomStream(0, spotless=False)
        self._pending: dict[str, Any] | None = None
        self._first_state: Any = None  # from before the first epoch, to read earlier epochs again
        self._has_begun = False
        # By lane: (epoch, number) of its next batch, and the iterator that gives it.
        self._lanes: dict[int, tuple[tuple[int, int], Iterator[Any]]] = {}
        self._is_inside_pass = False  # this process reads the iterable itself and has not reached its end
        self._ended: set[int] = set()
        self._num_finished = 0
        self._num_unwanted = 0  # batches used before the resume, read again only to count them
        self._slot: int | None = None  # the lane's turn to resume at; None where it is not known
        self._next_slot: int | None = None

    @property
    def is_ahead(self) -> bool:
        return self._num_workers > 0

    def _measure(self, drop_last: bool) -> None:
        if self._loader is None:
            self.num_batches = _length_hint(self._inner)
            return
        if self.batch_size is None:
            return
        num_samples = _length_hint(self._inner)
        if num_samples is None or self._loader.num_workers > 1:
            return  # each worker has a last batch, so that their number is not known
        self.num_batches, rest = divmod(num_samples, self.batch_size)
        self.num_samples_of_last = self.batch_size
        if rest and not drop_last and (rest >= self._num_parts or self._shared.keeps_small):
            self.num_batches += 1
            self.num_samples_of_last = rest

    def read(self, epoch: int, start: int) -> Iterator[Numbered]:
        state, self._pending = self._pending, None
        if state is not None:
            self._load_inner(state["dataset"])
        else:
            self._rewind(epoch)
        random_state = state["random"] if state is not None and start else None
        with closing(self._begin(epoch, random_state)) as batches:
            if start and state is None:
                self._skip(batches, epoch, start)
            yield from self.take_parts(epoch, start, batches)

    def no_batch_error(self, epoch: int, num_dropped: int) -> UserError:
        if epoch == 0 or num_dropped:
            return super().no_batch_error(epoch, num_dropped)
        return UserError(
            f"{self._shared.name}: {self._what} gave nothing more in epoch {epoch}, so it can be read only once.",
            "Let its __iter__ start anew each time, or return a DataLoader or a list.",
        )

    def _load_inner(self, state: Any) -> None:
        try:
            self._inner.load_state_dict(copy.deepcopy(state))
        except Exception as error:
            raise UserError(
                f"{self._shared.name}: {self._what} refused a state that it gave before: {describe(error)}",
                "Give back the data set of the interrupted run, or start anew in another model_dir.",
            ) from error

    def _rewind(self, epoch: int) -> None:
        """Brings the iterable to the start of an epoch.

        It may keep state from one epoch to the next, so that without workers the earlier epochs are read again.
        """
        if self._is_one_shot and self._has_begun:
            raise UserError(
                f"{self._shared.name}: the {self._what} has been read, and it can be read only once.",
                "Return a DataLoader or a list of batches, which can be read again in the next epoch.",
            )
        if self._num_passes > epoch and self._first_state is not None:
            self._load_inner(self._first_state)
            self._num_passes = 0
        if self._num_workers or self._has_set_epoch or self._num_passes >= epoch:
            return
        self._shared.note(
            f"{self._what} cannot seek: to continue in epoch {epoch}, the epochs before are read again and thrown "
            "away. A method set_epoch(epoch), or state_dict and load_state_dict, would spare that."
        )
        while self._num_passes < epoch:
            past = self._num_passes
            with untouched_cuda_rng():
                for batch in self._begin(past, None):
                    tell_progress()
                    self.check(past, 0, batch)

    def _skip(self, batches: Iterator[Any], epoch: int, start: int) -> None:
        self._shared.note(
            f"{self._what} cannot seek: the batches that were used before are read again and thrown away."
            + (
                " Its state_dict is used only with num_workers=0."
                if is_resumed_by_itself(self._inner)
                else ""
            )
        )
        with untouched_cuda_rng():
            for number in range(start):
                tell_progress()
                batch = next(batches, _NOTHING_MORE)
                if batch is _NOTHING_MORE:
                    raise too_short_error(self._shared.name, self._what, start)
                self.check(epoch, number, batch)

    def _begin(self, epoch: int, random_state: dict[str, Any] | None) -> Generator[Any, None, None]:
        if self._is_stateful and not self._has_begun and self._first_state is None:
            self._first_state = copy.deepcopy(self._inner.state_dict())
        self._num_passes = epoch + 1
        self._has_begun = True
        self._batches.epoch = epoch
        if self._has_set_epoch and random_state is None:
            self._inner.set_epoch(epoch)
        if self._num_workers:
            return self._in_workers(epoch)
        self._random = RandomStream(derive_seed(self._shared.seed, "stream", epoch), spotless=False)
        if random_state is not None:
            self._random.load_state(random_state)
        batches = self._in_process(self._random)
        return pin(batches) if self._loader is not None and pins(self._loader) else batches

    def _in_process(self, random: RandomStream) -> Generator[Any, None, None]:
        batches = iter(self._batches)
        while True:
            with random:
                batch = next(batches, _NOTHING_MORE)
            if batch is _NOTHING_MORE:
                return
            yield batch

    def _in_workers(self, epoch: int) -> Generator[Any, None, None]:
        assert self._loader is not None
        generator = make_generator(derive_seed(self._shared.seed, "stream", epoch))
        try:
            yield from copy_loader(self._loader, self._batches, None, generator)
        except PortwrightError:
            raise
        except Exception as error:
            # The new error gets no local name: frame and error would keep each other, and the workers, alive.
            raise name_cause(error, epoch, self.explain, self._workers_error)  # noqa: B904

    def _workers_error(self, error: Exception, epoch: int) -> UserError:
        return UserError(
            f"{self._shared.name}: the workers of {self._what} failed (epoch {epoch}): {describe(error)}",
            "Set num_workers to 0 to see whether the data or the processes are at fault.",
        )

    def _name_death(self, epoch: int, batch: int, place: int) -> str:
        return f"its sample {place} (epoch {epoch}, batch {batch} of that worker)"

    def state(self) -> dict[str, Any] | None:
        # A lane that ended early shifts the turns of the others, so that a batch's number does not give its lane.
        if self._next_slot is not None:
            return {"dataset": {"slot": self._next_slot}, "random": {}, "has_ended": False}
        if self._pending is not None:
            return {**self._pending, "has_ended": False}
        if not self._is_stateful or not self._has_begun:
            return None
        state = self._inner.state_dict()
        try:
            copied = json.loads(json.dumps(state))
            is_json = bool(copied == state)
        except (TypeError, ValueError):
            is_json = False
        if not is_json:
            self._shared.note(
                f"the state_dict of {self._what} is not plain JSON, so that batches are read again instead."
            )
            return None
        return {"dataset": copied, "random": self._random.state(), "has_ended": self._batches.has_ended}

    def load_state(self, state: dict[str, Any] | None) -> None:
        slot = (
            None if state is None or not isinstance(state["dataset"], dict) else state["dataset"].get("slot")
        )
        if type(slot) is int and not state["random"]:  # type: ignore[index]
            self._slot = slot
            return
        self._pending = state if self._is_stateful else None

    # -- batches that other processes make; lane k is what worker k of the user's loader gives -------------------------------

    @property
    def lanes_have_ended(self) -> bool:
        return len(self._ended) == max(1, self._num_workers)

    @property
    def pins_memory(self) -> bool:
        return self._loader is not None and pins(self._loader)

    @property
    def fingerprint(self) -> list[Any]:
        return [self._what, self.batch_size, self._num_workers]

    def wanted(self, epoch: int, start: int) -> Iterator[Wanted]:
        num_lanes = max(1, self._num_workers)
        slot, self._slot = (self._slot if start else 0), None
        self._num_unwanted = 0
        if slot is None:
            # The state is of a run without other processes. A batch's number does not show which lanes ended early.
            slot, self._num_unwanted = (start, 0) if num_lanes == 1 else (0, start)
        self._ended, self._num_finished = set(), start - self._num_unwanted
        while not self.lanes_have_ended:
            lane = slot % num_lanes
            if lane not in self._ended:
                yield Wanted(epoch, {"epoch": epoch, "lane": lane, "index": slot // num_lanes}, lane, slot)
            slot += 1

    def make(self, order: dict[str, Any]) -> Any:
        epoch, lane, index = order["epoch"], order["lane"], order["index"]
        at, batches = self._lanes.pop(lane, ((-1, -1), None))
        if batches is None or at[0] != epoch or at[1] > index:
            batches = self._open_lane(epoch, lane, index)
        elif at[1] < index:  # another process has read the batches between
            batches = _pass_over(index - at[1], batches)
        batch = next(batches, END)
        if batch is END:
            batches = iter(())
            self._is_inside_pass = False
        self._lanes[lane] = ((epoch, index + 1), batches)
        return batch

    def _open_lane(self, epoch: int, lane: int, index: int) -> Iterator[Any]:
        """Opens a lane at batch `index`; earlier batches are read again and dropped."""
        if self._num_workers == 0:
            # The iterable may keep state from pass to pass, above all from a pass that was abandoned.
            knows_its_place = self._has_set_epoch or self._first_state is not None
            if self._is_inside_pass or (self._num_passes > epoch and not knows_its_place):
                raise NeedsFreshInput
            self._is_inside_pass = True
            return (batch for _, batch, _ in self.read(epoch, index))
        assert self._loader is not None
        batches = copy.copy(self._batches)
        batches.epoch = epoch
        if self._has_set_epoch:
            self._inner.set_epoch(epoch)
        generator = make_generator(derive_seed(self._shared.seed, "stream", epoch))
        return _pass_over(index, iter(copy_loader(self._loader, batches, None, generator, lane)))

    def finish(self, wanted: Wanted, made: Any) -> Numbered | None:
        if made is END:
            assert wanted.lane is not None
            self._ended.add(wanted.lane)
            if self.lanes_have_ended and not self._num_finished:
                raise self.no_batch_error(wanted.epoch, 0)
            if self.lanes_have_ended and self._num_finished < self._num_unwanted:
                raise too_short_error(self._shared.name, self._what, self._num_unwanted)
            return None
        number, self._num_finished = self._num_finished, self._num_finished + 1
        self.check(wanted.epoch, number, made)
        self._next_slot = wanted.kept + 1
        return None if number < self._num_unwanted else self.take_part(wanted.epoch, number, made)

    def close(self) -> None:
        self._lanes.clear()


def _is_opaque(loader: DataLoader[Any], shared: Shared) -> bool:
    """Whether only the user's loader can iterate its data set, as for torch's old data pipes."""
    data_pipe = getattr(torch.utils.data, "IterDataPipe", ())
    if not isinstance(loader.dataset, data_pipe):
        return not iterates_like(loader, DataLoader)
    if shared.world_size > 1:
        raise UserError(
            f"{shared.name}: {type(loader.dataset).__name__} is a data pipe, which torch shards in its own way; this run "
            f"has {shared.world_size} processes.",
            "Wrap the pipe in an IterableDataset whose __iter__ iterates over it, or start one process.",
        )
    return True


def _pass_over(num_batches: int, batches: Iterator[Any]) -> Iterator[Any]:
    """The batches after the first `num_batches`. An error on the way is given in their place, and not lost as an end."""
    for batch in islice(batches, num_batches):
        tell_progress()
        if type(batch) is Failure:
            return iter([batch])
    return batches


def _length_hint(sized: Any) -> int | None:
    if isinstance(sized, DataLoader) and isinstance(sized.dataset, IterableDataset):
        return None  # asking makes torch warn when another number of batches comes
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None
