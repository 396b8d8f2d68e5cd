"""Orders carried out by a maker of batches, and what is told of those that nobody could carry out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from portwright.data.loader import open_source
from portwright.data.source import Shared
from portwright.errors import UserError
from portwright.runtime.stream_batches import BatchMaker, InputChannel
from portwright.stream import wire
from portwright.stream.pool import DeadlyOrderError
from portwright.target import JobSpec


class Passes(IterableDataset[Any]):
    """Says how often it was begun."""

    def __init__(self) -> None:
        self.num_passes = 0

    def __iter__(self) -> Iterator[Any]:
        self.num_passes += 1
        for index in range(6):
            yield torch.tensor([self.num_passes, index])


class Pool:
    """Does orders here, in any order of lanes, and keeps them."""

    def __init__(self, do: Callable[[bytes], Any]) -> None:
        self.do = do

    def map(self, orders: Any, window: int, fallback: Any) -> Iterator[memoryview]:
        for each in orders:
            yield wire.gather(self.do(each.body))


def job(data_fn: Any) -> JobSpec:
    params: Any = SimpleNamespace(values={}, runconfig=SimpleNamespace(seed=7))
    return JobSpec(params, lambda: None, data_fn, data_fn, "train", Path())


def source(data: Any) -> Any:
    return open_source(data, Shared("train_input", 7, 0, 1))


def channel(pool: Pool) -> InputChannel:
    return InputChannel(pool, "train_input", 2, None)  # type: ignore[arg-type]


def test_an_input_that_cannot_go_back_is_opened_anew() -> None:
    opened = []

    def data_fn(params: Any) -> Any:
        opened.append(1)
        return DataLoader(Passes(), batch_size=2)

    maker = BatchMaker(job(data_fn), 0, 2)
    here = source(DataLoader(Passes(), batch_size=2))
    for epoch, index, passes, num_opened in [
        (0, 0, 1, 1),
        (0, 2, 1, 1),
        (0, 1, 1, 2),
        (1, 0, 2, 3),
        (0, 0, 1, 4),
    ]:
        wanted = SimpleNamespace(order={"epoch": epoch, "lane": 0, "index": index}, lane=0, epoch=epoch)
        request = channel(Pool(maker)).request(iter([wanted]), here.fingerprint, None)  # type: ignore[list-item]
        ((_, batch),) = request
        assert batch.tolist() == [[passes, 2 * index], [passes, 2 * index + 1]]
        assert len(opened) == num_opened
    maker.close()


def test_data_in_another_order_are_refused_before_any_batch() -> None:
    def data_fn(params: Any) -> Any:
        return DataLoader(TensorDataset(torch.arange(40).flip(0)), batch_size=4)

    here = source(DataLoader(TensorDataset(torch.arange(40)), batch_size=4))
    maker = BatchMaker(job(data_fn), 0, 2)
    with pytest.raises(UserError, match="samples of TensorDataset are in another order here"):
        list(channel(Pool(maker)).request(here.wanted(0, 0), here.fingerprint, here.probe.tell()))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (DataLoader(TensorDataset(torch.arange(40)), batch_size=4), "batch 2: one of samples 8, 9, 10, 11"),
        (DataLoader(list(range(8)), batch_size=2), "batch 2: one of samples 4, 5"),  # type: ignore[arg-type]
        (DataLoader(Passes(), batch_size=2, num_workers=2), "batch 1 of the loader's worker 0"),
        ([np.ones(2)] * 4, "batch 2"),
    ],
    ids=["gathered", "samples", "stream", "list"],
)
def test_what_ended_one_worker_after_the_other_is_named(data: Any, told: str) -> None:
    done = []

    def do(body: bytes) -> Any:
        if len(done) == 2:
            raise DeadlyOrderError(["1", "2"])
        done.append(body)
        return wire.pack(np.ones(2))

    here = source(data)
    with pytest.raises(DeadlyOrderError) as raised:
        for _ in channel(Pool(do)).request(here.wanted(0, 0), here.fingerprint, None):
            pass
    assert (
        raised.value.message == f"workers 1 and 2 ended one after the other at train_input, epoch 0, {told}."
    )
