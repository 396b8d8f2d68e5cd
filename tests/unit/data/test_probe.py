"""Data that are in another order elsewhere are found out, and none that are the same are refused."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from portwright.data.loader import open_source
from portwright.data.probe import Probe
from portwright.data.source import Shared
from portwright.errors import UserError
from portwright.runtime.stream_batches import check_sameness

NUM = 40


def image(index: int) -> torch.Tensor:
    return torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(index))


class Samples(Dataset[Any]):
    def __init__(self, sample: Callable[[int], Any], order: list[int] | None = None, num: int = NUM) -> None:
        self.sample, self.order = sample, order or list(range(num))

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Any:
        return self.sample(self.order[index])


def shuffled(seed: int, num: int = NUM) -> list[int]:
    return random.Random(seed).sample(range(num), num)


def open_map(dataset: Any, **options: Any) -> Any:
    return open_source(DataLoader(dataset, batch_size=4, **options), Shared("train_input", 7, 0, 1))


def compare(here: Any, there: Any) -> None:
    check_sameness("train_input", here, there.fingerprint, there.probe.tell())


KINDS: dict[str, Callable[[int], Any]] = {
    "numbers": lambda index: (index, torch.tensor([0.5])),
    "images": image,
    "images and a few labels": lambda index: (image(index), index % 2),
    "images of sorted classes": lambda index: {"x": image(index), "y": index * 10 // NUM, "name": "same"},
    "texts": lambda index: {"text": f"a sentence that says {index} of something", "label": index % 3},
    "tokens": lambda index: np.random.default_rng(index).integers(0, 50_000, 128),
    "names and a clock": lambda index: {"name": f"/node/{os.getpid()}/{index}.png", "at": time.time_ns()},
    "seeded noise": lambda index: (
        image(index) + torch.rand(3, 8, 8) * 0.01 + np.random.rand() + random.random()
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_another_order_is_refused(kind: str) -> None:
    for seed in range(5):
        with pytest.raises(UserError, match="of Samples are in another order here") as caught:
            compare(open_map(Samples(KINDS[kind], shuffled(seed))), open_map(Samples(KINDS[kind])))
        assert "os.listdir" in caught.value.cure


def test_other_files_within_the_same_classes_are_another_order() -> None:
    def unsorted(index: int) -> Any:
        return image(index // 4 * 4 + 3 - index % 4), index * 10 // NUM

    def sorted_(index: int) -> Any:
        return image(index), index * 10 // NUM

    with pytest.raises(UserError, match="of Samples are in another order here"):
        compare(open_map(Samples(unsorted)), open_map(Samples(sorted_)))


def test_a_number_of_samples_is_told() -> None:
    with pytest.raises(
        UserError, match="the data here are 12 of Samples, and the coordinator's 40 of Samples"
    ):
        compare(open_map(Samples(image, num=12)), open_map(Samples(image)))


def test_the_index_itself_does_not_hide_another_order() -> None:
    class Indexed(Samples):
        def __getitem__(self, index: int) -> Any:
            return index, float(self.order[index])

    with pytest.raises(UserError, match="of Indexed are in another order here"):
        compare(open_map(Indexed(image, shuffled(1))), open_map(Indexed(image)))


class Own:
    """Draws of a generator that nobody seeded, in every n-th sample or so."""

    def __init__(self, share: float, always: Callable[[int], Any] = image) -> None:
        self.share, self.always, self.generator = share, always, np.random.default_rng()

    def __call__(self, index: int) -> Any:
        sample = self.always(index)
        return sample.flip(-1) * 0.7 if self.generator.random() < self.share else sample


def by_process() -> dict[str, Callable[[], Callable[[int], Any]]]:
    """Samples that are another in each process that makes them, or at each reading, and are in order all the same."""
    hosts = iter(range(1000))

    def on_host() -> Callable[[int], Any]:
        host = f"{socket.gethostname()}-{next(hosts)}"
        return lambda index: {"host": host, "number": float(hash(host)), "name": f"/{host}/{index}.png"}

    def copied() -> Callable[[int], Any]:
        start = time.time_ns() + next(hosts)
        return lambda index: {"image": image(index), "copied_at": start + index**2}

    def rounded() -> Callable[[int], Any]:
        number = next(hosts)
        return lambda index: image(index) * (1 + 1e-5 * (number % 7))

    def decoded() -> Callable[[int], Any]:
        number = next(hosts)
        return lambda index: (image(index) * 250).byte() + (torch.rand(3, 8, 8) < 0.05).byte() * (number % 2)

    return {
        "plain": lambda: image,
        "a host's name": on_host,
        "a time of a file": copied,
        "rounding": rounded,
        "decoders": decoded,
        "entropy": lambda: lambda index: torch.tensor(list(os.urandom(32))),
        "a clock": lambda: lambda index: time.time_ns(),
        "one thing only": lambda: lambda index: torch.ones(20),
        "nothing to compare": lambda: lambda index: [],
        "an own generator": lambda: Own(1.0, lambda index: torch.rand(3, 4)),
        "a flip by an own generator": lambda: Own(0.5),
        "a rare change by an own generator": lambda: Own(0.1),
        "not a number": lambda: lambda index: torch.tensor([float("nan"), float("inf"), index]),
    }


@pytest.mark.parametrize("kind", by_process())
@pytest.mark.parametrize("num", [1, 2, 3, NUM])
def test_the_same_order_is_never_refused(kind: str, num: int) -> None:
    make = by_process()[kind]
    for _ in range(10):
        compare(open_map(Samples(make(), num=num)), open_map(Samples(make(), num=num)))


def test_what_cannot_be_read_alone_is_not_compared() -> None:
    def fail(index: int) -> Any:
        raise OSError("no such file")

    def only_in_a_worker(index: int) -> Any:
        return torch.utils.data.get_worker_info().id  # type: ignore[union-attr]

    def in_pairs(samples: list[Any]) -> Any:
        assert len(samples) > 1
        return torch.stack(samples)

    for dataset, options in (
        (Samples(fail), {}),
        (Samples(only_in_a_worker), {"num_workers": 1}),
        (Samples(image), {"collate_fn": in_pairs}),
        (Samples(lambda index: object()), {"collate_fn": list}),
    ):
        source = open_map(dataset, **options)
        assert source.probe.tell() is None
        compare(source, open_map(Samples(image)))
    compare(open_map(Samples(image)), open_map(Samples(fail)))
    compare(
        open_map({index: image(index + 1) for index in range(1, 41)}),
        open_map({index: image(index) for index in range(1, 41)}),
    )


def test_lists_of_batches_are_compared_too() -> None:
    def data(order: list[int]) -> Any:
        return open_source([image(index) for index in order], Shared("train_input", 7, 0, 1))

    compare(data(list(range(9))), data(list(range(9))))
    with pytest.raises(UserError, match="of list are in another order here"):
        compare(data(list(range(9))[::-1]), data(list(range(9))))


def test_looking_costs_three_samples_and_no_random_numbers() -> None:
    read: list[int] = []

    def draw(index: int) -> Any:
        read.append(index)
        return torch.rand(20) + random.random() + np.random.randn() + index

    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    np.random.randn()  # leaves a spare one
    before = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())
    here, there = Probe(draw, 10), Probe(draw, 10)
    told = there.tell()
    assert there.tell() is told
    assert read == [0, 5, 9] * 3, "told once"
    assert not here.contradicts(told)
    assert read[9:] == [0, 5, 9]
    after = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
