"""Measures how many samples a second the data give, what takes the time, and whether a step waits for data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset, IterableDataset

from portwright.data.fetch import GatherFetch, SampleFetch, make_fetch
from portwright.data.files import ENDINGS
from portwright.data.gather import FileDataset, GatherDataset, StoreDataset
from portwright.data.loader import ResumableLoader
from portwright.data.manifest import MANIFEST
from portwright.errors import UserError

_NUM_KEPT = 4  # batches kept in memory, to time a step that never waits for data
_MAX_WAITING_SHARE = 0.05  # share of a step's time; with less waiting the data keep up
_CURES = {
    "reading samples one at a time": "Let the data set read a whole batch: subclass portwright.data.GatherDataset, or "
    "give it __getitems__, or pack the data into a store (`portwright data pack`); else raise num_workers.",
    "collating samples": "Give out arrays of whole batches (portwright.data.GatherDataset) instead of samples.",
    "the transform": "Vectorise the transform over the batch, or raise num_workers.",
    "gathering records": "The disk or the format bounds it: pack the data into a store (`portwright data pack`) on a "
    "local disk, and raise num_workers where the files do not fit in memory.",
    "the data set's own iteration": "Raise num_workers, and do less for each sample.",
    "what the loader adds": "Make larger batches.",
}


@dataclass(frozen=True)
class LoaderRate:
    """The rate of a loader whose batches are taken at once."""

    samples_per_second: float
    batch_size: float
    first_batch_seconds: float
    num_batches: int
    num_workers: int
    is_ahead: bool
    parts: dict[str, float]  # seconds of one batch by stage; empty where the stages cannot be timed apart
    notes: list[str] = field(default_factory=list)

    @property
    def bound(self) -> str | None:
        return max(self.parts, key=lambda name: self.parts[name], default=None)

    def as_dict(self) -> dict[str, Any]:
        return {
            "samples_per_second": self.samples_per_second,
            "batch_size": self.batch_size,
            "first_batch_seconds": self.first_batch_seconds,
            "batches": self.num_batches,
            "num_workers": self.num_workers,
            "made_ahead": self.is_ahead,
            "seconds_a_batch": self.parts,
            "bound_by": self.bound,
            "cure": _CURES.get(self.bound or ""),
            "notes": self.notes,
        }


def measure_loader(
    made: Any, *, name: str, seed: int, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[LoaderRate, list[Any]]:
    """Reads what a data function returned for `seconds`; also gives some of the batches."""
    loader = ResumableLoader(made, name=name, seed=seed, repeat=True)
    try:
        batches = iter(loader)
        start = clock()
        kept = [next(batches)]
        first = clock() - start
        kept += islice(batches, _NUM_KEPT - 1)
        num_samples = num_batches = 0
        start = clock()
        while True:
            next(batches)
            num_samples += loader.last_counts[1]
            num_batches += 1
            passed = clock() - start
            if passed >= seconds:
                break
        parts = _time_parts(made, num_samples / num_batches, passed / num_batches)
        rate = LoaderRate(
            samples_per_second=num_samples / max(passed, 1e-9),
            batch_size=num_samples / num_batches,
            first_batch_seconds=first,
            num_batches=num_batches,
            num_workers=getattr(made, "num_workers", 0),
            is_ahead=loader.is_ahead,
            parts=parts,
            notes=list(loader.notes),
        )
    finally:
        loader.close()
    return rate, kept


def _time_parts(made: Any, batch_size: float, batch_seconds: float) -> dict[str, float]:
    """Times each stage on some batches made in this process."""
    if not isinstance(made, DataLoader):
        return {}
    if isinstance(made.dataset, IterableDataset):
        return {"the data set's own iteration": batch_seconds}
    dataset: Dataset[Any] = made.dataset
    fetch, size = make_fetch(made, 0), max(1, round(batch_size))
    generator = np.random.default_rng(0)
    batches = [generator.integers(0, len(dataset), size) for _ in range(5)]  # type: ignore[arg-type]
    parts: dict[str, float] = {}
    if isinstance(fetch, GatherFetch):
        whole = _median_seconds(lambda indices: fetch(indices, 0), batches)
        transform = getattr(fetch.inner, "transform", None)
        bare = whole
        if transform is not None:
            fetch.inner.transform = None  # type: ignore[attr-defined]
            try:
                bare = _median_seconds(lambda indices: fetch(indices, 0), batches)
            finally:
                fetch.inner.transform = transform  # type: ignore[attr-defined]
            parts["the transform"] = max(0.0, whole - bare)
        parts["gathering records"] = bare
    elif isinstance(fetch, SampleFetch) and made.batch_sampler is not None:
        samples: list[Any] = []

        def read(indices: Any) -> None:
            getitems = getattr(dataset, "__getitems__", None)
            listed = indices.tolist()
            samples[:] = [getitems(listed) if getitems else [dataset[index] for index in listed]]

        collate_fn: Any = made.collate_fn
        parts["reading samples one at a time"] = _median_seconds(read, batches)
        parts["collating samples"] = _median_seconds(lambda _: collate_fn(samples[0]), batches)
    if made.num_workers == 0 and parts:
        parts["what the loader adds"] = max(0.0, batch_seconds - sum(parts.values()))
    return parts


def _median_seconds(make: Callable[[Any], Any], items: list[Any]) -> float:
    times = []
    for item in items:
        start = time.perf_counter()
        make(item)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


@dataclass(frozen=True)
class BenchReport:
    """What `portwright data bench` found."""

    subject: str
    loader: LoaderRate
    step: dict[str, Any] | None = None  # samples_per_second, seconds, steps, target
    raw_samples_per_second: float | None = None  # of gathering the same records without a loader

    @property
    def waiting_share(self) -> float | None:
        """The share of a training step's time that is spent waiting for data."""
        if self.step is None:
            return None
        load, compute = 1 / self.loader.samples_per_second, 1 / self.step["samples_per_second"]
        if self.loader.is_ahead:
            return float(max(0.0, 1 - compute / load))
        return float(load / (load + compute))

    @property
    def keeps_up(self) -> bool | None:
        share = self.waiting_share
        return None if share is None else share <= _MAX_WAITING_SHARE

    def as_dict(self) -> dict[str, Any]:
        return {
            "subject": self.subject,
            "loader": self.loader.as_dict(),
            "step": self.step,
            "raw_samples_per_second": self.raw_samples_per_second,
            "waiting_share": self.waiting_share,
            "keeps_up": self.keeps_up,
        }

    def lines(self) -> Iterator[str]:
        loader = self.loader
        how = f"{loader.num_workers} workers" if loader.num_workers else "no workers"
        if loader.is_ahead and not loader.num_workers:
            how += ", a thread ahead"
        yield (
            f"{self.subject}: {loader.samples_per_second:,.0f} samples/s in batches of {loader.batch_size:,.0f} ({how}; "
            f"{loader.num_batches} batches, the first took {loader.first_batch_seconds:.3f} s)"
        )
        if self.raw_samples_per_second is not None:
            share = loader.samples_per_second / self.raw_samples_per_second
            yield f"a bare gather of the same records: {self.raw_samples_per_second:,.0f} samples/s; the loader gives {share:.2f} of it"
        if loader.parts:
            shown = ", ".join(f"{name} {seconds * 1e6:,.0f} µs" for name, seconds in loader.parts.items())
            yield f"a batch: {shown}"
        yield from (f"note: {note}" for note in loader.notes)
        if self.step is None:
            return
        share = self.waiting_share or 0.0
        yield (
            f"a step on this machine ({self.step['target']}) takes {self.step['samples_per_second']:,.0f} samples/s; "
            f"{share:.1%} of a training step waits for data"
        )
        if self.keeps_up:
            yield "keeps up: the step bounds the training"
        else:
            yield f"does not keep up: bound by {loader.bound or 'the loader'}. {_CURES.get(loader.bound or '', '')}".rstrip()


def bench_dataset(
    dataset: GatherDataset, subject: str, *, batch_size: int, num_workers: int, seconds: float
) -> BenchReport:
    """Measures a store or files, read in shuffled order as a run would read them."""
    if len(dataset) < 1:
        raise UserError(f"{subject} holds no record.", "Name data that have some.")
    loader = DataLoader(
        dataset, min(batch_size, len(dataset)), shuffle=True, drop_last=True, num_workers=num_workers
    )
    rate, _ = measure_loader(loader, name="data", seed=0, seconds=seconds)
    size = min(batch_size, len(dataset))
    order = np.random.default_rng(0).permutation(len(dataset))
    starts = range(0, len(order) - size + 1, size)
    num_samples, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        for low in islice(starts, 100):
            dataset.gather(order[low : low + size])
            num_samples += size
    return BenchReport(subject, rate, raw_samples_per_second=num_samples / passed)


def open_records(path: Path) -> GatherDataset | None:
    """The store or files of records at a path; None where there are none."""
    if path.is_dir() and ((path / MANIFEST).exists() or any(path.glob("shard-*.json"))):
        return StoreDataset(path)
    if path.suffix in ENDINGS or (path.is_dir() and any(each.suffix in ENDINGS for each in path.iterdir())):
        return FileDataset(path)
    return None
