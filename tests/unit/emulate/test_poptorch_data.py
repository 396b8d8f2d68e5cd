"""poptorch.DataLoader gives what torch's gives with the combined batch, in every mode."""

from __future__ import annotations

import gc
import logging
import math
import multiprocessing
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
    get_worker_info,
)

from portwright.emulate import poptorch
from portwright.emulate.poptorch._dataloader import AsynchronousDataAccessor, DataLoader
from portwright.emulate.poptorch.enums import DataLoaderMode, SharingStrategy
from portwright.emulate.poptorch.poptorch_core import Error

MODES = list(DataLoaderMode)


class Numbers(Dataset[Any]):
    """Elements that say their own index."""

    def __init__(
        self, length: int, make: Callable[[int], Any] = lambda index: torch.full((2,), float(index))
    ) -> None:
        self.length, self.make = length, make
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index >= self.length:
            raise IndexError(index)
        self.asked.append(int(index))
        return self.make(int(index))


class Stream(IterableDataset[Any]):
    def __init__(self, length: int) -> None:
        self.length, self.start = length, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(self.start, self.start + self.length):
            yield torch.tensor(index)


class LongStream(Stream):
    def __len__(self) -> int:
        return self.length


def share(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    stream: Any = info.dataset
    part = math.ceil(stream.length / info.num_workers)
    stream.start, stream.length = part * worker, min(part, stream.length - part * worker)


def options(
    device_iterations: int = 1,
    gradient_accumulation: int = 1,
    replicas: int = 1,
    process: tuple[int, int] = (0, 1),
) -> Any:
    made = poptorch.Options()
    made.deviceIterations(device_iterations)
    made.replicationFactor(replicas)
    made.Training.gradientAccumulation(gradient_accumulation)
    made.Distributed.configureProcessId(*process)
    return made


def values(batches: Any) -> list[list[float]]:
    return [batch[:, 0].tolist() for batch in batches]


def as_pair(index: int) -> Any:
    return torch.full((2, 3), float(index)), index


def as_dict(index: int) -> Any:
    return {"data": torch.full((2,), float(index), dtype=torch.float16), "label": torch.tensor([index])}


def as_tensor(index: int) -> Any:
    return torch.full((2,), float(index))


def assert_same(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, torch.Tensor):
            assert torch.equal(one, other)
            assert one.dtype == other.dtype
        elif isinstance(other, dict):
            assert isinstance(one, dict)
            assert list(one) == list(other)
            assert_same(list(one.values()), list(other.values()))
        else:
            assert isinstance(one, (list, tuple))
            assert_same(one, other)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize(
    ("length", "make", "shuffle"),
    [(1, as_tensor, False), (12, as_pair, False), (23, as_dict, True), (24, as_tensor, True)],
)
def test_batches_are_torchs_with_the_combined_size(
    make: Any, mode: DataLoaderMode, shuffle: bool, drop_last: bool, length: int
) -> None:
    if length < 12 and drop_last and mode is not DataLoaderMode.Sync:
        with pytest.raises(Error, match="empty"):
            DataLoader(options(3, 2), Numbers(length, make), batch_size=2, mode=mode)
        return
    dataset = Numbers(length, make)
    torch.manual_seed(3)
    expected_loader = torch.utils.data.DataLoader(dataset, 12, shuffle=shuffle, drop_last=drop_last)
    expected = [list(expected_loader) for _ in range(2)]
    torch.manual_seed(3)
    loader = DataLoader(options(3, 2), dataset, batch_size=2, shuffle=shuffle, mode=mode, drop_last=drop_last)
    assert loader.combinedBatchSize == 12
    assert len(loader) == len(expected_loader)
    for epoch in expected:
        assert_same(list(loader), epoch)


@pytest.mark.parametrize(
    ("made", "combined"),
    [
        (options(), 4),
        (options(5), 20),
        (options(1, 3), 12),
        (options(1, 1, 4), 16),
        (options(2, 3, 4), 96),
    ],
)  # fmt: skip
def test_a_batch_holds_what_one_call_takes(made: Any, combined: int) -> None:
    loader = DataLoader(made, Numbers(200), batch_size=4)
    assert loader.combinedBatchSize == combined
    assert loader.options is made
    assert {len(batch) for batch in loader} == {combined}


def test_options_are_frozen_by_a_loader() -> None:
    made = options()
    DataLoader(made, Numbers(4))
    with pytest.raises(Exception, match="can't be changed"):
        made.deviceIterations(2)


@pytest.mark.parametrize("mode", MODES)
def test_worker_processes_give_the_same_and_end_with_the_loader(mode: DataLoaderMode) -> None:
    before = set(multiprocessing.active_children())
    loader = DataLoader(options(2), Numbers(22, as_tensor), batch_size=3, num_workers=2, mode=mode)
    assert loader.persistent_workers
    wanted = [[float(i) for i in range(start, start + 6)] for start in (0, 6, 12)]
    assert values(loader) == wanted
    assert values(loader) == wanted
    next(iter(loader))
    loader.terminate()
    del loader
    gc.collect()
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize("mode", MODES[1:])
def test_an_interrupted_epoch_starts_again(mode: DataLoaderMode) -> None:
    loader = DataLoader(options(), Numbers(10), batch_size=2, mode=mode)
    for _, batch in zip(range(3), loader, strict=False):
        last = batch
    assert last[0, 0] == 4.0
    assert values(loader) == [[float(i), i + 1.0] for i in range(0, 10, 2)]
    iter(loader)
    iter(loader)
    assert values(loader)[0] == [0.0, 1.0]
    with pytest.raises(StopIteration):
        next(loader._accessor)  # type: ignore[arg-type]


def test_a_loader_that_only_the_loop_holds() -> None:
    assert values(b for b in DataLoader(options(), Numbers(4), batch_size=2, mode=DataLoaderMode.Async)) == [
        [0.0, 1.0],
        [2.0, 3.0],
    ]


def test_loading_ahead_draws_no_random_number_of_the_callers() -> None:
    def numbers() -> list[float]:
        return [torch.rand(()).item(), random.random(), np.random.rand()]

    def noisy(index: int) -> torch.Tensor:
        return torch.tensor([torch.rand(()).item(), random.random(), np.random.rand()])

    def seed() -> None:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)

    seed()
    expected = [numbers() for _ in range(3)]
    seed()
    loader = DataLoader(options(), Numbers(3, noisy), shuffle=True, mode=DataLoaderMode.Async)
    found, batches = [], []
    for batch in loader:
        found.append(numbers())
        batches.append(batch[0].tolist())
    assert found == expected
    seed()
    again = [batch[0].tolist() for batch in DataLoader(options(), Numbers(3, noisy), shuffle=True)]
    assert [[pytest.approx(value) for value in batch] for batch in again] == batches


def test_what_is_left_over_is_told_of(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "poptorch"):
        DataLoader(options(2), Numbers(10), batch_size=2, drop_last=False)
        assert "10 elements do not fill calls of 4: the last batch has a size of 2" in caplog.text
        caplog.clear()
        DataLoader(options(2), Numbers(12), batch_size=2, drop_last=False)
        DataLoader(options(2), Numbers(10), batch_size=2)
    assert caplog.text == ""


@pytest.mark.parametrize("mode", MODES)
def test_streams_of_several_workers(mode: DataLoaderMode) -> None:
    loader = DataLoader(
        options(), LongStream(17), batch_size=4, num_workers=2, worker_init_fn=share, mode=mode
    )
    assert len(loader) == 4
    for _ in range(2):
        seen = sorted(value for batch in loader for value in batch.tolist())
        whole = 16  # rebatching puts the rests of the workers (9 and 8 elements) together
        assert len(seen) == whole
        assert len(set(seen)) == whole
    loader.terminate()


def test_rebatching_puts_rests_together() -> None:
    def loader(mode: DataLoaderMode, drop_last: bool) -> Any:
        return DataLoader(
            options(),
            LongStream(11),
            batch_size=4,
            num_workers=2,
            worker_init_fn=share,
            mode=mode,
            drop_last=drop_last,
        )

    assert sorted(map(len, loader(DataLoaderMode.Sync, True))) == [4, 4]  # 6 and 5 elements, each with a rest
    assert sorted(map(len, loader(DataLoaderMode.Sync, False))) == [1, 2, 4, 4]
    for mode in MODES[1:]:
        rebatched = loader(mode, False)
        assert list(map(len, rebatched)) == [4, 4, 3]
        assert len(rebatched) == 3
        assert sorted(value for batch in rebatched for value in batch.tolist()) == list(range(11))
    assert list(map(len, loader(DataLoaderMode.AsyncRebatched, True))) == [4, 4]


@pytest.mark.parametrize("size", [1, 2, 5, 6])
@pytest.mark.parametrize("drop_last", [True, False])
def test_workers_may_load_less_at_a_time(size: int, drop_last: bool) -> None:
    loader = DataLoader(
        options(3),
        Numbers(23, as_pair),
        batch_size=2,
        mode=DataLoaderMode.AsyncRebatched,
        rebatched_worker_size=size,
        drop_last=drop_last,
    )
    batches = [labels.tolist() for _, labels in loader]
    wanted = [list(range(start, min(start + 6, 23))) for start in range(0, 23, 6)]
    assert batches == (wanted[:-1] if drop_last else wanted)
    assert len(loader) == len(batches)


@pytest.mark.parametrize("size", [0, -1, 7])
def test_workers_cannot_load_more_than_a_batch(size: int) -> None:
    with pytest.raises(AssertionError, match=f"rebatched_worker_size.*6.*{size}"):
        DataLoader(
            options(3),
            Numbers(9),
            batch_size=2,
            mode=DataLoaderMode.AsyncRebatched,
            rebatched_worker_size=size,
        )


@pytest.mark.parametrize("mode", MODES)
def test_without_batches_elements_come_as_they_are(mode: DataLoaderMode) -> None:
    loader = DataLoader(options(3), Stream(4), batch_size=None, drop_last=False, mode=mode)  # type: ignore[arg-type]
    assert loader.combinedBatchSize is None
    assert [value.item() for value in loader] == [0, 1, 2, 3]
    assert [value.item() for value in loader] == [0, 1, 2, 3]
    with pytest.raises(TypeError):
        len(loader)


def test_batch_size_none_with_drop_last_is_torchs_error() -> None:
    with pytest.raises(ValueError, match="batch_size=None"):
        DataLoader(options(), Stream(4), batch_size=None)  # type: ignore[arg-type]


def test_several_processes_are_refused() -> None:
    with pytest.raises(Error, match=r"Options\.Distributed.*replicationFactor"):
        DataLoader(options(process=(1, 2)), Numbers(10))


# A batch sampler of the user's


def collate(elements: list[Any]) -> Any:
    return {
        "data": torch.stack([data for data, _ in elements]),
        "label": torch.tensor([label for _, label in elements]),
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("drop_last", [True, False])
def test_batches_of_a_sampler_are_put_together(mode: DataLoaderMode, drop_last: bool) -> None:
    dataset = Numbers(23, as_pair)
    loader = DataLoader(
        options(3),
        dataset,
        batch_sampler=BatchSampler(SequentialSampler(dataset), 2, drop_last),
        drop_last=drop_last,
        collate_fn=collate,
        mode=mode,
    )
    assert loader.combinedBatchSize == 6
    batches = list(loader)
    wanted = [list(range(start, min(start + 6, 23))) for start in range(0, 23, 6)]
    assert [batch["label"].tolist() for batch in batches] == (wanted[:-1] if drop_last else wanted)


def test_a_sampler_decides_alone(caplog: Any) -> None:
    dataset = Numbers(10)
    sampler = BatchSampler(SequentialSampler(dataset), 2, False)
    with pytest.raises(Error, match="batch_size"):
        DataLoader(options(), dataset, batch_size=2, batch_sampler=sampler)
    with pytest.raises(Error, match="shuffle"):
        DataLoader(options(), dataset, shuffle=True, batch_sampler=sampler)
    with caplog.at_level(logging.WARNING, "poptorch"):
        DataLoader(options(3), dataset, batch_sampler=sampler, drop_last=False)
        assert (
            "5 batches of batch_sampler do not fill calls of 3: the last batch has a size of 4" in caplog.text
        )
        loader = DataLoader(options(2), dataset, batch_sampler=[[0, 1], [4, 5]])
        assert values(loader) == [[0.0, 1.0, 4.0, 5.0]]
        caplog.clear()
        DataLoader(options(2), dataset, batch_sampler=iter([[0, 1]]), drop_last=False)  # type: ignore[arg-type]
        assert "no length" in caplog.text


# Loading ahead


@pytest.mark.parametrize("strategy", list(SharingStrategy))
def test_an_accessor_takes_any_dataset_or_loader(strategy: SharingStrategy) -> None:
    for dataset in (
        Numbers(5, as_tensor),
        Stream(5),
        [torch.tensor(i) for i in range(5)],
        torch.utils.data.DataLoader(TensorDataset(torch.arange(5))),
        DataLoader(options(), Numbers(5, as_tensor)),
    ):
        accessor = AsynchronousDataAccessor(dataset, sharing_strategy=strategy)  # type: ignore[arg-type]
        for _ in range(2):
            found = [
                torch.as_tensor(element[0] if isinstance(element, list) else element).flatten()[0]
                for element in accessor
            ]
            assert [int(value) for value in found] == [0, 1, 2, 3, 4]
        if not isinstance(dataset, Stream):
            assert len(accessor) == 5


def test_tuples_arrive_as_lists_and_rebatched() -> None:
    accessor = AsynchronousDataAccessor(
        torch.utils.data.DataLoader(TensorDataset(torch.arange(7), torch.arange(7) * 2)),  # type: ignore[arg-type]
        rebatched_size=3,
    )
    batches = list(accessor)
    assert all(isinstance(batch, list) for batch in batches)
    assert [[part.tolist() for part in batch] for batch in batches] == [
        [[0, 1, 2], [0, 2, 4]],
        [[3, 4, 5], [6, 8, 10]],
    ]
    assert len(accessor) == 2


def test_a_smaller_batch_at_the_end_is_refused_before_it_comes() -> None:
    loader = DataLoader(options(2), Numbers(9), batch_size=2, drop_last=False)
    with pytest.raises(AssertionError, match="rebatched_size"):
        AsynchronousDataAccessor(loader)
    assert values(AsynchronousDataAccessor(loader, rebatched_size=3)) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    with pytest.raises(Error, match="ahead by itself"):
        AsynchronousDataAccessor(DataLoader(options(), Numbers(4), mode=DataLoaderMode.Async))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"rebatched_size": 1}, "rebatched_size"),
        ({"rebatched_size": 0}, "rebatched_size"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        AsynchronousDataAccessor(Numbers(3, as_tensor), **settings)


def test_wrong_arguments_of_a_loader_are_refused() -> None:
    with pytest.raises(AssertionError, match=r"poptorch\.Options, not NoneType"):
        DataLoader(None, Numbers(3))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=r"DataLoaderMode\.Async.*'async'"):
        DataLoader(options(), Numbers(3), mode="async")  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="rebatched_size"):
        DataLoader(options(), Numbers(3), mode=DataLoaderMode.Async, async_options={"rebatched_size": 4})
    with pytest.raises(ValueError, match="batch_size"):
        DataLoader(options(), Numbers(3), batch_size=0)
    with pytest.raises(TypeError, match="no_such_option"):
        DataLoader(options(), Numbers(3), no_such_option=1)
    with pytest.raises(TypeError, match="no_such_option"):
        DataLoader(options(), Numbers(3), mode=DataLoaderMode.Async, async_options={"no_such_option": 1})


def test_settings_without_effect_are_told_of(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "poptorch"):
        DataLoader(options(), Numbers(3, as_tensor), async_options={"buffer_size": 3})
        assert "async_options" in caplog.text
        DataLoader(options(), Numbers(3, as_tensor), rebatched_worker_size=1)
        assert "rebatched_worker_size" in caplog.text
        DataLoader(options(), Stream(3), num_workers=2)
        assert "each element comes 2 times" in caplog.text


def breaks_at(place: int) -> Callable[[int], Any]:
    def make(index: int) -> Any:
        if index == place:
            raise KeyError(f"element {index} is broken")
        return torch.tensor([index])

    return make


@pytest.mark.parametrize("mode", MODES[1:])
def test_errors_of_the_dataset_reach_the_caller(mode: DataLoaderMode) -> None:
    with pytest.raises(Error, match="failed to start, KeyError: 'element 0 is broken'") as caught:
        DataLoader(options(), Numbers(5, breaks_at(0)), batch_size=2, mode=mode)
    assert isinstance(caught.value.__cause__, KeyError)
    loader = DataLoader(options(), Numbers(9, breaks_at(5)), batch_size=2, mode=mode)
    batches = iter(loader)
    assert [next(batches).flatten().tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(KeyError, match="element 5 is broken"):
        next(batches)


def test_errors_of_worker_processes_are_told_in_one_line() -> None:
    with pytest.raises(Error) as caught:
        DataLoader(options(), Numbers(5, breaks_at(0)), num_workers=1, mode=DataLoaderMode.Async)
    assert caught.value.message.endswith("failed to start, KeyError: 'element 0 is broken'.")
    assert "Original Traceback" in str(caught.value.__cause__)


def test_a_dataset_that_another_process_could_not_get_is_told_of(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "poptorch"):
        AsynchronousDataAccessor(Numbers(3, as_tensor))
        AsynchronousDataAccessor(Numbers(3, lambda i: torch.tensor(i)), sharing_strategy=SharingStrategy.Fork)
        DataLoader(options(), Numbers(3, as_tensor), mode=DataLoaderMode.Async, generator=torch.Generator())
        assert caplog.text == ""
        AsynchronousDataAccessor(Numbers(3, lambda i: torch.tensor(i)))
        assert "cannot be pickled" in caplog.text


@pytest.mark.parametrize("make", [as_tensor, as_pair, as_dict])
def test_batches_that_are_kept_are_told_of(make: Any, caplog: Any) -> None:
    def loader(**settings: Any) -> Any:
        return DataLoader(options(), Numbers(9, make), mode=DataLoaderMode.Async, async_options=settings)

    with caplog.at_level(logging.WARNING, "poptorch"):
        for settings in ({}, {"buffer_size": 1}, {"early_preload": True}):
            for batch in loader(**settings):
                assert batch is not None
        kept: list[Any] = []
        for batch in loader(buffer_size=9):
            kept.append(batch)
        assert caplog.text == ""
        kept = list(loader())
        assert len(kept) == 9
    assert caplog.text.count("clone() what you keep") == 1


def test_after_terminate_there_is_nothing_more() -> None:
    loader = DataLoader(options(), Numbers(4), mode=DataLoaderMode.Async)
    iterator = iter(loader)
    next(iterator)
    loader.terminate()
    loader.terminate()
    for again in (lambda: next(iterator), lambda: iter(loader)):
        with pytest.raises(AssertionError, match="terminated"):
            again()
    DataLoader(options(), Numbers(4)).terminate()  # nothing to end


def test_a_dataset_that_can_be_read_once() -> None:
    accessor = AsynchronousDataAccessor(iter([torch.tensor(1), torch.tensor(2)]), load_indefinitely=False)  # type: ignore[arg-type]
    assert [element.item() for element in accessor] == [1, 2]
    assert list(accessor) == []
    assert list(accessor) == []


SCRIPT = """
import torch
from portwright.emulate import poptorch
from portwright.emulate.poptorch._dataloader import DataLoader
from torch.utils.data import TensorDataset

loader = DataLoader(poptorch.Options(), TensorDataset(torch.arange(100)), num_workers=2, mode=poptorch.DataLoaderMode.Async)
for (batch,) in loader:
    break
kept = iter(loader)
next(kept)
print("left in the middle")
"""


def test_a_script_ends_that_leaves_its_loader_in_the_middle() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "left in the middle\n"), ended.stderr
    assert "Traceback" not in ended.stderr
