"""Data sets and comparisons that the tests of the loader share."""

from __future__ import annotations

import random
from collections import namedtuple
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from portwright.data import ResumableLoader

Point = namedtuple("Point", ["x", "y"])


def make(data: Any, **options: Any) -> ResumableLoader:
    return ResumableLoader(data, **{"name": "train_input", "seed": 7, "repeat": False, **options})


def take(loader: Any, count: int) -> list[Any]:
    return list(islice(iter(loader), count))


def same(left: Any, right: Any) -> bool:
    """Whether two batches are equal in structure, types, dtypes and every bit."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def assert_same(left: list[Any], right: list[Any]) -> None:
    assert len(left) == len(right)
    for number, (one, other) in enumerate(zip(left, right, strict=True)):
        assert same(one, other), f"batch {number}: {one} is not {other}"


def tensors(num_samples: int) -> TensorDataset:
    x = torch.arange(num_samples * 3, dtype=torch.float32).reshape(num_samples, 3)
    return TensorDataset(x, torch.arange(num_samples), x.half().sum(1))


class Dicts(Dataset):
    """Samples with everything that default_collate knows."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "id": index,
            "text": f"sample {index}",
            "float": index / 2,
            "array": np.full((2,), index, dtype=np.int16),
            "point": Point(torch.tensor([index]), (index, [torch.zeros(2)])),
        }


class Batched(Dicts):
    """A data set that reads many samples at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [torch.tensor([index]) for index in indices]


class Noisy(Dicts):
    """Each sample carries random numbers of all three kinds."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(
            [index, random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64
        )


class Stream(IterableDataset):
    """A stream with a shuffle buffer, whose content depends on all that was drawn before."""

    def __init__(self, num_samples: int, noise: bool = True) -> None:
        self.num_samples = num_samples
        self.noise = noise

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        buffer: list[int] = []
        for index in range(first, self.num_samples, step):
            buffer.append(index)
            if len(buffer) == 4:
                yield self._sample(buffer.pop(random.randrange(4) if self.noise else 0))
        yield from map(self._sample, buffer)

    def _sample(self, index: int) -> Any:
        noise = torch.rand(()).item() + np.random.rand() if self.noise else 0.0
        return torch.tensor([index, noise], dtype=torch.float64)


class Counter(IterableDataset):
    """A stream that can be asked where it is, in the way of torchdata."""

    def __init__(self, num_samples: int, fail_state: bool = False) -> None:
        self.num_samples = num_samples
        self.next = 0
        self.num_read = 0
        self.fail_state = fail_state

    def __iter__(self) -> Iterator[Any]:
        while self.next < self.num_samples:
            self.next += 1
            self.num_read += 1
            yield torch.tensor([self.next - 1, torch.rand(()).item(), random.random(), np.random.randn()])
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": (self.next,) if self.fail_state else self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"][0] if self.fail_state else state["next"]


class Batches:
    """An iterable of batches that is neither a list nor a DataLoader."""

    def __init__(self, num_batches: int) -> None:
        self.num_batches = num_batches

    def __iter__(self) -> Iterator[Any]:
        for number in torch.randperm(self.num_batches).tolist():
            yield {"x": torch.full((4, 2), number), "noise": torch.rand(4)}


class OwnRandom(Batches):
    """Carries its own generator from epoch to epoch, where nobody sees it."""

    def __init__(self, num_batches: int) -> None:
        super().__init__(num_batches)
        self.generator = np.random.default_rng(3)

    def __iter__(self) -> Iterator[Any]:
        for number in self.generator.permutation(self.num_batches):
            yield torch.full((4,), int(number))


class Epochs(Batches):
    """Is told the epoch, so that no earlier one has to be read again."""

    def __init__(self, num_batches: int) -> None:
        super().__init__(num_batches)
        self.epoch = 0
        self.num_read = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.num_batches):
            self.num_read += 1
            yield torch.full((4,), 100 * self.epoch + number)


def generator_state() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state(legacy=True)[1:3])
