"""Several processes together see exactly the batches of one."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_cases import (
    Batches,
    Dicts,
    Noisy,
    Point,
    Stream,
    assert_same,
    generator_state,
    make,
    same,
    take,
    tensors,
)
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from portwright.data.split import part_bounds
from portwright.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@given(num_samples=st.integers(0, 200), world_size=st.integers(1, 20))
def test_parts_are_those_of_array_split(num_samples: int, world_size: int) -> None:
    indices = np.arange(num_samples)
    for rank, part in enumerate(np.array_split(indices, world_size)):
        low, high = part_bounds(num_samples, rank, world_size)
        assert indices[low:high].tolist() == part.tolist()


@given(
    num_samples=st.integers(1, 40),
    batch_size=st.integers(1, 12),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    world_size=st.integers(1, 5),
    done=st.integers(0, 20),
)
@settings(max_examples=100, deadline=None)
def test_ranks_together_are_one_process(
    num_samples: int, batch_size: int, drop_last: bool, shuffle: bool, world_size: int, done: int
) -> None:
    def open_data() -> DataLoader[Any]:
        return DataLoader(tensors(num_samples), batch_size=batch_size, drop_last=drop_last, shuffle=shuffle)

    sizes = [min(batch_size, num_samples - at) for at in range(0, num_samples, batch_size)]
    if drop_last and sizes[-1] < batch_size:
        sizes.pop()
    if batch_size < world_size or not [size for size in sizes if size >= world_size]:
        with pytest.raises(UserError):
            make(open_data(), world_size=world_size, rank=0, repeat=True)
        return
    # A last batch of fewer samples than ranks comes with the one before.
    whole: list[Any] = []
    for batch in take(make(open_data(), repeat=True), 50):
        if len(batch[1]) < world_size:
            whole[-1] = [torch.cat(columns) for columns in zip(whole[-1], batch, strict=True)]
        else:
            whole.append(batch)
    whole.pop()  # what would come with it was not taken
    ranks = [make(open_data(), world_size=world_size, rank=rank, repeat=True) for rank in range(world_size)]
    assert {rank.num_batches for rank in ranks} == {len([size for size in sizes if size >= world_size])}
    iterators = [iter(rank) for rank in ranks]
    for number in range(min(done, len(whole))):
        parts = [next(iterator) for iterator in iterators]
        assert same([torch.cat(columns) for columns in zip(*parts, strict=True)], whole[number])
        assert [rank.last_counts for rank in ranks] == [
            (len(part[1]), len(whole[number][1])) for part in parts
        ]
    assert len({str(rank.position()) for rank in ranks}) == 1


@pytest.mark.parametrize(
    "open_data",
    [
        lambda: DataLoader(Dicts(10), batch_size=4, shuffle=True, num_workers=1),
        lambda: DataLoader(
            tensors(10), batch_size=None, sampler=BatchSampler(RandomSampler(range(10)), 4, False)
        ),
        lambda: DataLoader(tensors(20), batch_sampler=[[1, 2], [3, 4, 5], [6, 7, 8, 9]]),
        lambda: DataLoader(Stream(11), batch_size=4),
        lambda: DataLoader(Stream(22), batch_size=4, num_workers=2),
        lambda: Batches(3),
        lambda: [(torch.arange(4), [np.arange(8).reshape(4, 2)]), (torch.arange(3), [np.arange(3)])],
    ],
)
def test_ranks_together_are_one_process_for_every_kind_of_input(open_data: Any) -> None:
    def leaves(batch: Any) -> list[Any]:
        if isinstance(batch, dict):
            return [leaf for value in batch.values() for leaf in leaves(value)]
        if isinstance(batch, (tuple, list)) and not isinstance(batch[0], str):
            return [leaf for value in batch for leaf in leaves(value)]
        return [np.asarray(batch)]

    torch.manual_seed(1)
    whole = list(make(open_data()))
    parts = []
    for rank in range(2):
        torch.manual_seed(rank)  # as the trainer does: dropout differs between ranks, the data must not
        before = generator_state()
        parts.append(list(make(open_data(), world_size=2, rank=rank)))
        assert generator_state() == before
    assert len(parts[0]) == len(parts[1]) == len(whole)
    for ours, one, other in zip(whole, *parts, strict=True):
        assert type(one) is type(ours)
        joined = [np.concatenate(pair) for pair in zip(leaves(one), leaves(other), strict=True)]
        assert all(np.array_equal(left, right) for left, right in zip(leaves(ours), joined, strict=True))


def test_each_rank_loads_only_its_own_samples() -> None:
    read = []

    class Watched(Dicts):
        def __getitem__(self, index: int) -> int:
            read.append(index)
            return index

    list(make(DataLoader(Watched(10), batch_size=4), world_size=2, rank=1))
    assert read == [2, 3, 6, 7, 9]


def test_ranks_draw_different_random_numbers_and_rank_0_those_of_one_process() -> None:
    def noise(rank: int, world_size: int) -> torch.Tensor:
        data = DataLoader(Noisy(4), batch_size=4, num_workers=1)
        return next(iter(make(data, rank=rank, world_size=world_size)))[:, 1:]

    assert torch.equal(noise(0, 2), noise(0, 1)[:2])
    assert not torch.equal(noise(0, 2), noise(1, 2))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_samples", [10, 11])
def test_samples_that_do_not_reach_all_processes_come_with_the_batch_before(
    num_samples: int, shuffle: bool, num_workers: int
) -> None:
    data = DataLoader(tensors(num_samples), batch_size=3, shuffle=shuffle, num_workers=num_workers)
    loaders = [make(data, world_size=3, rank=rank, repeat=True) for rank in range(3)]
    count = loaders[0].num_batches
    assert count == 3
    for _ in range(2):  # epochs
        seen = torch.cat([batch[1] for loader in loaders for batch in take(loader, count)])
        assert sorted(seen.tolist()) == sorted(tensors(num_samples)[:][1].tolist())
    for loader in loaders:
        assert loader.position()["samples"] == 2 * num_samples
        assert len([note for note in loader.notes if "come with the batch before" in note]) == 1
        loader.close()


def test_a_batch_smaller_than_the_processes_is_left_out_everywhere_and_said() -> None:
    for data in (
        DataLoader(Stream(9), batch_size=4),
        DataLoader(tensors(9), batch_sampler=[[0, 1, 2, 3], [4, 5, 6, 7], [8]]),
        [torch.ones(4), torch.ones(4), torch.ones(1)],
    ):
        for rank in range(2):
            loader = make(data, world_size=2, rank=rank, repeat=True)
            take(loader, 4)  # two epochs, and the position knows it
            assert loader.position()["samples"] == 16
            assert len([note for note in loader.notes if "fewer samples than the 2 processes" in note]) == 1


@pytest.mark.parametrize(
    "open_data",
    [
        lambda: DataLoader(tensors(9), batch_size=4),
        lambda: DataLoader(tensors(9), batch_size=4, num_workers=1),
        lambda: DataLoader(Stream(9), batch_size=4),
        lambda: DataLoader(tensors(9), batch_sampler=[[0, 1, 2, 3], [4, 5, 6, 7], [8]]),
        lambda: [torch.ones(4), torch.ones(4), torch.ones(1)],
        lambda: DataLoader(tensors(2), batch_size=1),
    ],
)
def test_an_evaluation_counts_every_sample_once_and_keeps_the_processes_in_step(open_data: Any) -> None:
    counts = []
    for rank in range(3):
        loader = make(open_data(), world_size=3, rank=rank)
        counts.append([loader.last_counts for _ in loader])
        assert loader.num_batches in (None, len(counts[-1]))
    assert len({len(of_rank) for of_rank in counts}) == 1
    for step in zip(*counts, strict=True):
        assert sum(local for local, _ in step) == step[0][1]
    assert sum(whole for _, whole in counts[0]) == sum(
        len(b[1] if isinstance(b, list) else b) for b in open_data()
    )


def test_known_sizes_count_what_comes_with_the_batch_before() -> None:
    loader = make(DataLoader(tensors(9), batch_size=4), world_size=2, rank=0, repeat=True)
    assert (loader.num_batches, loader.num_samples_of_last) == (2, 5)


@pytest.mark.parametrize(
    "data",
    [
        DataLoader(tensors(9), batch_size=2),
        DataLoader(Stream(9), batch_size=2),
        DataLoader(tensors(2), batch_size=4),
        [torch.ones(2), torch.ones(1)],
        DataLoader(tensors(9), batch_sampler=[[1, 2], [3]]),
        Batches(3),
        (torch.ones(2) for _ in range(3)),
    ],
)
def test_too_many_processes_are_refused(data: Any) -> None:
    with pytest.raises(UserError, match=r"5 processes|processes \(5\)") as error:
        take(make(data, world_size=5, rank=4, repeat=True), 3)
    assert error.value.cure


def test_a_distributed_sampler_shards_by_itself() -> None:
    shares = []
    for rank in range(2):
        sampler = DistributedSampler(range(12), num_replicas=2, rank=rank, seed=5)
        loader = make(
            DataLoader(tensors(12), batch_size=3, sampler=sampler), world_size=2, rank=rank, repeat=True
        )
        assert (loader.num_batches, loader.batch_size) == (2, 6)
        epochs = [torch.cat([batch[1] for batch in take(loader, 2)]).tolist() for _ in range(2)]
        assert epochs[0] != epochs[1]
        assert loader.last_counts == (3, 6)
        shares.append(epochs)
    for epoch in range(2):
        assert sorted(shares[0][epoch] + shares[1][epoch]) == list(range(12))


@pytest.mark.parametrize(("num_replicas", "rank"), [(3, 0), (2, 1)])
def test_a_distributed_sampler_of_other_processes_is_refused(num_replicas: int, rank: int) -> None:
    sampler = DistributedSampler(range(12), num_replicas=num_replicas, rank=rank)
    with pytest.raises(UserError, match=f"process {rank} of {num_replicas}"):
        make(DataLoader(tensors(12), batch_size=3, sampler=sampler), world_size=2, rank=0)


def test_a_stream_that_shards_by_itself_says_so() -> None:
    class Sharded(Stream):
        num_replicas, rank = 2, 1

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.rank, self.num_samples, self.num_replicas))

    loader = make(DataLoader(Sharded(8), batch_size=3), world_size=2, rank=1)
    assert [batch.tolist() for batch in loader] == [[1, 3, 5], [7]]
    assert loader.last_counts == (1, 2)
    assert loader.notes == []
    unsaid = make(DataLoader(Stream(8), batch_size=3), world_size=2, rank=1)
    assert any("num_replicas" in note for note in unsaid.notes)


def test_a_distributed_sampler_of_one_process_is_no_sharding() -> None:
    sampler = DistributedSampler(range(12), num_replicas=1, rank=0)
    loader = make(DataLoader(tensors(12), batch_size=4, sampler=sampler), world_size=2, rank=1)
    assert [loader.last_counts for _ in loader] == [(2, 4)] * 3


@dataclass
class Record:
    x: torch.Tensor
    names: list[str]


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.arange(5), torch.arange(3, 5)),
        (np.arange(5), np.arange(3, 5)),
        ([torch.arange(5), "ab"], [torch.arange(3, 5), "ab"]),
        ((torch.arange(5), torch.tensor(1)), (torch.arange(3, 5), torch.tensor(1))),
        (Point(torch.arange(5), None), Point(torch.arange(3, 5), None)),
        ({"x": torch.arange(5), "n": list("abcde")}, {"x": torch.arange(3, 5), "n": ["d", "e"]}),
        (OrderedDict(x=torch.arange(5)), OrderedDict(x=torch.arange(3, 5))),
        (UserDict(x=torch.arange(5)), UserDict(x=torch.arange(3, 5))),
        (Record(torch.arange(5), list("abcde")), Record(torch.arange(3, 5), ["d", "e"])),
        ((torch.ones(5), [torch.ones(i) for i in range(5)]), (torch.ones(2), [torch.ones(3), torch.ones(4)])),
        ([1, 2, 3, 4, 5], [4, 5]),
    ],
)
def test_batches_of_any_structure_are_cut(batch: Any, expected: Any) -> None:
    loader = make([batch], world_size=2, rank=1)
    (part,) = list(loader)
    assert type(part) is type(expected)
    if isinstance(part, np.ndarray):
        assert part.tolist() == expected.tolist()
    elif isinstance(part, (UserDict, Record)):
        assert same(dict(vars(part)), dict(vars(expected)))
    else:
        assert_same([part], [expected])
    assert loader.last_counts == (2, 5)


@pytest.mark.parametrize(
    ("batch", "complaint"),
    [
        ({"x": torch.ones(5), "y": torch.ones(4)}, r"batch\['y'\] has 4 entries"),
        ((torch.ones(5), ["a"] * 3), r"batch\[1\] has 3 entries"),
        ((torch.ones(5), {1, 2}), r"batch\[1\] is a set"),
        (Point(torch.tensor(1), None), "no tensor with a batch dimension"),
        ((torch.ones(3), [torch.ones(3, 8)] * 3), "cannot tell"),
    ],
)
def test_batches_that_cannot_be_cut_are_refused(batch: Any, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        list(make([batch], world_size=3, rank=0))
    assert len(list(make([batch]))) == 1  # one process does not mind


def test_a_list_of_samples_is_known_from_an_earlier_batch() -> None:
    images = [torch.ones(3, 8)] * 3
    loader = make([(torch.ones(4), [*images, images[0]]), (torch.ones(3), images)], world_size=3, rank=0)
    assert [len(batch[1]) for batch in loader] == [2, 1]
    inputs = [torch.ones(4, 8)] * 3
    loader = make([(torch.ones(4), inputs), (torch.ones(3), images)], world_size=3, rank=0)
    assert [len(batch[1]) for batch in loader] == [3, 3]


def test_rank_has_to_be_one_of_the_world() -> None:
    with pytest.raises(ValueError, match="rank 2"):
        make([torch.ones(4)], world_size=2, rank=2)


def test_data_pipes_run_in_one_process_only() -> None:
    from torch.utils.data.datapipes.iter import IterableWrapper

    data = DataLoader(IterableWrapper(range(6)).shuffle(), batch_size=2)
    assert sorted(torch.cat(list(make(data))).tolist()) == list(range(6))
    assert_same(list(make(data)), list(make(data)))
    with pytest.raises(UserError, match="data pipe"):
        make(data, world_size=2, rank=0)


def test_sequential_batches_of_a_batch_sampler_as_sampler() -> None:
    sampler = BatchSampler(SequentialSampler(range(7)), 3, False)
    loader = make(DataLoader(tensors(7), batch_size=None, sampler=sampler), world_size=2, rank=1, repeat=True)
    assert [batch[1].tolist() for batch in take(loader, 3)] == [[2], [5], [2]]
