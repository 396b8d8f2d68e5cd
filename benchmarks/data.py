"""Batches per second of the loader of a run against a raw gather and the loaders of others, in one run.

200,000 records of 128 int32, batches of 256, a full shuffle each epoch, files in the page cache, torch tensors out. Ours is
the store through ResumableLoader, which can be resumed at every batch and looks at every checksum once. The raw gathers
index a memory-mapped .npy file by a permutation, by `rows[indices]` and by `rows.take(indices, 0)`, and do nothing else.

Peers: pip install mosaicml-streaming webdataset datasets grain, in an environment of its own, since their pins clash with
those of others here. What cannot be imported is named and left out. Every contestant is a process that stands still while
others are measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np
import torch
from measure import Claim, finish, interleave, paired_ratio, parse_arguments
from peers.data_loaders import PEERS
from torch.utils.data import DataLoader

from portwright.data import ResumableLoader, StoreDataset
from portwright.data.manifest import Field
from portwright.data.store_writer import StoreWriter

torch.set_num_threads(1)
WIDTH, BATCH, NUM_SHARDS = 128, 256, 8
RAW, LIMIT = "raw gather, rows[indices]", "raw gather, rows.take"
OURS, OURS_SHARDED = "Portwright", f"Portwright, {NUM_SHARDS} shards"
PACKAGES = ("numpy", "mosaicml-streaming", "webdataset", "datasets", "grain")


def raw(folder: Path, gather: Callable[[Any, Any], Any]) -> Iterator[torch.Tensor]:
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    generator = np.random.default_rng(0)
    while True:
        order = generator.permutation(len(rows))
        for start in range(0, len(rows) - BATCH + 1, BATCH):
            yield torch.from_numpy(gather(rows, order[start : start + BATCH]))


def ours(store: Path) -> Iterator[Any]:
    data = DataLoader(StoreDataset(store), BATCH, shuffle=True, drop_last=True)
    return iter(ResumableLoader(data, name="train_input", seed=0, repeat=True))


def make_data(folder: Path, num_records: int) -> None:
    rows = np.random.default_rng(0).integers(0, 50_000, (num_records, WIDTH), dtype=np.int32)
    np.save(folder / "rows.npy", rows)
    for name, num_shards in (("one", 1), ("many", NUM_SHARDS)):
        writer = StoreWriter(
            folder / name, [Field("x", rows.dtype.name, (WIDTH,))], made_by={"benchmark": "data"}
        )
        for number, part in enumerate(np.array_split(rows, num_shards)):
            writer.write_shard(number, {"x": part})
        writer.finish(num_shards)


CONTESTANTS: dict[str, Callable[[Path], Iterator[Any]]] = {
    RAW: lambda folder: raw(folder, lambda rows, indices: rows[indices]),
    LIMIT: lambda folder: raw(folder, lambda rows, indices: rows.view(np.ndarray).take(indices, 0)),
    OURS: lambda folder: ours(folder / "one"),
    OURS_SHARDED: lambda folder: ours(folder / "many"),
    **{name: lambda folder, make=make: make(folder, BATCH) for name, make in PEERS.items()},
}


def tensor_of(batch: Any) -> torch.Tensor:
    while not isinstance(batch, torch.Tensor):
        batch = batch["x"] if isinstance(batch, dict) else batch[0]
    return batch


def check(name: str, batch: Any) -> None:
    """What a contestant gives is a batch of the data, in one tensor."""
    tensor = tensor_of(batch)
    assert tuple(tensor.shape) == (BATCH, WIDTH), f"{name}: {tuple(tensor.shape)}"
    assert int(tensor.max()) < 50_000, name


def measure_rate(batches: Iterator[Any], seconds: float) -> float:
    """Samples a second, after one batch that is not counted."""
    next(batches)
    num_batches, start = 0, time.perf_counter()
    end = start + seconds
    while (now := time.perf_counter()) < end:
        next(batches)
        num_batches += 1
    return num_batches * BATCH / (now - start)


def serve(name: str, folder: Path) -> None:
    """A contestant in a process of its own: measures for as many seconds as each line of stdin says."""
    # MosaicML's package has the name of a script beside this one.
    sys.path[:] = [each for each in sys.path if Path(each).resolve() != Path(__file__).resolve().parent]
    warnings.filterwarnings("ignore")
    told, sys.stdout = sys.stdout, sys.stderr  # packages greet on it
    try:
        batches = CONTESTANTS[name](folder)
        check(name, next(batches))
    except ImportError as error:
        print(json.dumps({"left_out": str(error).splitlines()[0]}), file=told, flush=True)
        return
    if name in (OURS, OURS_SHARDED):  # to the end of an epoch: every checksum has been looked at
        for _ in range(len(np.load(folder / "rows.npy", mmap_mode="r")) // BATCH):
            next(batches)
    print(json.dumps({}), file=told, flush=True)
    for line in sys.stdin:
        print(json.dumps({"rate": measure_rate(batches, float(line))}), file=told, flush=True)
    os._exit(0)  # threads and workers of some peers outlive their loaders


class Contestant:
    """Stands still while others are measured: some peers have threads and workers that never rest."""

    def __init__(self, name: str, folder: Path) -> None:
        command = [sys.executable, __file__, "--serve", name, str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )  # fmt: skip
        answer = self._answer(name)
        self.left_out: str | None = answer.get("left_out")
        if self.left_out is None:
            os.killpg(self._process.pid, signal.SIGSTOP)

    def measure(self, seconds: float) -> float:
        os.killpg(self._process.pid, signal.SIGCONT)
        assert self._process.stdin is not None
        print(seconds, file=self._process.stdin, flush=True)
        rate = float(self._answer("a contestant")["rate"])
        os.killpg(self._process.pid, signal.SIGSTOP)
        return rate

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def _answer(self, name: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{name} ended; run `data.py --serve '{name}' FOLDER` to see why")
        answer: dict[str, Any] = json.loads(line)
        return answer


def open_contestants(folder: Path) -> tuple[dict[str, Contestant], dict[str, str]]:
    opened, left_out = {}, {}
    for name in CONTESTANTS:
        contestant = Contestant(name, folder)
        if contestant.left_out is None:
            opened[name] = contestant
        else:
            left_out[name] = contestant.left_out
            print(f"left out: {name} ({contestant.left_out})", file=sys.stderr)
            contestant.close()
    return opened, left_out


def main() -> int:
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], Path(sys.argv[3]))
        return 0
    arguments = parse_arguments(__doc__)
    rounds, seconds, num_records = (2, 0.2, 20_000) if arguments.quick else (15, 0.5, 200_000)
    opened: dict[str, Contestant] = {}
    with tempfile.TemporaryDirectory(prefix="portwright-data-") as name:
        folder = Path(name)
        make_data(folder, num_records)
        try:
            opened, left_out = open_contestants(folder)
            rates = interleave({key: partial(each.measure, seconds) for key, each in opened.items()}, rounds)
        finally:
            for each in opened.values():
                each.close()
    medians = {key: statistics.median(values) for key, values in rates.items()}
    for key, value in sorted(medians.items(), key=lambda pair: -pair[1]):
        print(f"{key:<40}{value:>14,.0f} samples/s{value / medians[RAW]:>8.2f} of the raw gather")
    best = max((key for key in rates if key in PEERS), key=lambda key: medians[key])
    claims = [
        Claim("Portwright / raw memmap gather", paired_ratio(rates[OURS], rates[RAW]), 0.5),
        Claim("Portwright / raw memmap take", paired_ratio(rates[OURS], rates[LIMIT]), 0.5),
        Claim(f"Portwright / best peer ({best})", paired_ratio(rates[OURS], rates[best]), 2.0),
        Claim(f"{OURS_SHARDED} / raw memmap gather", paired_ratio(rates[OURS_SHARDED], rates[RAW]), 0.5),
    ]
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    figures = {
        "records": num_records, "width": WIDTH, "batch": BATCH, "rounds": rounds, "seconds": seconds,
        "samples_per_second": rates, "medians": medians, "left_out": left_out,
    }  # fmt: skip
    return finish(arguments, claims, figures, torch=torch.__version__, **versions)


if __name__ == "__main__":
    sys.exit(main())
