"""What is said of a user's loader: each fault where it is, and nothing where there is none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from loader_cases import Dicts, Stream, make, tensors
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset
from torch.utils.data.datapipes.iter import IterableWrapper

from portwright.data import ArrayDataset, FileDataset, hdf5
from portwright.data.advice import advise

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def told(data: Any, is_training: bool = True) -> list[str]:
    return list(advise(data, is_training=is_training))


def pipe() -> Any:
    return IterableWrapper(range(100))


@pytest.mark.parametrize(
    ("stages", "complaint"),
    [
        (lambda: pipe().batch(4).shuffle(buffer_size=5000), "shuffles batches"),
        (lambda: pipe().batch(4).sharding_filter(), "shards after batching"),
        (lambda: pipe().shuffle(buffer_size=10), "a buffer of 10 samples"),
    ],
)
def test_data_pipes_in_the_wrong_order(stages: Any, complaint: str) -> None:
    (line,) = told(DataLoader(stages(), batch_size=None))
    assert complaint in line


def test_a_pipe_in_the_right_order_is_left_alone() -> None:
    right = pipe().sharding_filter().shuffle(buffer_size=5000).batch(4).map(len)
    assert told(DataLoader(right, batch_size=None)) == []
    # What torch's documentation asks for: workers share the order, and each takes its part of it.
    assert told(DataLoader(pipe().shuffle(buffer_size=5000).sharding_filter(), batch_size=None)) == []
    assert told(DataLoader(pipe().shuffle(buffer_size=10), batch_size=4), is_training=False) == []


class Node:
    """Stands for a stage of HuggingFace's iterable data sets."""

    def __init__(self, ex_iterable: Any = None, buffer_size: int | None = None) -> None:
        self.ex_iterable = ex_iterable
        if buffer_size is not None:
            self.buffer_size = buffer_size


def node(name: str) -> Any:
    return type(name, (Node,), {})


class Wrapped(IterableDataset[Any]):
    def __init__(self, chain: Any) -> None:
        self._ex_iterable = chain

    def __iter__(self) -> Any:
        return iter(())


def test_huggingfaces_chains_are_read() -> None:
    repeat, shuffle = node("RepeatExamplesIterable"), node("BufferShuffledExamplesIterable")
    wrong = Wrapped(shuffle(repeat(node("ArrowExamplesIterable")()), 5000))
    (line,) = told(DataLoader(wrong, batch_size=4))
    assert line.startswith("repeat -> shuffle: it repeats before it shuffles")
    small = Wrapped(shuffle(node("ArrowExamplesIterable")(), 100))
    (line,) = told(DataLoader(small, batch_size=512))
    assert "BufferShuffled has a buffer of 100 samples" in line
    assert "Use 2048 or more" in line
    assert told(DataLoader(Wrapped(repeat(shuffle(Node(), 5000))), batch_size=4)) == []


class WebStage:
    def __init__(self, name: str, *args: Any) -> None:
        self.f = type("F", (), {"__name__": name})()
        self.args = args


class Web(IterableDataset[Any]):
    def __init__(self, *stages: WebStage) -> None:
        self.pipeline = list(stages)

    def __iter__(self) -> Any:
        return iter(())


def test_webdatasets_pipelines_are_read() -> None:
    (line,) = told(DataLoader(Web(WebStage("_batched", 64), WebStage("_shuffle", 5000)), batch_size=None))
    assert "shuffles batches" in line
    (line,) = told(DataLoader(Web(WebStage("_shuffle", 100), WebStage("_batched", 64)), batch_size=None))
    assert "a buffer of 100 samples" in line
    right = Web(
        WebStage("_shuffle", 5),
        WebStage("tar_file_expander"),
        WebStage("_shuffle", 5000),
        WebStage("_batched", 4),
    )
    assert told(DataLoader(right, batch_size=None)) == []


def test_a_stream_that_says_nothing_of_itself_is_left_alone() -> None:
    assert told(DataLoader(Stream(10), batch_size=2)) == []


class Holding(Dataset[Any]):
    """A user's data set as it is often written."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> Any:
        return 0


@pytest.mark.parametrize(
    "wrap", [lambda d: d, lambda d: Subset(d, range(9)), lambda d: ConcatDataset([d, d])]
)
def test_a_handle_that_is_open_before_the_fork(tmp_path: Path, wrap: Any) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(10)
        data = wrap(Holding(file=file))
        lines = told(DataLoader(data, batch_size=2, num_workers=2))
        assert lines
        assert all(
            "Holding.file is an HDF5 handle that was opened before the workers" in line for line in lines
        )
        assert told(DataLoader(data, batch_size=2)) == []
        spawned = DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context="spawn")
        assert told(spawned) == []


@pytest.mark.parametrize("rows", [np.zeros((2000, 3)), torch.zeros(2000, 3)])
def test_rows_that_are_read_one_at_a_time(rows: Any) -> None:
    (line,) = told(DataLoader(Holding(images=rows), batch_size=8))
    assert "its row of images, portwright.data.ArrayDataset" in line
    assert told(DataLoader(Holding(images=rows[:9]), batch_size=8)) == []  # something else
    assert told(DataLoader(Holding(images=rows), batch_size=8, collate_fn=list)) == []
    assert told(DataLoader(Holding(images=rows), batch_size=1)) == []


def test_plain_loaders_are_left_alone() -> None:
    for data in (Dicts(9), tensors(2000), ArrayDataset({"x": np.zeros(2000)})):
        assert told(DataLoader(data, batch_size=2, shuffle=True)) == []
    assert told([1, 2]) == []


def test_more_workers_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    (line,) = told(DataLoader(Dicts(9), num_workers=5))
    assert line.startswith("num_workers is 5, and this process may use 2 cores")


def test_workers_that_only_hand_over() -> None:
    (line,) = told(DataLoader(ArrayDataset({"x": np.zeros(9)}), batch_size=2, num_workers=1))
    assert "Set num_workers to 0" in line
    busy = ArrayDataset({"x": np.zeros(9)}, lambda batch, draws: batch)
    assert told(DataLoader(busy, batch_size=2, num_workers=1)) == []


def test_chunks_that_do_not_fit_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5, "MOST_BYTES_IN_MEMORY", 0)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(10), chunks=True)
    (line,) = told(DataLoader(FileDataset(tmp_path / "a.h5"), batch_size=2))
    assert "a.h5 is stored in chunks" in line
    assert "portwright data pack" in line


def test_a_run_is_told() -> None:
    loader = make(DataLoader(Holding(images=np.zeros((2000, 2))), batch_size=8))
    assert any(
        note.startswith("train_input: Holding reads its samples one at a time") for note in loader.notes
    )
