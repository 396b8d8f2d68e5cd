"""The loader gives what torch's own DataLoader gives."""

from __future__ import annotations

import json
import math
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_cases import (
    Batched,
    Dicts,
    Noisy,
    Point,
    Stream,
    assert_same,
    generator_state,
    make,
    take,
    tensors,
)
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from portwright.data import mapped, streamed, workers

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def double(samples: list[Any]) -> Any:
    return {"doubled": [sample[0] * 2 for sample in samples]}


PLAIN = {
    "tensors": lambda: DataLoader(tensors(10), batch_size=4),
    "tensors dropping": lambda: DataLoader(tensors(10), batch_size=4, drop_last=True),
    "tensors, even": lambda: DataLoader(tensors(8), batch_size=4),
    "tensors, one batch": lambda: DataLoader(tensors(3), batch_size=8),
    "tensors, batch of one": lambda: DataLoader(tensors(3)),
    "subset": lambda: DataLoader(Subset(tensors(10), [7, 1, 1, 9, 0]), batch_size=2),
    "subset of subset": lambda: DataLoader(
        Subset(Subset(tensors(10), [7, 1, 9, 0]), [3, 0, 1]), batch_size=2
    ),
    "subset from the end": lambda: DataLoader(Subset(tensors(10), [-1, 2]), batch_size=2),
    "own collate": lambda: DataLoader(tensors(10), batch_size=4, collate_fn=double),
    "dicts": lambda: DataLoader(Dicts(10), batch_size=4),
    "getitems": lambda: DataLoader(Batched(10), batch_size=4),
    "concat": lambda: DataLoader(ConcatDataset([tensors(3), tensors(4)]), batch_size=2),
    "stack": lambda: DataLoader(StackDataset(a=tensors(5), b=Batched(5)), batch_size=2),
    "no batching": lambda: DataLoader(tensors(5), batch_size=None),
    "lists of indices": lambda: DataLoader(
        tensors(7), batch_size=None, sampler=BatchSampler(SequentialSampler(range(7)), 3, False)
    ),
    "sampler": lambda: DataLoader(tensors(10), batch_size=4, sampler=[3, 1, 4, 1, 5]),
    "sampler from the end": lambda: DataLoader(tensors(10), batch_size=2, sampler=[-1, 0, -10]),
    "sampler, dropping": lambda: DataLoader(
        tensors(10), batch_size=4, sampler=[3, 1, 4, 1, 5], drop_last=True
    ),
    "sampler of keys": lambda: DataLoader({"a": 1, "b": 2, "c": 3}, batch_size=2, sampler=["c", "a"]),
    "batch sampler": lambda: DataLoader(tensors(10), batch_sampler=[[1], [2, 3, 4], [9, 0]]),
    "batch sampler of tensors": lambda: DataLoader(Dicts(9), batch_sampler=[torch.tensor([1, 2]), (3,), {5}]),
    "workers": lambda: DataLoader(Dicts(10), batch_size=4, num_workers=2, prefetch_factor=1),
    "workers, tensors": lambda: DataLoader(tensors(10), batch_size=4, num_workers=2, persistent_workers=True),
    "workers, no batching": lambda: DataLoader(tensors(5), batch_size=None, num_workers=1),
    "stream": lambda: DataLoader(Stream(10, noise=False), batch_size=4),
    "stream dropping": lambda: DataLoader(Stream(10, noise=False), batch_size=4, drop_last=True),
    "stream, no batching": lambda: DataLoader(Stream(10, noise=False), batch_size=None),
    "stream, workers": lambda: DataLoader(Stream(21, noise=False), batch_size=4, num_workers=2),
    "list": lambda: [torch.ones(2, 3), torch.zeros(1, 3)],
    "tuple": lambda: ((torch.ones(2, 3), torch.zeros(2)), (torch.zeros(1, 3), torch.ones(1))),
}


@pytest.mark.parametrize("case", PLAIN)
def test_an_epoch_is_torchs_own(case: str) -> None:
    expected = list(PLAIN[case]())
    loader = make(PLAIN[case]())
    assert_same(list(loader), expected)
    assert_same(list(loader), expected)  # without repeat, each pass is the same one
    assert loader.num_batches in (None, len(expected))
    repeating = make(PLAIN[case](), repeat=True)
    assert_same(take(repeating, 2 * len(expected) + 1), expected * 2 + expected[:1])
    repeating.close()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("data", [tensors(10), Dicts(10), Stream(10, noise=False)])
def test_pin_memory_is_quiet_where_it_is_of_no_use(data: Any, num_workers: int) -> None:
    with_pin = make(DataLoader(data, batch_size=4, pin_memory=True, num_workers=num_workers))
    assert_same(list(with_pin), list(make(DataLoader(data, batch_size=4, num_workers=num_workers))))


@pytest.mark.filterwarnings("ignore:.*pin_memory.*accelerator")
@pytest.mark.filterwarnings("ignore:.*pin_memory.*no accelerator")
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("data", [tensors(10), Dicts(10), Stream(10)])
def test_the_way_through_pinned_memory(monkeypatch: pytest.MonkeyPatch, data: Any, num_workers: int) -> None:
    expected = list(make(DataLoader(data, batch_size=4, num_workers=num_workers)))
    for module in (mapped, streamed, workers):
        monkeypatch.setattr(module, "pins", lambda loader: True)
    loader = make(DataLoader(data, batch_size=4, num_workers=num_workers))
    before = generator_state()
    assert_same(list(loader), expected)
    assert loader.last_counts == (2, 2)
    assert generator_state() == before


def test_gathered_tensors_are_fresh_and_contiguous() -> None:
    images = torch.randn(6, 3, 4, 4).to(memory_format=torch.channels_last)
    columns = torch.randn(2, 6).t()
    data = TensorDataset(images, columns, torch.ones(1, 2).expand(6, 2))
    for ours, torchs in zip(
        make(DataLoader(data, batch_size=4)), DataLoader(data, batch_size=4), strict=True
    ):
        assert [tensor.stride() for tensor in ours] == [tensor.stride() for tensor in torchs]
        assert_same([ours], [torchs])
        ours[0].zero_()
    assert images.abs().sum() > 0


def test_gradients_flow_through_gathered_tensors() -> None:
    weights = torch.ones(4, 2, requires_grad=True)
    (batch,) = next(iter(make(DataLoader(TensorDataset(weights), batch_size=2))))
    batch.sum().backward()
    assert weights.grad is not None
    assert weights.grad.sum() == 4


@given(
    num_samples=st.integers(1, 40), batch_size=st.integers(1, 12), drop_last=st.booleans(), seed=st.integers()
)
@settings(max_examples=60, deadline=None)
def test_shuffling_permutes_each_epoch_anew(
    num_samples: int, batch_size: int, drop_last: bool, seed: int
) -> None:
    if drop_last and num_samples < batch_size:
        return
    loader = make(
        DataLoader(tensors(num_samples), batch_size=batch_size, shuffle=True, drop_last=drop_last),
        seed=seed,
        repeat=True,
    )
    assert loader.num_batches == (
        num_samples // batch_size if drop_last else math.ceil(num_samples / batch_size)
    )
    batches = iter(loader)
    epochs = [[next(batches)[1] for _ in range(loader.num_batches)] for _ in range(3)]
    for epoch in epochs:
        indices = torch.cat(epoch).tolist()
        assert len(set(indices)) == len(indices)
        if not drop_last:
            assert sorted(indices) == list(range(num_samples))
            assert len(epoch[-1]) == loader.num_samples_of_last
    if num_samples >= 20 and not drop_last:
        assert not torch.equal(torch.cat(epochs[0]), torch.cat(epochs[1]))
        assert not torch.equal(torch.cat(epochs[1]), torch.cat(epochs[2]))


def test_the_seed_decides_the_order() -> None:
    def order(seed: int, dataset: Any = None) -> list[int]:
        loader = DataLoader(dataset or tensors(30), batch_size=30, shuffle=True)
        return next(iter(make(loader, seed=seed)))[1].tolist()

    assert order(1) == order(1)
    assert order(1) != order(2)
    torch.manual_seed(5)
    assert order(1, Subset(tensors(30), range(30))) == order(1)


def samplers(num_samples: int) -> dict[str, Any]:
    data = range(num_samples)

    class Custom(Sampler):
        def __iter__(self) -> Any:
            yield from torch.randperm(num_samples).tolist()

        def __len__(self) -> int:
            return num_samples

    class Told(Custom):
        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Any:
            yield from torch.randperm(
                num_samples, generator=torch.Generator().manual_seed(self.epoch)
            ).tolist()

    class Hoarder(Custom):
        def __init__(self) -> None:
            self.rng = torch.Generator().manual_seed(0)

        def __iter__(self) -> Any:
            yield from torch.randperm(num_samples, generator=self.rng).tolist()

    class Buckets(BatchSampler):
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                yield batch[: 1 + torch.randint(len(batch), ()).item()]

    user_generator = torch.Generator().manual_seed(3)
    return {
        "weighted": WeightedRandomSampler([1.0] * num_samples, 2 * num_samples),
        "subset": SubsetRandomSampler(range(0, num_samples, 2)),
        "subset with generator": SubsetRandomSampler(range(0, num_samples, 2), generator=user_generator),
        "replacement": RandomSampler(data, replacement=True, num_samples=num_samples + 3),
        "part": RandomSampler(data, num_samples=num_samples // 2),
        "more": RandomSampler(data, num_samples=2 * num_samples + 1),
        "custom": Custom(),
        "told": Told(),
        "hoarder": Hoarder(),
        "buckets": Buckets(RandomSampler(data), 4, False),
        "distributed": DistributedSampler(data, num_replicas=1, rank=0),
    }


SAMPLERS = list(samplers(8))


def with_sampler(case: str, dataset: Any, **options: Any) -> DataLoader[Any]:
    sampler = samplers(len(dataset))[case]
    if isinstance(sampler, BatchSampler):
        return DataLoader(dataset, batch_sampler=sampler, **options)
    return DataLoader(dataset, batch_size=4, sampler=sampler, **options)


@pytest.mark.parametrize("case", SAMPLERS)
def test_samplers_are_honoured_reproducibly(case: str) -> None:
    torch.manual_seed(1)
    first = take(make(with_sampler(case, tensors(16)), repeat=True), 30)
    torch.manual_seed(2)
    second = take(make(with_sampler(case, tensors(16)), repeat=True), 30)
    assert_same(first, second)
    one_pass = [batch[1] for batch in make(with_sampler(case, tensors(16)))]
    drawn = torch.cat(one_pass).tolist()
    if case != "buckets":  # whose length is its own affair
        assert len(drawn) == len(samplers(16)[case])
    if case.startswith("subset"):
        assert sorted(drawn) == list(range(0, 16, 2))
    elif case in ("custom", "told", "hoarder", "distributed"):
        assert sorted(drawn) == list(range(16))
    if case != "replacement":
        orders = [tuple(batch[1].tolist()) for batch in first]
        assert orders[: len(one_pass)] != orders[len(one_pass) : 2 * len(one_pass)]


@pytest.mark.parametrize("case", SAMPLERS)
def test_samplers_resume_in_a_later_epoch(case: str) -> None:
    loader = make(with_sampler(case, tensors(16)), repeat=True)
    batches = iter(loader)
    list(islice(batches, 13))
    position = json.loads(json.dumps(loader.position()))
    assert position["epoch"] > 0
    rest = list(islice(batches, 20))
    fresh = make(with_sampler(case, tensors(16)), repeat=True)
    fresh.seek(position)
    assert_same(take(fresh, 20), rest)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(tensors(12), batch_size=4, shuffle=True),
        DataLoader(Dicts(12), batch_size=4, shuffle=True),
        DataLoader(Dicts(12), batch_size=4, shuffle=True, num_workers=2),
        with_sampler("custom", tensors(12)),
        with_sampler("weighted", tensors(12)),
        with_sampler("buckets", tensors(12)),
        DataLoader(Stream(12), batch_size=4),
        DataLoader(Stream(12), batch_size=4, num_workers=2),
    ],
)
def test_the_loader_draws_nothing_from_the_process(loader: DataLoader[Any]) -> None:
    before = generator_state()
    take(make(loader, repeat=True), 5)
    assert generator_state() == before


def test_without_workers_samples_draw_from_the_process_in_order() -> None:
    torch.manual_seed(11)
    ours = list(make(DataLoader(Noisy(6), batch_size=2)))
    torch.manual_seed(11)
    expected = [torch.rand(()).item() for _ in range(6)]
    assert torch.cat(ours)[:, 3].tolist() == expected


def test_counts_and_sizes() -> None:
    loader = make(DataLoader(tensors(10), batch_size=4))
    assert (loader.num_batches, loader.num_samples_of_last) == (3, 2)
    assert loader.batch_size == 4
    assert loader.last_counts == (0, 0)
    assert [loader.last_counts for _ in loader] == [(4, 4), (4, 4), (2, 2)]
    assert loader.position()["samples"] == 10


@pytest.mark.parametrize(
    ("data", "num_batches", "last"),
    [
        (DataLoader(tensors(8), batch_size=4), 2, 4),
        (DataLoader(tensors(10), batch_size=4, drop_last=True), 2, 4),
        (DataLoader(tensors(3), batch_size=4), 1, 3),
        (DataLoader(tensors(9), batch_sampler=[[1, 2], [3]]), 2, None),
        (DataLoader(tensors(9), batch_size=None), 9, None),
        (DataLoader(Stream(9), batch_size=4), None, None),
        (DataLoader(Stream(9), batch_size=4, drop_last=True), None, None),
        ([torch.ones(3), torch.ones(3)], 2, 3),
        ([torch.ones(3), torch.ones(2)], 2, 2),
        ([{"a": torch.ones(3)}], 1, 3),
        ([Point(torch.ones(3, 2), None)], 1, 3),
        ([["a", "b"], ["c"]], 2, 1),
        ([([torch.ones(3, 8), torch.ones(3, 9)], [{"boxes": torch.ones(5, 4)}, {}])], 1, 2),
        ([torch.tensor(1.0)], 1, 1),
        ([torch.ones(2), torch.ones(0)], 2, 0),
    ],
)
def test_what_is_known_beforehand(data: Any, num_batches: int | None, last: int | None) -> None:
    loader = make(data)
    assert (loader.num_batches, loader.num_samples_of_last) == (num_batches, last)


def test_a_stream_with_a_length_is_measured() -> None:
    class Sized(Stream):
        def __len__(self) -> int:
            return self.num_samples

    loader = make(DataLoader(Sized(9), batch_size=4))
    assert (loader.num_batches, loader.num_samples_of_last) == (3, 1)
    assert len(list(loader)) == 3
    several = make(DataLoader(Sized(9), batch_size=4, num_workers=2))
    assert several.num_batches is None


def test_recent_batches_can_be_had_again() -> None:
    loader = make(DataLoader(Noisy(10), batch_size=4, shuffle=True, num_workers=2), repeat=True)
    batches = iter(loader)
    given_out = list(islice(batches, 8))
    before = generator_state()
    for back in range(1, 9):
        assert_same([loader.recent(back)], [given_out[-back]])
    assert loader.recent(9) is None
    assert loader.recent(0) is None
    assert generator_state() == before
    assert loader.position()["batch"] == 2
    loader.close()


def test_recent_batches_of_a_list_and_of_a_stream() -> None:
    listed = make([torch.zeros(2), torch.ones(2)], repeat=True)
    take(listed, 3)
    assert listed.recent(1).tolist() == [0, 0]
    assert listed.recent(2).tolist() == [1, 1]
    streamed = make(DataLoader(Stream(8), batch_size=2), repeat=True)
    take(streamed, 3)
    assert streamed.recent(1) is None


def test_worker_options_are_kept() -> None:
    class Marked(Dicts):
        mark = -1

        def __getitem__(self, index: int) -> int:
            info = torch.utils.data.get_worker_info()
            assert info is not None
            assert info.dataset is self
            return self.mark

    def init(worker: int) -> None:
        torch.utils.data.get_worker_info().dataset.mark = 10 + worker

    loader = make(DataLoader(Marked(6), batch_size=2, num_workers=2, worker_init_fn=init, timeout=60))
    assert [batch.tolist() for batch in loader] == [[10, 10], [11, 11], [10, 10]]


def test_the_same_iterator_goes_on_across_loops() -> None:
    loader = make(DataLoader(Dicts(8), batch_size=2, num_workers=1), repeat=True)
    seen = []
    for _ in range(3):
        for batch in loader:
            seen.append(batch["id"].tolist())
            break
    held = iter(loader)
    assert iter(loader) is held
    seen.append(next(held)["id"].tolist())
    assert seen == [[0, 1], [2, 3], [4, 5], [6, 7]]
    loader.close()
    assert next(iter(loader))["id"].tolist() == [0, 1]
