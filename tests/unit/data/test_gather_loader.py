"""Data sets that gather whole batches, through the run's loader: order, draws, ranks, workers, threads, resume."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loader_cases import assert_same, make, take
from stores import write_store
from torch.utils.data import ConcatDataset, DataLoader, Subset

from portwright.data import ArrayDataset, Draws, GatherDataset, StoreDataset, ahead
from portwright.errors import UserError

NUM = 103
# torch's word on two cores; samples must not be lost there either.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def mask(batch: dict[str, Any], draws: Draws) -> dict[str, Any]:
    drawn = draws.uniform("mask", 4)
    return {**batch, "noise": drawn, "pick": draws.integers("pick", 10)}


def arrays() -> ArrayDataset:
    values = np.arange(NUM * 4, dtype=np.uint16).reshape(NUM, 4)
    return ArrayDataset({"id": np.arange(NUM, dtype=np.int32), "values": values}, mask)


@pytest.fixture
def threaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_WORTH_SECONDS", 0.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def by_sample(batches: list[Any]) -> dict[int, Any]:
    """The whole content of each sample, by its id; a repeated sample fails."""
    samples: dict[int, Any] = {}
    for batch in batches:
        for row, number in enumerate(batch["id"].tolist()):
            assert number not in samples, f"sample {number} came twice"
            samples[number] = {name: tensor[row].tolist() for name, tensor in batch.items()}
    return samples


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_those_of_a_plain_loader(num_workers: int, shuffle: bool) -> None:
    data = arrays()
    data.transform = None
    ours = list(make(DataLoader(data, batch_size=10, shuffle=shuffle, num_workers=num_workers)))
    plain = list(DataLoader(data, batch_size=10))
    assert ours[0]["values"].dtype == torch.int32
    if not shuffle:
        assert_same(ours, plain)
    assert by_sample(ours) == by_sample(plain)


def test_a_plain_loader_draws_by_epoch() -> None:
    data = arrays()
    first = list(DataLoader(data, batch_size=10))
    assert_same(
        first, list(DataLoader(data, batch_size=7, num_workers=2)) and list(DataLoader(data, batch_size=10))
    )
    other_size = by_sample(list(DataLoader(data, batch_size=7)))
    assert by_sample(first) == other_size
    data.set_epoch(1)
    assert by_sample(list(DataLoader(data, batch_size=7))) != other_size


def two_epochs(num_workers: int, world_size: int, data: Any = None) -> list[dict[int, Any]]:
    per_rank = []
    for rank in range(world_size):
        plain = DataLoader(
            arrays() if data is None else data, batch_size=10, shuffle=True, num_workers=num_workers
        )
        loader = make(plain, rank=rank, world_size=world_size, repeat=True)
        assert loader.num_batches is not None
        epochs = iter(loader)
        per_rank.append([list(islice(epochs, loader.num_batches)) for _ in range(2)])
        loader.close()
    return [by_sample([batch for ranks in per_rank for batch in ranks[epoch]]) for epoch in range(2)]


@pytest.fixture(scope="module")
def alone() -> list[dict[int, Any]]:
    return two_epochs(0, 1)


@pytest.mark.parametrize(
    ("num_workers", "world_size"), [(1, 1), (2, 1), (3, 2), (8, 1), (0, 2), (0, 3), (1, 3), (5, 3)]
)
def test_no_sample_is_lost_or_repeated_and_each_draws_the_same(
    num_workers: int, world_size: int, alone: list[dict[int, Any]]
) -> None:
    epochs = two_epochs(num_workers, world_size)
    assert [sorted(epoch) for epoch in epochs] == [list(range(NUM))] * 2
    assert epochs == alone
    assert epochs[0] != epochs[1]


def test_a_subset_is_gathered_too_and_draws_as_its_whole(alone: list[dict[int, Any]]) -> None:
    data = Subset(Subset(arrays(), range(100, 0, -2)), [3, 1, 4, 1])
    loader = make(DataLoader(data, batch_size=3), seed=7)
    batches = list(loader)
    assert [batch["id"].tolist() for batch in batches] == [[94, 98, 92], [98]]
    assert batches[0]["noise"][0].tolist() == alone[0][94]["noise"]


def test_a_sampler_of_the_user_is_honoured() -> None:
    loader = make(DataLoader(arrays(), batch_sampler=[[5, -1], [0]]))
    assert [batch["id"].tolist() for batch in loader] == [[5, NUM - 1], [0]]
    with pytest.raises(
        UserError, match=r"ArrayDataset failed on sample 103 .*index 103 is not one of 103 samples"
    ):
        list(make(DataLoader(arrays(), batch_sampler=[[5, NUM]])))


def test_a_collate_fn_of_the_user_is_called() -> None:
    loader = make(
        DataLoader(arrays(), batch_size=4, collate_fn=lambda rows: [int(row["id"]) for row in rows])
    )
    assert take(loader, 1) == [[0, 1, 2, 3]]


def stack(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_read_one_by_one_draw_the_same(num_workers: int, alone: list[dict[int, Any]]) -> None:
    plain = DataLoader(arrays(), batch_size=10, shuffle=True, num_workers=num_workers, collate_fn=stack)
    loader = make(plain, repeat=True)
    batches = iter(loader)
    assert [by_sample(list(islice(batches, 11))) for _ in range(2)] == alone
    loader.close()


def test_joined_data_sets_draw_anew_in_each_epoch() -> None:
    loader = make(DataLoader(ConcatDataset([arrays(), arrays()]), batch_size=2 * NUM), repeat=True)
    first, second = take(loader, 2)
    assert not torch.equal(first["noise"], second["noise"])
    again = make(DataLoader(ConcatDataset([arrays(), arrays()]), batch_size=2 * NUM), repeat=True)
    again.seek({"epoch": 1, "batch": 0, "samples": 0})
    assert_same(take(again, 1), [second])


class Doubled(ArrayDataset):
    """Says in `__getitem__` what a sample is."""

    def __getitem__(self, index: Any) -> Any:
        return 2 * int(super().__getitem__(index)["id"])

    def __getitems__(self, indices: Any) -> Any:
        return [self[index] for index in indices]


def test_what_a_subclass_makes_of_a_sample_is_kept() -> None:
    data = Doubled({"id": np.arange(6)})
    assert [batch.tolist() for batch in make(DataLoader(data, batch_size=3))] == [[0, 2, 4], [6, 8, 10]]


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 3), (2, 0)])
def test_every_position_leads_to_the_same_rest(
    before: int, after: int, threads: bool, request: pytest.FixtureRequest
) -> None:
    if threads:
        request.getfixturevalue("threaded")

    def open_loader(num_workers: int) -> Any:
        return make(DataLoader(arrays(), batch_size=10, shuffle=True, num_workers=num_workers), repeat=True)

    whole = take(open_loader(0), 40)
    for stop in (0, 1, 7, 11, 12, 27):
        loader = open_loader(before)
        assert_same(take(loader, stop), whole[:stop])
        position = json.loads(json.dumps(loader.position()))
        loader.close()
        resumed = open_loader(after)
        resumed.seek(position)
        assert_same(take(resumed, 12), whole[stop : stop + 12])
        resumed.close()


def names_of_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("portwright-data")]


def test_a_thread_makes_batches_ahead_and_ends_with_its_loader(threaded: None) -> None:
    loader = make(DataLoader(arrays(), batch_size=2), repeat=True)
    batches = iter(loader)
    assert next(batches)["id"].tolist() == [0, 1]
    assert names_of_threads() == []
    for _ in range(10):
        next(batches)
    assert len(names_of_threads()) == 1
    assert loader.position()["batch"] == 11  # not those that lie ready
    loader.seek({"epoch": 0, "batch": 3, "samples": 0})
    assert next(batches)["id"].tolist() == [6, 7]
    loader.close()
    assert names_of_threads() == []


def test_what_pays_is_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from portwright.data import mapped

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(mapped, "NUM_BATCHES_A_STRETCH", 6)
    monkeypatch.setattr(ahead, "_WORTH_SECONDS", 0.0)
    loader = make(DataLoader(arrays(), batch_size=2, shuffle=True), repeat=True)
    whole = take(make(DataLoader(arrays(), batch_size=2, shuffle=True), repeat=True), 120)
    batches = iter(loader)
    seen = list(islice(batches, 9))
    assert loader.is_ahead
    monkeypatch.setattr(ahead, "_WORTH_SECONDS", 9.0)
    seen += islice(batches, 11)
    assert not loader.is_ahead
    assert names_of_threads() == []
    monkeypatch.setattr(ahead, "_WORTH_SECONDS", 0.0)
    seen += islice(batches, 100)
    assert loader.is_ahead
    loader.close()
    assert_same(seen, whole)


class Breaking(ArrayDataset):
    def gather(self, indices: Any, draws: Any = None) -> Any:
        if 41 in indices:
            raise OSError("bad sector")
        return super().gather(indices, draws)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_failure_comes_in_its_turn_and_names_its_sample(threaded: None, num_workers: int) -> None:
    loader = make(DataLoader(Breaking(arrays().arrays), batch_size=4, num_workers=num_workers), repeat=True)
    batches = iter(loader)
    assert [int(next(batches)["id"][0]) for _ in range(10)] == list(range(0, 40, 4))
    with pytest.raises(
        UserError, match=r"Breaking failed on sample 41 \(epoch 0, batch 10\): OSError: bad sector"
    ):
        next(batches)
    assert loader.position()["batch"] == 10
    loader.close()


class FailingSampler:
    def __iter__(self) -> Any:
        yield from range(40)
        raise ValueError("no more")


def test_a_sampler_that_fails_ahead_fails_in_its_turn(threaded: None) -> None:
    loader = make(DataLoader(arrays(), batch_size=1, sampler=FailingSampler()), repeat=True)  # type: ignore[arg-type]
    batches = iter(loader)
    seen = []
    with pytest.raises(UserError, match="FailingSampler failed"):
        seen.extend(int(batch["id"][0]) for batch in batches)
    assert names_of_threads() == []


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: torch.rand(1)])
def test_what_draws_from_the_process_is_not_threaded_and_told(threaded: None, draw: Any) -> None:
    def transform(batch: Any, draws: Any) -> Any:
        draw()
        return batch

    loader = make(DataLoader(ArrayDataset(arrays().arrays, transform), batch_size=2), repeat=True)
    take(loader, 20)
    assert names_of_threads() == []
    assert any("draws from the process's random numbers" in note for note in loader.notes)
    loader.close()


def test_pinned_batches(threaded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from portwright.data import mapped

    pinned: list[torch.Tensor] = []
    monkeypatch.setattr(mapped, "pins", lambda loader: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    batches = list(make(DataLoader(arrays(), batch_size=10)))
    assert len(pinned) == 4 * len(batches)
    assert sorted(by_sample(batches)) == list(range(NUM))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (np.array(["a", "b"]), "which no tensor can hold"),
        ([1, 2], "list, which no tensor can hold"),
        (np.zeros((3, 2)), r"shape \(3, 2\) in a batch of 2"),
        (np.zeros(()), "in a batch of 2"),
        (np.array([object(), object()]), "object, which no tensor"),
    ],
)
def test_a_transform_that_gives_no_batch_is_told(given: Any, complaint: str) -> None:
    data = ArrayDataset({"id": np.arange(4)}, lambda batch, draws: {**batch, "x": given})
    with pytest.raises(UserError, match=rf"field 'x' .*{complaint}"):
        list(make(DataLoader(data, batch_size=2)))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "got no array"),
        ({"x": [1, 2]}, "got list for 'x'"),
        ({"x": np.array("a")}, "for 'x'"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, "x: 3, y: 4"),
    ],
)
def test_arrays_that_make_no_data_set(given: Any, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        ArrayDataset(given)


def test_odd_arrays_become_tensors() -> None:
    odd = {
        "big": np.arange(6, dtype=">i4").reshape(3, 2),
        "turned": np.arange(12, dtype=np.float32).reshape(2, 2, 3).T,
        "flag": np.array([True, False, True]),
        "wide": np.array([1, 2, 2**32 - 1], dtype=np.uint32),
    }
    data = ArrayDataset(odd, lambda batch, draws: {name: np.asarray(x)[:, ...] for name, x in batch.items()})
    (batch,) = make(DataLoader(data, batch_size=3))
    assert batch["big"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert batch["turned"].tolist() == odd["turned"].tolist()
    assert batch["flag"].dtype == torch.bool
    assert batch["wide"].tolist() == [1, 2, 2**32 - 1]
    assert all(tensor.is_contiguous() for tensor in batch.values())
    batch["big"] += 1  # memory of its own
    assert odd["big"][0, 0] == 0


class Counting(GatherDataset):
    """Only `__len__` and `gather`, as a user writes it."""

    def __len__(self) -> int:
        return 6

    def gather(self, indices: Any, draws: Draws | None = None) -> Any:
        return {"id": indices * 10}


def test_a_data_set_of_the_user() -> None:
    assert [batch["id"].tolist() for batch in make(DataLoader(Counting(), batch_size=4))] == [
        [0, 10, 20, 30],
        [40, 50],
    ]
    assert Counting()[5]["id"] == 50


def noisy(batch: dict[str, Any], draws: Draws) -> dict[str, Any]:
    return {**batch, "noise": draws.uniform("x")}


def train_in_child(
    store: Path, log: Path, position: Any, num_workers: int, rank: int, world_size: int, is_last: bool
) -> None:
    """Stands for one process of a run: writes down each batch with the position behind it."""
    ahead._WORTH_SECONDS = 0.0
    loader = make(
        DataLoader(StoreDataset(store, noisy), batch_size=5, shuffle=True, num_workers=num_workers),
        repeat=True,
        rank=rank,
        world_size=world_size,
    )
    if position is not None:
        loader.seek(position)
    with log.open("w") as file:
        for number, batch in enumerate(loader):
            row = {
                "samples": list(zip(batch["id"].tolist(), batch["noise"].tolist(), strict=True)),
                "position": loader.position(),
            }
            print(json.dumps(row), file=file, flush=True)
            if row["position"]["epoch"] == 2:
                break
            time.sleep(0.001 if is_last or number < 14 else 60)  # to be killed
    loader.close()


@pytest.mark.parametrize("stages", [((2, 1), (0, 3), (8, 1)), ((0, 1), (3, 2), (0, 3))])
def test_kill_9_then_other_workers_and_ranks(tmp_path: Path, stages: Any) -> None:
    store = tmp_path / "store"
    write_store(store, {"id": np.arange(NUM, dtype=np.int32)}, made_by={}, shard_records=30)
    context = multiprocessing.get_context("fork")
    position: Any = None
    batches: list[Any] = []
    for stage, (num_workers, world_size) in enumerate(stages):
        is_last = stage == len(stages) - 1
        logs = [tmp_path / f"{stage}-{rank}.jsonl" for rank in range(world_size)]
        processes = [
            context.Process(
                target=train_in_child, args=(store, log, position, num_workers, rank, world_size, is_last)
            )
            for rank, log in enumerate(logs)
        ]
        for process in processes:
            process.start()
        for process, log in zip(processes, logs, strict=True):
            while not is_last and not (log.exists() and log.read_bytes().count(b"\n") >= 11):
                assert process.is_alive()
                time.sleep(0.002)
            if not is_last:
                process.kill()
            process.join()
            assert process.exitcode == (0 if is_last else -signal.SIGKILL)
        texts = [log.read_text().splitlines(keepends=True) for log in logs]
        rows = [[json.loads(line) for line in text if line.endswith("\n")] for text in texts]
        length = min(map(len, rows))  # what all ranks had done, as a checkpoint would have it
        for each in zip(*(row[:length] for row in rows), strict=True):
            batches.append([tuple(sample) for row in each for sample in row["samples"]])
        position = rows[0][length - 1]["position"]
    whole = make(DataLoader(StoreDataset(store, noisy), batch_size=5, shuffle=True), repeat=True)
    expected = [
        list(zip(batch["id"].tolist(), batch["noise"].tolist(), strict=True)) for batch in take(whole, 42)
    ]
    assert batches == expected
    for epoch in (batches[:21], batches[21:]):
        assert sorted(number for batch in epoch for number, _ in batch) == list(range(NUM))
