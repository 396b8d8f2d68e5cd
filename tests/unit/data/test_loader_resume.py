"""From any position on, the rest is the same to the last bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_cases import (
    Batches,
    Counter,
    Dicts,
    Epochs,
    Noisy,
    OwnRandom,
    Stream,
    assert_same,
    generator_state,
    make,
    take,
    tensors,
)
from torch.utils.data import DataLoader, RandomSampler, Sampler, TensorDataset

from portwright.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

INPUTS: dict[str, Callable[[], Any]] = {
    "tensors": lambda: DataLoader(tensors(10), batch_size=4, shuffle=True),
    "tensors in turn": lambda: DataLoader(tensors(10), batch_size=4),
    "dicts": lambda: DataLoader(Dicts(10), batch_size=4, shuffle=True, drop_last=True),
    "noisy": lambda: DataLoader(Noisy(10), batch_size=4, shuffle=True),
    "no batching": lambda: DataLoader(Noisy(4), batch_size=None, shuffle=True),
    "workers": lambda: DataLoader(Noisy(10), batch_size=4, shuffle=True, num_workers=2),
    "persistent": lambda: DataLoader(
        Noisy(10), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True, prefetch_factor=3
    ),
    "stream": lambda: DataLoader(Stream(10), batch_size=4),
    "stream, workers": lambda: DataLoader(Stream(11), batch_size=4, num_workers=2),
    "stream, persistent": lambda: DataLoader(
        Stream(11), batch_size=4, num_workers=2, persistent_workers=True
    ),
    "stream with state": lambda: DataLoader(Counter(10), batch_size=4),
    "stream with state, even": lambda: DataLoader(Counter(8), batch_size=4),
    "stream with state, dropping": lambda: DataLoader(Counter(10), batch_size=4, drop_last=True),
    "stream with odd state": lambda: DataLoader(Counter(10, fail_state=True), batch_size=4),
    "batches": lambda: Batches(3),
    "own random": lambda: OwnRandom(3),
    "epochs": lambda: Epochs(3),
    "one shot": lambda: iter([torch.full((2,), number) for number in range(20)]),
    "list": lambda: [torch.full((size,), size) for size in (4, 4, 2)],
    "bare stream": lambda: Stream(5),
}
NUM_BATCHES = 8


def training_draws() -> None:
    """What a step draws, from the generators that the trainer saves."""
    random.random(), np.random.rand(), torch.rand(3)


def save_rng() -> tuple[Any, ...]:
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def load_rng(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])


def run(loader: Any, count: int) -> Iterator[tuple[Any, dict[str, Any], tuple[Any, ...]]]:
    for batch in islice(iter(loader), count):
        training_draws()
        yield batch, json.loads(json.dumps(loader.position())), save_rng()


@pytest.mark.parametrize("case", INPUTS)
def test_every_position_leads_to_the_same_rest(case: str) -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    whole = make(INPUTS[case](), repeat=True)
    start, rng = whole.position(), save_rng()
    history = list(run(whole, NUM_BATCHES))
    batches = [batch for batch, _, _ in history]
    whole.close()
    places = [(start, rng), *((position, rng) for _, position, rng in history)]
    assert [position["samples"] for position, _ in places] == sorted(
        position["samples"] for position, _ in places
    )
    for done, (position, rng) in enumerate(places):
        resumed = make(INPUTS[case](), repeat=True)
        resumed.seek(position)
        load_rng(rng)
        assert resumed.position() == position
        again = list(run(resumed, NUM_BATCHES - done))
        assert_same([batch for batch, _, _ in again], batches[done:])
        assert [p for _, p, _ in again] == [p for p, _ in places[done + 1 :]]
        resumed.close()


@pytest.mark.parametrize("case", ["noisy", "workers", "persistent", "list", "stream with state", "batches"])
def test_one_loader_seeks_back_and_forth(case: str) -> None:
    """In the same process, also under an iterator that is already running."""
    data = INPUTS[case]()
    loader = make(data, repeat=True)
    batches = iter(loader)
    rng = save_rng()
    start = loader.position()
    positions, firsts = [], []
    for _ in range(5):
        positions.append(loader.position())
        firsts.append(next(batches))
    is_noisy_here = case == "noisy"
    for number in (3, 0, 4, 1):
        loader.seek(positions[number])
        again = next(batches)
        assert_same(
            [again[:, 0] if is_noisy_here else again],
            [firsts[number][:, 0] if is_noisy_here else firsts[number]],
        )
    loader.seek(start)
    load_rng(rng)
    assert_same([next(batches) for _ in range(5)], firsts)
    loader.close()


@given(
    num_samples=st.integers(1, 30),
    batch_size=st.integers(1, 9),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    done=st.integers(0, 40),
)
@settings(max_examples=80, deadline=None)
def test_any_position_of_any_size(
    num_samples: int, batch_size: int, drop_last: bool, shuffle: bool, done: int
) -> None:
    if drop_last and num_samples < batch_size:
        return

    def open_data() -> DataLoader[Any]:
        return DataLoader(tensors(num_samples), batch_size=batch_size, drop_last=drop_last, shuffle=shuffle)

    whole = make(open_data(), repeat=True)
    batches = iter(whole)
    list(islice(batches, done))
    position = whole.position()
    assert whole.num_batches is not None
    assert (position["epoch"], position["batch"]) == divmod(done, whole.num_batches)
    resumed = make(open_data(), repeat=True)
    resumed.seek(position)
    assert_same(take(resumed, 5), list(islice(batches, 5)))


def test_position_counts_what_was_handed_out_not_what_was_prefetched() -> None:
    loader = make(DataLoader(Dicts(40), batch_size=2, num_workers=2, prefetch_factor=4), repeat=True)
    batches = iter(loader)
    for number in range(3):
        next(batches)
        assert loader.position() == {
            "epoch": 0,
            "batch": number + 1,
            "samples": 2 * number + 2,
            "batch_size": 2,
        }
    loader.close()


def test_random_numbers_in_workers_depend_on_the_batch_alone() -> None:
    def epoch(num_workers: int, seed: int = 7) -> list[Any]:
        data = DataLoader(Noisy(12), batch_size=3, num_workers=num_workers, shuffle=True)
        loader = make(data, seed=seed, repeat=True)
        batches = take(loader, 8)
        loader.close()
        return batches

    one = epoch(1)
    assert_same(epoch(2), one)
    noise = torch.cat(one)[:, 1:]
    assert len({tuple(row) for row in noise.tolist()}) == len(noise)  # no batch repeats another's numbers
    assert noise.unique().numel() == noise.numel()
    assert not torch.equal(torch.cat(epoch(1, seed=8)), torch.cat(one))


def test_seeking_loads_nothing_that_is_skipped() -> None:
    read: list[int] = []

    class Watched(Dicts):
        def __getitem__(self, index: int) -> int:
            read.append(index)
            return index

    for sampler in (None, RandomSampler(range(20)), Own(20)):
        read.clear()
        loader = make(DataLoader(Watched(20), batch_size=4, sampler=sampler), repeat=True)
        loader.seek({"epoch": 3, "batch": 4, "samples": 0})
        next(iter(loader))
        assert len(read) == 4


def test_a_stream_with_state_is_not_read_again() -> None:
    first = make(DataLoader(Counter(100), batch_size=4), repeat=True)
    take(first, 20)
    data = Counter(100)
    resumed = make(DataLoader(data, batch_size=4), repeat=True)
    resumed.seek(json.loads(json.dumps(first.position())))
    assert next(iter(resumed))[:, 0].tolist() == [80, 81, 82, 83]
    assert data.num_read == 4
    assert resumed.notes == []


def test_an_iterable_that_is_told_the_epoch_is_read_again_for_that_epoch_only() -> None:
    data = Epochs(5)
    loader = make(data, repeat=True)
    loader.seek({"epoch": 9, "batch": 2, "samples": 0})
    assert next(iter(loader)).tolist() == [902] * 4
    assert data.num_read == 3
    assert any("read again" in note for note in loader.notes)


def test_reading_again_leaves_the_generators_alone() -> None:
    first = make(Batches(4), repeat=True)
    take(first, 6)
    resumed = make(Batches(4), repeat=True)
    resumed.seek(first.position())
    before = generator_state()
    next(iter(resumed))
    assert generator_state() == before
    assert any("cannot seek" in note for note in resumed.notes)
    assert len(resumed.notes) == len(set(resumed.notes))


def test_state_in_workers_is_said_to_be_out_of_reach() -> None:
    loader = make(DataLoader(Counter(20), batch_size=4, num_workers=1), repeat=True)
    loader.seek({"epoch": 0, "batch": 2, "samples": 8})
    assert next(iter(loader))[:, 0].tolist() == [8, 9, 10, 11]
    assert any("num_workers=0" in note for note in loader.notes)
    loader.close()


def test_the_spare_normal_of_numpy_survives_a_resume() -> None:
    """A sampler is drawn in stretches, and a resumed run draws it at other batches than the undisturbed one."""

    class Normal(Dicts):
        def __getitem__(self, index: int) -> float:
            return np.random.randn()

    def open_data() -> DataLoader[Any]:
        return DataLoader(Normal(9), batch_size=1, sampler=Own(9))

    whole = make(open_data(), repeat=True)
    batches = iter(whole)
    next(batches)
    position, rng = whole.position(), save_rng()
    assert rng[2][3] == 1  # has_gauss
    rest = take(batches, 12)
    resumed = make(open_data(), repeat=True)
    resumed.seek(position)
    load_rng(rng)
    assert_same(take(resumed, 12), rest)


class Own(Sampler):
    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self.num_samples).tolist()


def test_evaluation_starts_over_each_time() -> None:
    for data in (
        DataLoader(tensors(10), batch_size=3, shuffle=True),
        DataLoader(Counter(10), batch_size=3),
        Batches(4),
    ):
        loader = make(data, name="eval_input")
        first = take(loader, 2)
        assert_same(take(loader, 2), first)
        whole = list(loader)
        assert len(whole) == 4
        assert_same(whole[:2], first)
        assert_same(list(loader), whole)
    loader = make([torch.ones(1), torch.zeros(1)])
    loader.seek({"epoch": 0, "batch": 1, "samples": 1})
    assert len(list(loader)) == 1
    assert len(list(loader)) == 2


def test_the_number_of_processes_may_change() -> None:
    first = make(DataLoader(tensors(22), batch_size=4, shuffle=True), repeat=True, world_size=3, rank=1)
    take(first, 7)
    position = first.position()
    assert (position["epoch"], position["batch"]) == (1, 2)  # the last batch of two was left out
    resumed = make(DataLoader(tensors(22), batch_size=4, shuffle=True), repeat=True)
    reference = make(DataLoader(tensors(22), batch_size=4, shuffle=True), repeat=True)
    resumed.seek(position)
    assert_same(take(resumed, 3), take(reference, 11)[8:])


def test_a_new_batch_size_continues_at_the_same_sample() -> None:
    first = make(DataLoader(tensors(40), batch_size=4, shuffle=True), repeat=True)
    take(first, 6)
    resumed = make(DataLoader(tensors(40), batch_size=8, shuffle=True), repeat=True)
    resumed.seek(first.position())
    assert resumed.position()["batch"] == 3
    assert any("batch size was 4 and is 8" in note for note in resumed.notes)
    order = torch.cat([batch[1] for batch in make(DataLoader(tensors(40), batch_size=4, shuffle=True))])
    assert torch.equal(next(iter(resumed))[1], order[24:32])


class Short(Sampler):
    def __iter__(self) -> Iterator[int]:
        yield from range(6)


@pytest.mark.parametrize(
    "data",
    [
        DataLoader(tensors(8), batch_size=2),
        DataLoader(tensors(8), batch_size=2, sampler=Short()),
        DataLoader(Stream(8), batch_size=2),
        DataLoader(Stream(8), batch_size=2, num_workers=1),
        [torch.ones(1)] * 4,
        Epochs(4),
    ],
)
def test_data_that_became_shorter_are_noticed(data: Any) -> None:
    loader = make(data, repeat=True)
    loader.seek({"epoch": 0, "batch": 5, "samples": 10})
    with pytest.raises(UserError, match=r"continues at batch 5 .* fewer"):
        next(iter(loader))


@pytest.mark.parametrize(
    "position",
    [
        {},
        {"epoch": -1, "batch": 0, "samples": 0},
        {"epoch": 0, "batch": "3", "samples": 0},
        {"epoch": 0, "batch": True, "samples": 0},
        {"epoch": 0, "batch": 1, "samples": 0, "state": {"dataset": {}}},
        {"epoch": 0, "batch": 1, "samples": 0, "state": "torn"},
    ],
)
def test_a_damaged_position_is_refused(position: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="position is damaged"):
        make([torch.ones(1)], repeat=True).seek(position)


def test_a_state_that_the_data_set_refuses() -> None:
    loader = make(DataLoader(Counter(8), batch_size=2), repeat=True)
    loader.seek({"epoch": 0, "batch": 1, "samples": 2, "state": {"dataset": {"other": 1}, "random": {}}})
    with pytest.raises(UserError, match=r"Counter refused .*KeyError"):
        next(iter(loader))


def test_subclasses_that_only_resume_are_taken_over() -> None:
    class Stateful(DataLoader):
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("its own way of resuming is not asked for")

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    ours = list(make(Stateful(tensors(10), batch_size=4, shuffle=True)))
    assert_same(ours, list(make(DataLoader(tensors(10), batch_size=4, shuffle=True))))


def test_subclasses_that_iterate_in_their_own_way_keep_it() -> None:
    class Doubling(DataLoader):
        def __iter__(self) -> Iterator[Any]:
            for (x,) in super().__iter__():
                yield x * 2

    def open_data() -> DataLoader[Any]:
        return Doubling(TensorDataset(torch.arange(6)), batch_size=2, shuffle=True)

    loader = make(open_data(), repeat=True)
    batches = iter(loader)
    assert sorted(torch.cat([next(batches) for _ in range(3)]).tolist()) == [0, 2, 4, 6, 8, 10]
    next(batches)
    position, rest = loader.position(), take(batches, 5)
    resumed = make(open_data(), repeat=True)
    resumed.seek(position)
    assert_same(take(resumed, 5), rest)


KILLED = """
    import json, os, sys, time
    import torch
    from loader_cases import Noisy, make
    from torch.utils.data import DataLoader

    log, last = sys.argv[1], int(sys.argv[2])
    loader = make(DataLoader(Noisy(50), batch_size=3, shuffle=True, num_workers=2), repeat=True)
    done = 0
    if os.path.exists(log):
        lines = [json.loads(line) for line in open(log) if line.endswith("\\n")]
        done = len(lines)
        loader.seek(lines[-1]["position"])
        text = "".join(json.dumps(line) + "\\n" for line in lines)
        open(log, "w").write(text)
    batches = iter(loader)
    with open(log, "a") as file:
        while done < last:
            batch = next(batches)
            file.write(json.dumps({"batch": batch.tolist(), "position": loader.position()}) + "\\n")
            file.flush()
            done += 1
            time.sleep(0.002)
    loader.close()
"""


def test_kill_9_and_go_on(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(textwrap.dedent(KILLED))
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    log = tmp_path / "killed.jsonl"

    def start(path: Path, last: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(script), str(path), str(last)], env=environment)

    process = start(log, 10**6)
    while not (log.exists() and log.read_bytes().count(b"\n") >= 31):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    lines = len([line for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")])
    assert start(log, lines + 20).wait() == 0
    whole = make(DataLoader(Noisy(50), batch_size=3, shuffle=True, num_workers=2), repeat=True)
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(logged) == lines + 20
    assert [line["batch"] for line in logged] == [batch.tolist() for batch in take(whole, lines + 20)]
    whole.close()
