"""What goes wrong is told with the sample at which it did."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loader_cases import Dicts, Stream, make, take, tensors
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    default_collate,
)

from portwright.errors import UserError

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


class Odd(Exception):
    """An exception that does not survive pickling."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and\n{second}")


class Broken(Dicts):
    """Fails at one sample, in one way."""

    def __init__(self, how: str, bad: int = 7, num_samples: int = 12) -> None:
        super().__init__(num_samples)
        self.how = how
        self.bad = bad

    def __getitem__(self, index: int) -> Any:
        if index == self.bad:
            return self.fail(index)
        return torch.tensor([index, 1])

    def fail(self, index: int) -> Any:
        if self.how == "value":
            raise ValueError("bad pixel\nin line 3")
        if self.how == "key":
            return {}["label"]
        if self.how == "odd":
            raise Odd(1, 2)
        if self.how == "stop":
            raise StopIteration
        if self.how == "user":
            raise UserError("file x.npy is truncated.", "Copy it again.")
        if self.how == "ragged":
            return torch.tensor([index, 1, 2])
        if self.how == "none":
            return None
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "exit":
            os._exit(3)
        if self.how == "sleep":
            time.sleep(1.5)
        return None


class BrokenMany(Broken):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class BrokenTogether(Broken):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        if len(indices) > 1 and self.bad in indices:
            raise ValueError("only together")
        return [torch.zeros(1)] * len(indices)


def fail(data: Any, **options: Any) -> UserError:
    loader = make(data, repeat=True, **options)
    raised: UserError | None = None
    try:
        take(loader, 100)
    except UserError as error:
        raised = error.with_traceback(None)  # pytest.raises would keep the frames, and the workers with them
    loader.close()
    assert raised is not None
    if raised.__cause__ is not None:
        raised.__cause__.__traceback__ = None
    assert raised.cure
    assert "\n" not in str(raised)
    assert str(raised).startswith("train_input: ")
    return raised


RAISED = {
    "value": (ValueError, "ValueError: bad pixel in line 3"),
    "key": (KeyError, "KeyError: 'label'"),
    "stop": (StopIteration, "StopIteration"),
    "user": (UserError, "file x.npy is truncated."),
}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("how", RAISED)
@pytest.mark.parametrize("kind", [Broken, BrokenMany])
def test_a_sample_that_raises_is_named(kind: type[Broken], how: str, num_workers: int) -> None:
    error = fail(DataLoader(kind(how), batch_size=3, num_workers=num_workers))
    cause, text = RAISED[how]
    assert f"{kind.__name__} failed on sample 7 (epoch 0, batch 2): {text}" in error.message
    assert type(error.__cause__) is cause
    if how == "user":
        assert error.cure == "Copy it again."
    if num_workers:
        assert "in fail" in str(error.__cause__.__cause__)  # the worker's own traceback


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_exception_that_cannot_travel_is_told_all_the_same(num_workers: int) -> None:
    error = fail(DataLoader(Broken("odd"), batch_size=3, num_workers=num_workers))
    assert "sample 7 (epoch 0, batch 2): Odd: 1 and 2" in error.message
    assert isinstance(error.__cause__, Odd if num_workers == 0 else RuntimeError)


def test_the_index_is_right_when_shuffled_sharded_and_later() -> None:
    error = fail(DataLoader(Broken("value", bad=5), batch_size=4, shuffle=True), world_size=2, rank=0, seed=3)
    assert "sample 5 " in error.message
    late = make(DataLoader(Broken("value"), batch_size=3), repeat=True)
    late.seek({"epoch": 4, "batch": 2, "samples": 0})
    with pytest.raises(UserError, match=r"sample 7 \(epoch 4, batch 2\)"):
        next(iter(late))


def test_an_index_through_a_subset_is_told_in_both_counts() -> None:
    error = fail(DataLoader(Subset(Broken("value"), [3, 2, 7, 1]), batch_size=2))
    assert "Subset of Broken failed on sample 2 (7 of Broken) (epoch 0, batch 1)" in error.message


def test_samples_that_fail_only_together_are_listed() -> None:
    error = fail(DataLoader(BrokenTogether("value"), batch_size=3))
    assert "one of samples 6, 7, 8 (epoch 0, batch 2): ValueError: only together" in error.message


@pytest.mark.parametrize("data", [tensors(4), Dicts(4), Subset(tensors(9), [1, 2, 3, 4])])
def test_an_index_out_of_range_is_named(data: Any) -> None:
    class Far(Dicts):
        def __getitem__(self, index: int) -> int:
            return [0, 1, 2, 3][index]

    data = Far(4) if isinstance(data, Dicts) else data
    error = fail(DataLoader(data, batch_size=2, sampler=[0, 1, 2, 11]))
    assert "sample 11 (epoch 0, batch 1): IndexError" in error.message


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("how", "where"), [("ragged", "sample 6 and sample 7"), ("none", "sample 7")])
def test_a_batch_that_cannot_be_collated_names_the_odd_sample(how: str, where: str, num_workers: int) -> None:
    error = fail(DataLoader(Broken(how), batch_size=3, num_workers=num_workers))
    assert f"Broken: {where} could not be collated (epoch 0, batch 2): " in error.message
    assert "collate_fn" in error.cure


def refuse(samples: list[Any]) -> Any:
    if len(samples) > 2:
        raise RuntimeError("three are too many")
    return default_collate(samples)


def test_a_collate_fn_that_blames_nobody() -> None:
    error = fail(DataLoader(Dicts(6), batch_size=3, collate_fn=refuse))
    assert (
        "one of samples 0, 1, 2 could not be collated (epoch 0, batch 0): RuntimeError: three"
        in error.message
    )


def test_an_empty_batch_of_a_batch_sampler() -> None:
    assert "a batch of no samples" in fail(DataLoader(Dicts(6), batch_sampler=[[1], []])).message


def test_a_batch_sampler_of_single_indices() -> None:
    assert "gave 0, which is no list" in fail(DataLoader(Dicts(6), batch_sampler=range(3))).message


@pytest.mark.parametrize(
    ("how", "word"), [("kill", "Killed|exited unexpectedly"), ("exit", "exited unexpectedly")]
)
def test_a_worker_that_dies_tells_its_sample(how: str, word: str) -> None:
    error = fail(DataLoader(Broken(how), batch_size=3, num_workers=2))
    assert "a worker of Broken died at sample 7 (epoch 0, batch 2): " in error.message
    assert any(part in error.message for part in word.split("|"))
    assert isinstance(error.__cause__, RuntimeError)
    assert "num_workers" in error.cure


def test_a_worker_that_dies_in_a_batch_read_at_once_tells_the_batch() -> None:
    error = fail(DataLoader(BrokenMany("kill"), batch_size=3, num_workers=2))
    assert "died at one of samples 6, 7, 8 (epoch 0, batch 2)" in error.message


class Waiting(Broken):
    """Dies only when it is told to."""

    def fail(self, index: int) -> Any:
        while not Path(self.how).exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_dies_while_the_trainer_computes_can_be_explained(tmp_path: Path) -> None:
    loader = make(DataLoader(Waiting(str(tmp_path / "now")), batch_size=3, num_workers=2), repeat=True)
    batches = iter(loader)
    next(batches)
    raised: RuntimeError | None = None
    try:
        (tmp_path / "now").touch()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.01)  # torch's signal handler raises here
    except RuntimeError as error:
        raised = error
    assert raised is not None
    explained = loader.explain(raised)
    assert explained is not None
    assert "died at sample 7 (epoch 0, batch 2)" in explained.message
    assert loader.explain(ValueError("DataLoader worker (pid 1)")) is None
    assert make([torch.ones(1)]).explain(raised) is None
    loader.close()


def test_a_sample_that_takes_for_ever() -> None:
    error = fail(DataLoader(Broken("sleep", bad=2), batch_size=3, num_workers=1, timeout=1))
    assert "sample 2, epoch 0, batch 0" in error.message
    assert "timed out after 1 seconds" in error.message


def bad_init(worker: int) -> None:
    raise OSError("no such disk")


@pytest.mark.parametrize("data", [Dicts(6), Stream(6)])
def test_a_worker_init_fn_that_fails(data: Any) -> None:
    error = fail(DataLoader(data, batch_size=2, num_workers=1, worker_init_fn=bad_init))
    assert "worker_init_fn failed in worker 0 (epoch 0, batch 0): OSError: no such disk" in error.message
    assert "worker_init_fn" in error.cure


def test_what_cannot_be_sent_to_workers() -> None:
    data = DataLoader(
        Dicts(4), collate_fn=lambda samples: samples, num_workers=1, multiprocessing_context="spawn"
    )
    error = fail(data)
    assert "the workers of Dicts failed" in error.message
    assert "ickle" in error.message


def test_spawned_workers_work() -> None:
    loader = make(DataLoader(tensors(6), batch_size=2, num_workers=1, multiprocessing_context="spawn"))
    assert [batch[1].tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]


def test_after_a_failure_the_position_is_still_that_of_the_bad_batch() -> None:
    data = Broken("value")
    loader = make(DataLoader(data, batch_size=3), repeat=True)
    with pytest.raises(UserError):
        take(loader, 9)
    assert loader.position()["batch"] == 2
    data.bad = -1
    assert next(iter(loader))[:, 0].tolist() == [6, 7, 8]


class BrokenStream(IterableDataset):
    def __init__(self, how: str, bad: int = 7) -> None:
        self.inner = Broken(how, bad)

    def __iter__(self) -> Iterator[Any]:
        for index in range(12):
            yield self.inner[index]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_that_raises_tells_how_far_it_came(num_workers: int) -> None:
    error = fail(DataLoader(BrokenStream("value"), batch_size=3, num_workers=num_workers))
    who = " of worker 0" if num_workers else ""
    assert (
        f"BrokenStream failed on sample 7{who}, counted from 0 in this epoch (epoch 0, batch 2): ValueError"
        in error.message
    )
    assert isinstance(error.__cause__, ValueError)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_that_cannot_be_collated(num_workers: int) -> None:
    error = fail(DataLoader(BrokenStream("ragged"), batch_size=3, num_workers=num_workers))
    assert "the batch of samples 6 to 8" in error.message


def test_a_stream_whose_worker_dies() -> None:
    error = fail(DataLoader(BrokenStream("kill"), batch_size=3, num_workers=1))
    assert "died at its sample 7 (epoch 0, batch 2 of that worker)" in error.message


def test_an_iterable_that_raises() -> None:
    def batches() -> Iterator[Any]:
        yield torch.ones(2)
        raise ValueError("no more disk")

    error = fail(batches())
    assert (
        "generator failed on batch 1, counted from 0 in this epoch (epoch 0, batch 1): ValueError: no more disk"
        in error.message
    )


def test_an_iterable_with_workers_of_its_own_that_raises() -> None:
    class Own(DataLoader):
        def __iter__(self) -> Iterator[Any]:
            yield from super().__iter__()

    error = fail(Own(Broken("value"), batch_size=3, num_workers=1))
    assert "batch 2): " in error.message
    assert "in line 3" in error.message
    assert "Traceback" not in error.message


def test_a_list_like_that_raises() -> None:
    class Lazy:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, number: int) -> Any:
            if number == 1:
                raise OSError("gone")
            return torch.ones(2)

    assert "Lazy failed on batch 1 (epoch 0, batch 1): OSError: gone" in fail(Lazy()).message


def test_a_sampler_that_raises() -> None:
    class Bad(Sampler):
        def __iter__(self) -> Iterator[int]:
            yield 0
            raise ValueError("weights do not fit")

    assert (
        "sampler Bad failed (epoch 0): ValueError: weights"
        in fail(DataLoader(Dicts(3), sampler=Bad())).message
    )


class NoLength(Dataset):
    def __getitem__(self, index: int) -> int:
        return index


def unclosed() -> Iterator[Any]:
    yield torch.ones(1)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (lambda: None, "returned None"),
        (lambda: 5, "a int, which cannot be iterated"),
        (lambda: unclosed, "not called"),
        (lambda: DataLoader, "the class DataLoader"),
        (lambda: "train", "a str"),
        (lambda: {"train": [torch.ones(2)]}, "a dict"),
        (lambda: torch.ones(3, 2), "one Tensor of shape (3, 2)"),
        (lambda: np.ones((3, 2)), "one ndarray of shape (3, 2)"),
        (lambda: tensors(4), "the data set TensorDataset itself"),
        (lambda: (DataLoader(tensors(4)), DataLoader(tensors(4))), "a tuple of 2 loaders"),
        (lambda: [], "the list of batches is empty"),
        (lambda: DataLoader(tensors(0), batch_size=4), "data set TensorDataset is empty"),
        (
            lambda: DataLoader(tensors(3), batch_size=4, drop_last=True),
            "3 samples, too few for one batch of 4",
        ),
        (lambda: DataLoader(tensors(3), sampler=[]), "sampler of TensorDataset gives no index"),
        (lambda: DataLoader(tensors(3), batch_sampler=iter([])), "gave no batch"),
        (lambda: DataLoader(Stream(0), batch_size=4), "Stream gave no batch"),
        (lambda: DataLoader(Stream(3), batch_size=4, drop_last=True), "Stream gave no batch"),
        (lambda: DataLoader(Stream(0), batch_size=4, num_workers=1), "Stream gave no batch"),
        (lambda: iter([]), "list_iterator gave no batch"),
        (lambda: DataLoader(NoLength(), batch_size=2), "NoLength does not say how many samples"),
    ],
)
def test_inputs_that_are_none(data: Any, complaint: str) -> None:
    with pytest.raises(UserError) as error:
        take(make(data(), repeat=True), 1)
    assert complaint in error.value.message
    assert error.value.cure
    assert "\n" not in str(error.value)


def test_a_one_shot_iterator_ends_with_a_cure() -> None:
    for data in (unclosed(), map(torch.ones, [1])):
        loader = make(data, repeat=True)
        batches = iter(loader)
        next(batches)
        with pytest.raises(UserError, match="only once") as error:
            next(batches)
        assert "DataLoader or a list" in error.value.cure
    once = make(unclosed())
    assert len(list(once)) == 1
    with pytest.raises(UserError, match="only once"):
        list(once)


def test_an_iterable_that_is_empty_the_second_time() -> None:
    class Spent:
        def __init__(self) -> None:
            self.batches = iter([torch.ones(2)])

        def __iter__(self) -> Iterator[Any]:
            yield from self.batches

    error = fail(Spent())
    assert "Spent gave nothing more in epoch 1" in error.message


def test_a_sampler_that_is_spent_after_an_epoch() -> None:
    assert "gave no batch" in fail(DataLoader(tensors(4), batch_size=2, sampler=iter([0, 1, 2]))).message


def test_batches_out_of_order_are_put_in_order_and_that_is_said() -> None:
    try:
        data = DataLoader(BatchedSlow(6), batch_size=2, num_workers=2, in_order=False)
    except TypeError:
        pytest.skip("this torch has no in_order")
    loader = make(data)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
    assert any("in_order" in note for note in loader.notes)


class BatchedSlow(Dicts):
    def __getitem__(self, index: int) -> int:
        time.sleep(0.1 if index == 0 else 0)
        return index


def test_a_batch_sampler_subclass_is_asked_itself() -> None:
    class Reversed(BatchSampler):
        def __iter__(self) -> Iterator[list[int]]:
            return iter([[3], [2, 1]])

    loader = make(DataLoader(tensors(4), batch_sampler=Reversed(range(4), 2, False)))
    assert [batch[1].tolist() for batch in loader] == [[3], [2, 1]]
