"""Batches that other processes make are those that the loader makes here."""

from __future__ import annotations

import itertools
import json
from collections.abc import Generator, Iterator
from typing import Any

import pytest
import torch
from loader_cases import Batches, Counter, Dicts, Epochs, Noisy, Stream, assert_same, make, take
from test_loader import PLAIN
from torch.utils.data import DataLoader, IterableDataset

from portwright.data.failures import Failure
from portwright.data.loader import open_source
from portwright.data.remote import END, Wanted
from portwright.data.source import Shared
from portwright.errors import UserError
from portwright.stream import wire

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Readers:
    """A few readers in this process, each with data of its own; `dies_after` orders the one at work is replaced by a new one."""

    def __init__(self, make_data: Any, num_readers: int = 2, dies_after: int | None = None) -> None:
        self._make, self._num_readers, self._dies_after = make_data, num_readers, dies_after
        self._readers = [self._open() for _ in range(num_readers)]
        self.num_ordered = 0

    def _open(self) -> Any:
        source: Any = open_source(self._make(), Shared("train_input", 7, 0, 1))
        source.begin_serving(0, self._num_readers)
        return source

    def request(
        self, wanted: Iterator[Wanted], fingerprint: list[Any]
    ) -> Generator[tuple[Wanted, Any], None, None]:
        ahead: list[Wanted] = []
        while True:
            ahead += itertools.islice(wanted, 5 - len(ahead))
            if not ahead:
                return
            each = ahead.pop(0)
            self.num_ordered += 1
            at = (self.num_ordered if each.lane is None else each.lane) % self._num_readers
            if self._dies_after and self.num_ordered % self._dies_after == 0:
                self._readers[at] = self._open()
            assert self._readers[at].fingerprint == json.loads(json.dumps(fingerprint))
            order, _ = wire.unpack(wire.gather(wire.pack(each.order)))
            with torch.random.fork_rng():
                made = self._readers[at].make(order)
            if made is not END and type(made) is not Failure:
                made, _ = wire.unpack(wire.gather(wire.pack(made)))
            yield each, made


def served(make_data: Any, readers: Readers | None = None, **options: Any) -> Any:
    return make(make_data(), channel=readers or Readers(make_data), **options)


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
