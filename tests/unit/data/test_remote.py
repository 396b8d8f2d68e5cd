"""Batches that other processes make are those that the loader makes here."""

from __future__ import annotations

import itertools
import json
from collections.abc import Generator, Iterator
from typing import Any

import pytest
import torch
from loader_cases import Batches, Counter, Dicts, Epochs, Noisy, OwnRandom, Stream, assert_same, make, take
from test_loader import PLAIN
from torch.utils.data import DataLoader, IterableDataset

from portwright.data.failures import Failure
from portwright.data.loader import open_source
from portwright.data.source import END, NeedsFreshInput, Shared, Wanted
from portwright.errors import UserError
from portwright.runtime.stream_batches import check_sameness
from portwright.stream import wire
from portwright.stream.progress import telling

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Readers:
    """A few readers in this process, each with data of its own; `dies_after` orders the one at work is replaced by a new one.

    A lane goes to the next reader after `moves_after` of all orders, and so comes back to one that had it before.
    """

    def __init__(
        self,
        make_data: Any,
        num_readers: int = 2,
        dies_after: int | None = None,
        moves_after: int | None = None,
    ) -> None:
        self._make, self._num_readers, self._dies_after = make_data, num_readers, dies_after
        self._moves_after = moves_after
        self._opened: list[Any] = []
        self._readers = [self._open() for _ in range(num_readers)]
        self.num_ordered = 0

    def _open(self) -> Any:
        source: Any = open_source(self._make(), Shared("train_input", 7, 0, 1))
        source.begin_serving(0, self._num_readers)
        self._opened.append(source)
        return source

    def close(self) -> None:
        for source in self._opened:
            source.close()

    def request(
        self, wanted: Iterator[Wanted], fingerprint: list[Any], seen: Any
    ) -> Generator[tuple[Wanted, Any], None, None]:
        ahead: list[Wanted] = []
        while True:
            ahead += itertools.islice(wanted, 5 - len(ahead))
            if not ahead:
                return
            each = ahead.pop(0)
            self.num_ordered += 1
            at = (self.num_ordered if each.lane is None else each.lane) % self._num_readers
            if self._moves_after:
                at = (at + self.num_ordered // self._moves_after) % self._num_readers
            if self._dies_after and self.num_ordered % self._dies_after == 0:
                self._readers[at] = self._open()
            check_sameness(
                "train_input",
                self._readers[at],
                *json.loads(json.dumps([fingerprint, seen], allow_nan=False)),
            )
            order, _ = wire.unpack(wire.gather(wire.pack(each.order)))
            with torch.random.fork_rng():
                try:
                    made = self._readers[at].make(order)
                except NeedsFreshInput:
                    self._readers[at] = self._open()
                    made = self._readers[at].make(order)
            if made is not END and type(made) is not Failure:
                made, _ = wire.unpack(wire.gather(wire.pack(made)))
            yield each, made


_served: list[tuple[Any, Readers]] = []


def served(make_data: Any, readers: Readers | None = None, **options: Any) -> Any:
    readers = readers or Readers(make_data)
    loader = make(make_data(), channel=readers, **options)
    _served.append((loader, readers))
    return loader


@pytest.fixture(autouse=True)
def _close_what_was_served() -> Iterator[None]:
    """Lanes that the garbage collector meets have lost the thread that ends their workers: each is waited for in vain."""
    yield
    while _served:
        loader, readers = _served.pop()
        loader.close()
        readers.close()


NOT_OVER_A_WIRE = {"sampler of keys"}  # a dict is no data set of samples that a process could open twice


@pytest.mark.parametrize("dies_after", [None, 3])
@pytest.mark.parametrize("case", [case for case in PLAIN if case not in NOT_OVER_A_WIRE])
def test_an_epoch_read_by_others_is_the_same(case: str, dies_after: int | None) -> None:
    expected = list(make(PLAIN[case]()))
    readers = Readers(PLAIN[case], dies_after=dies_after)
    assert_same(list(served(PLAIN[case], readers)), expected)
    repeating = served(PLAIN[case], Readers(PLAIN[case], dies_after=dies_after), repeat=True)
    assert_same(take(repeating, 2 * len(expected) + 1), expected * 2 + expected[:1])
    repeating.close()


DRAWING = {
    "samples": lambda: DataLoader(Noisy(10), batch_size=3, shuffle=True, num_workers=2),
    "stream": lambda: DataLoader(Stream(30), batch_size=3),
    "stream, workers": lambda: DataLoader(Stream(36), batch_size=3, num_workers=3),
    "iterable": lambda: Batches(7),
    "told the epoch": lambda: Epochs(5),
}


@pytest.mark.parametrize("start", [0, 1, 4, 9, 14])
@pytest.mark.parametrize("case", DRAWING)
def test_a_run_goes_on_anywhere_with_what_it_would_have_drawn(case: str, start: int) -> None:
    reference = make(DRAWING[case](), repeat=True)
    expected = take(reference, 16)
    reference.close()
    first = served(DRAWING[case], repeat=True)
    assert_same(take(first, start), expected[:start])
    position = json.loads(json.dumps(first.position()))
    first.close()
    second = served(DRAWING[case], repeat=True)
    second.seek(position)
    assert_same(take(second, 16 - start), expected[start:])
    assert second.position()["samples"] == sum(len(_first(batch)) for batch in expected)
    second.close()


WANDERING = {
    **DRAWING,
    "carries a generator": lambda: OwnRandom(7),
    "counts its passes": lambda: DataLoader(Passes(7), batch_size=2),
    "has a state": lambda: DataLoader(Counter(9), batch_size=2),
    "once": lambda: iter([torch.full((2,), number) for number in range(20)]),
}


class Passes(IterableDataset):
    """Says how often it was begun, and how much was read of it before."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples, self.num_passes, self.num_read = num_samples, 0, 0

    def __iter__(self) -> Iterator[Any]:
        self.num_passes += 1
        for index in range(self.num_samples):
            self.num_read += 1
            yield torch.tensor([self.num_passes, self.num_read, index])


@pytest.mark.parametrize("moves_after", [1, 2, 5, 9])
@pytest.mark.parametrize("case", WANDERING)
def test_a_lane_that_comes_back_to_who_had_it_before(case: str, moves_after: int) -> None:
    reference = make(WANDERING[case](), repeat=True)
    expected = take(reference, 16)
    reference.close()
    readers = Readers(WANDERING[case], moves_after=moves_after)
    streamed = served(WANDERING[case], readers, repeat=True)
    assert_same(take(streamed, 16), expected)
    streamed.close()


def test_an_evaluation_that_is_given_up_leaves_the_next_one_whole() -> None:
    def data() -> Any:
        return DataLoader(Passes(8), batch_size=2)

    expected = list(make(data()))
    loader = served(data, Readers(data, num_readers=1))
    assert_same(take(loader, 2), expected[:2])
    assert_same(list(loader), expected)
    assert_same(list(loader), expected)


def test_one_input_is_not_sharded_as_the_worker_of_another() -> None:
    def data() -> Any:
        return DataLoader(Stream(8, noise=False), batch_size=2)

    for _ in range(2):  # whichever is opened first
        mapped: Any = open_source(
            DataLoader(Asking(6), batch_size=2, num_workers=3), Shared("train_input", 7, 0, 1)
        )
        mapped.begin_serving(1, 2)
        order = next(mapped.wanted(0, 0)).order
        assert mapped.make(order).tolist() == [1, 1], "as a worker would be answered"
        assert torch.utils.data.get_worker_info() is None
        assert_same(list(served(data)), list(make(data())))
        assert mapped.make(order).tolist() == [1, 1]


class Asking(Dicts):
    def __getitem__(self, index: int) -> Any:
        info = torch.utils.data.get_worker_info()
        return -1 if info is None else info.id


def test_a_worker_is_initialised_as_such_and_only_then() -> None:
    asked: list[Any] = []

    def init(worker: int) -> None:
        asked.append((worker, torch.utils.data.get_worker_info()))

    loader = DataLoader(Asking(6), batch_size=2, num_workers=3, worker_init_fn=init)
    source: Any = open_source(loader, Shared("train_input", 7, 0, 1))
    assert source.probe is None
    source.begin_serving(1, 2)
    ((worker, info),) = asked
    assert (worker, info.id, info.num_workers, info.dataset) == (1, 1, 2, loader.dataset)
    assert torch.utils.data.get_worker_info() is None


class Drawn:
    """Batches by number, with draws in them."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, number: int) -> Any:
        if number >= 5:
            raise IndexError
        return {"number": torch.full((2,), number), "noise": torch.rand(2, dtype=torch.float64)}


def test_a_list_that_draws_gives_the_same_whoever_reads_it() -> None:
    whole = take(served(Drawn, repeat=True), 10)
    assert_same(take(served(Drawn, Readers(Drawn, 3, dies_after=2), repeat=True), 10), whole)
    assert len({batch["noise"][0].item() for batch in whole}) == 10
    again = served(Drawn, repeat=True)
    take(again, 4)
    state = torch.get_rng_state()
    assert_same([again.recent(2)], [whole[2]])
    assert torch.equal(torch.get_rng_state(), state)


def _first(batch: Any) -> Any:
    return next(iter(batch.values())) if isinstance(batch, dict) else batch


class Uneven(IterableDataset):
    """Lanes of 1, 2 and 6 samples."""

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        assert info.num_workers == 3
        for index in range((1, 2, 6)[info.id]):
            yield torch.tensor([10 * info.id + index])


def test_lanes_that_end_early_shift_nothing() -> None:
    def data() -> Any:
        return DataLoader(Uneven(), batch_size=1, num_workers=3)

    assert [batch.item() for batch in served(data)] == [0, 10, 20, 11, 21, 22, 23, 24, 25]
    for start in range(1, 9):
        first = served(data, repeat=True)
        whole = [batch.item() for batch in take(first, 18)]
        first.close()
        first = served(data, repeat=True)
        take(first, start)
        second = served(data, repeat=True)
        second.seek(json.loads(json.dumps(first.position())))
        assert [batch.item() for batch in take(second, 18 - start)] == whole[start:], start


@pytest.mark.parametrize("start", range(9))
def test_a_run_that_read_by_itself_goes_on_through_others(start: int) -> None:
    def data() -> Any:
        return DataLoader(Uneven(), batch_size=1, num_workers=3)

    first = make(data(), repeat=True)
    whole = [batch.item() for batch in take(first, 14)]
    first.close()
    first = make(data(), repeat=True)
    take(first, start)
    position = json.loads(json.dumps(first.position()))
    first.close()
    second = served(data, repeat=True)
    second.seek(position)
    assert [batch.item() for batch in take(second, 14 - start)] == whole[start:]
    assert second.position()["samples"] == 14
    second.close()


def test_fewer_batches_than_a_run_had_are_an_error() -> None:
    def data() -> Any:
        return DataLoader(Uneven(), batch_size=1, num_workers=3)

    loader = served(data, repeat=True)
    loader.seek({"epoch": 0, "batch": 12, "samples": 12, "batch_size": 1})
    with pytest.raises(UserError, match=r"continues at batch 12 of an epoch, and Uneven gives fewer"):
        take(loader, 1)


class Flaky(IterableDataset):
    """Fails at its third sample, but not the first time."""

    def __init__(self, mark: Any) -> None:
        self.mark = mark

    def __iter__(self) -> Iterator[Any]:
        for index in range(8):
            if index == 2 and self.mark.exists():
                raise OSError("the file server is gone")
            yield torch.tensor([index])


def test_what_fails_while_it_is_read_again_is_told_and_loses_nothing(tmp_path: Any) -> None:
    def data() -> Any:
        return DataLoader(Flaky(tmp_path / "mark"), batch_size=1, num_workers=1)

    readers = Readers(data, num_readers=1, dies_after=7)
    loader = served(data, readers)
    batches = iter(loader)
    assert [next(batches).item() for _ in range(6)] == list(range(6))
    (tmp_path / "mark").touch()
    with pytest.raises(UserError, match="the file server is gone"):
        list(batches)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_who_reads_again_says_that_it_gets_on(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portwright.stream.progress._EVERY_SECONDS", -1.0)
    loader = DataLoader(Stream(40), batch_size=2, num_workers=num_workers)
    source: Any = open_source(loader, Shared("train_input", 7, 0, 1))
    told: list[int] = []
    with telling(lambda: told.append(1)):
        source.make({"epoch": 0, "lane": 0, "index": 6})
        assert len(told) == 6
        source.make({"epoch": 0, "lane": 0, "index": 9})
        assert len(told) == 8, "it goes on from where it is"
    source.close()


def test_an_epochs_end_does_not_stop_what_is_ordered_ahead() -> None:
    def data() -> Any:
        return DataLoader(Dicts(6), batch_size=2)

    readers = Readers(data)
    loader = served(data, readers, repeat=True)
    take(loader, 3)
    assert readers.num_ordered == 3
    batches = iter(loader)
    next(batches)
    assert readers.num_ordered == 4, "one channel serves both epochs"


class Broken(Dicts):
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise OSError("no such file")
        return torch.tensor(index)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_bad_sample_is_named_as_if_it_had_been_read_here(num_workers: int) -> None:
    def data() -> Any:
        return DataLoader(Broken(8), batch_size=2, num_workers=num_workers)

    with pytest.raises(
        UserError, match=r"Broken failed on sample 5 \(epoch 0, batch 2\): OSError: no such file"
    ):
        list(served(data))


def test_an_iterable_that_gives_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="gave no batch"):
        list(served(lambda: DataLoader(Stream(0), batch_size=2)))


def test_a_stream_with_a_state_of_its_own_is_read_from_its_start() -> None:
    expected = take(make(DataLoader(Counter(9), batch_size=2), repeat=True), 5)
    first = served(lambda: DataLoader(Counter(9), batch_size=2), repeat=True)
    take(first, 3)
    second = served(lambda: DataLoader(Counter(9), batch_size=2), repeat=True)
    second.seek(json.loads(json.dumps(first.position())))
    assert_same(take(second, 2), expected[3:])
