"""What `portwright data bench` concludes from what it measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from loader_cases import Stream
from torch.utils.data import DataLoader, Dataset

from portwright.data import ArrayDataset
from portwright.data.bench import BenchReport, LoaderRate, bench_dataset, measure_loader
from portwright.errors import UserError


def rate(samples_per_second: float, is_ahead: bool, parts: dict[str, float] | None = None) -> LoaderRate:
    return LoaderRate(samples_per_second, 8, 0.1, 10, 0, is_ahead, parts or {})


@pytest.mark.parametrize(
    ("loader", "step", "is_ahead", "share", "keeps_up"),
    [
        (1000, 1000, True, 0.0, True),
        (500, 1000, True, 0.5, False),
        (2000, 1000, True, 0.0, True),
        (1000, 1000, False, 0.5, False),
        (19_000, 1000, False, 0.05, True),
        (9_000, 1000, False, 0.1, False),
    ],
)
def test_waiting(loader: float, step: float, is_ahead: bool, share: float, keeps_up: bool) -> None:
    report = BenchReport("x", rate(loader, is_ahead), {"samples_per_second": step, "target": "CPU"})
    assert report.waiting_share == pytest.approx(share)
    assert report.keeps_up is keeps_up
    assert ("keeps up: " in "\n".join(report.lines())) is keeps_up


def test_what_bounds_it_is_told_with_a_cure() -> None:
    slow = rate(10, False, {"collating samples": 0.1, "reading samples one at a time": 0.7})
    lines = list(BenchReport("x", slow, {"samples_per_second": 1000, "target": "CPU"}).lines())
    assert lines[-1].startswith("does not keep up: bound by reading samples one at a time. Let the data set")


def ticking() -> Any:
    """A clock that goes on by a tenth of a second whenever it is looked at."""
    now = iter(range(10**6))
    return lambda: next(now) / 10


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index * index)


def test_samples_are_counted_across_epochs() -> None:
    found, kept = measure_loader(
        DataLoader(Squares(), batch_size=8), name="t", seed=0, seconds=1.0, clock=ticking()
    )
    # Batches of 8, 8 and 4, four kept and ten measured at a tenth of a second each.
    assert len(kept) == 4
    assert found.num_batches == 10
    assert found.samples_per_second == pytest.approx(68)
    assert set(found.parts) == {"reading samples one at a time", "collating samples", "what the loader adds"}


def test_kinds_of_data_have_their_parts() -> None:
    data = ArrayDataset({"x": np.zeros((30, 2))}, lambda batch, draws: batch)
    found, _ = measure_loader(DataLoader(data, batch_size=4), name="t", seed=0, seconds=0.2, clock=ticking())
    assert set(found.parts) == {"the transform", "gathering records", "what the loader adds"}
    assert data.transform is not None
    found, _ = measure_loader(
        DataLoader(Stream(30), batch_size=4), name="t", seed=0, seconds=0.2, clock=ticking()
    )
    assert found.bound == "the data set's own iteration"
    found, _ = measure_loader([torch.zeros(3)] * 2, name="t", seed=0, seconds=0.2, clock=ticking())
    assert found.parts == {}
    assert found.bound is None


def test_records_fewer_than_a_batch_and_none() -> None:
    report = bench_dataset(ArrayDataset({"x": np.zeros(3)}), "x", batch_size=256, num_workers=0, seconds=0.01)
    assert report.loader.batch_size == 3
    assert report.keeps_up is None
    with pytest.raises(UserError, match="holds no record"):
        bench_dataset(ArrayDataset({"x": np.zeros(0)}), "x", batch_size=4, num_workers=0, seconds=0.01)
