"""What a run writes: a metrics.jsonl that grows, and checkpoints; and the step that its params have it end at."""

from __future__ import annotations

import json
import math
import os
import re
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from portwright.job.logs import is_metrics_line

_MOST_BYTES = 4 << 20  # larger files are read from near the end, since a page must come at once
_TAIL_BYTES = 256 << 10
_MOST_LINE_BYTES = 16 << 20
_MOST_POINTS = 4096
_POINTS_PER_LINE = 8
_NUM_RATE_LINES = 16  # last lines, from which speed and ETA follow
_ROUNDING_SECONDS = 0.002  # the sum of the errors of wall_time and time_seconds


@dataclass(frozen=True)
class Logged:
    """One parsed line of the file, with NaN and infinity restored."""

    kind: str
    step: int
    values: dict[str, float]
    wall_time: float | None
    seconds: float | None  # since its log was opened
    losses: tuple[float, ...] = ()
    raw: dict[str, Any] = field(default_factory=dict)


@dataclass
class Metrics:
    """A summary of the lines so far."""

    train: Logged | None = None  # the last one
    evaluation: Logged | None = None
    evaluated: list[tuple[int, float]] = field(default_factory=list)  # step, loss of evaluations
    streams: list[Logged] = field(default_factory=list)  # lines of the workers since the last start
    # step, loss (a mean, where points were joined)
    points: list[tuple[int, float]] = field(default_factory=list)
    best: tuple[int, float] | None = None
    non_finite_step: int | None = None  # the first whose loss is NaN or infinite
    resumed_at: list[int] = field(default_factory=list)  # steps at which the run was resumed
    recent: deque[Logged] = field(default_factory=lambda: deque(maxlen=_NUM_RATE_LINES))  # since that start
    is_sampled: bool = False
    num_damaged: int = 0

    def steps_per_second(self) -> float | None:
        """The speed over the last lines since the last start, without the pause between two starts."""
        lines = [line for line in self.recent if line.seconds is not None]
        if len(lines) > 1:
            first, last = lines[0], lines[-1]
            steps, seconds = last.step - first.step, (last.seconds or 0) - (first.seconds or 0)
            if steps > 0 and seconds > 0:
                return steps / seconds
        told = self.train.values.get("steps_per_second") if self.train else None
        return told if told is not None and math.isfinite(told) and told > 0 else None

    def samples_per_second(self, steps_per_second: float | None) -> float | None:
        """The speed in samples, as many a step as the last line says."""
        told = self.train.values if self.train else {}
        samples, steps = told.get("samples_per_second"), told.get("steps_per_second")
        if steps_per_second is None or samples is None or not steps or not math.isfinite(samples / steps):
            return None
        return samples / steps * steps_per_second


class MetricsFile:
    """Reads a metrics.jsonl repeatedly; each call reads only the new lines.

    `is_brief` reads only the end of the file: enough for the last values and the speed, not for the curve.
    """

    def __init__(self, path: Path, *, is_brief: bool = False) -> None:
        self._path = path
        self._most_bytes = _TAIL_BYTES if is_brief else _MOST_BYTES
        self._identity: tuple[int, int] | None = None
        self._offset = 0
        self._before: Logged | None = None
        self.metrics = Metrics()

    def read(self) -> Metrics:
        """Reads new lines; a missing file has none. May raise an OSError."""
        try:
            file = self._path.open("rb")
        except (FileNotFoundError, NotADirectoryError):
            self._forget()
            return self.metrics
        with file:
            about = os.fstat(file.fileno())
            identity = (about.st_dev, about.st_ino)
            if identity != self._identity or about.st_size < self._offset:
                # A run that resumes writes the file anew without the lines of steps that come again.
                self._forget()
                self._identity = identity
            if about.st_size - self._offset > self._most_bytes:
                self.metrics.is_sampled = True
                file.seek(about.st_size - _TAIL_BYTES)
                file.readline(_MOST_LINE_BYTES)  # the rest of a line
                self._offset = file.tell()
            self._read_on(file)
        return self.metrics

    def _forget(self) -> None:
        self._identity, self._offset, self._before, self.metrics = None, 0, None, Metrics()

    def _read_on(self, file: BinaryIO) -> None:
        file.seek(self._offset)
        for raw in file:
            if not raw.endswith(b"\n"):  # incomplete: still being written, or torn
                break
            self._offset += len(raw)
            self._take(raw)

    def _take(self, raw: bytes) -> None:
        line = _parse(raw)
        if line is None:
            self.metrics.num_damaged += bool(raw.strip(b"\0\r\n "))
            return
        if line.kind == "eval":
            self._take_evaluation(line)
        elif line.kind == "train":
            self._take_training(line)
        elif line.kind == "stream":
            self._take_stream(line)

    def _take_training(self, line: Logged) -> None:
        metrics = self.metrics
        if self._before is not None and _is_new_start(self._before, line):
            metrics.resumed_at.append(self._before.step)
            metrics.recent.clear()
        self._before = metrics.train = line
        metrics.recent.append(line)
        if metrics.non_finite_step is None:
            metrics.non_finite_step = next((s for s, x in _losses_of(line) if not math.isfinite(x)), None)
        metrics.points += thin_out(_losses_of(line), _POINTS_PER_LINE)
        loss = line.values.get("loss", math.nan)
        if math.isfinite(loss) and (metrics.best is None or loss < metrics.best[1]):
            metrics.best = (line.step, loss)
        if len(metrics.points) > _MOST_POINTS:
            metrics.points = thin_out(metrics.points, _MOST_POINTS // 2)

    def _take_evaluation(self, line: Logged) -> None:
        self.metrics.evaluation = line
        loss = line.values.get("loss", line.values.get("eval/loss", math.nan))
        if math.isfinite(loss):
            self.metrics.evaluated = thin_out([*self.metrics.evaluated, (line.step, loss)], _MOST_POINTS)

    def _take_stream(self, line: Logged) -> None:
        streams = self.metrics.streams
        if streams and _is_new_start(streams[-1], line):
            streams.clear()
        streams.append(line)
        # Only the last line for each set of workers is kept, not a million lines.
        if len(streams) > 1 and streams[-2].values.keys() <= line.values.keys():
            del streams[-2]


def thin_out(points: list[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """At most so many points: means of neighbours, each at the last of their steps; a mean with a NaN is NaN."""
    if len(points) <= most:
        return points
    parts = (points[len(points) * k // most : len(points) * (k + 1) // most] for k in range(most))
    return [(part[-1][0], mean([loss for _, loss in part])) for part in parts]


def mean(values: Sequence[float]) -> float:
    return sum(x / len(values) for x in values)  # a sum of large values might overflow


def _losses_of(line: Logged) -> list[tuple[int, float]]:
    if line.losses:
        first = line.step - len(line.losses) + 1
        return [(first + k, loss) for k, loss in enumerate(line.losses)]
    return [(line.step, line.values["loss"])] if "loss" in line.values else []


def _is_new_start(before: Logged, line: Logged) -> bool:
    """Whether a log was opened between two lines: its own clock began after the line before was written."""
    if line.step <= before.step:
        return True
    if line.seconds is None or before.seconds is None:
        return False
    if line.seconds < before.seconds:
        return True
    if line.wall_time is None or before.wall_time is None:
        return False
    return line.wall_time - line.seconds > before.wall_time + _ROUNDING_SECONDS


def _parse(raw: bytes) -> Logged | None:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not is_metrics_line(line):
        return None
    numbers = {name: number(x) for name, x in line["values"].items()}
    # null stands for one that is not finite; which, is told apart
    numbers |= {name: float(x) for name, x in line.get("non_finite", {}).items()}
    losses = line.get("losses")
    return Logged(
        kind=str(line.get("kind", "train")),
        step=line["step"],
        values=numbers,
        wall_time=_finite(line.get("wall_time")),
        seconds=_finite(line.get("time_seconds")),
        losses=tuple(number(x) for x in losses) if isinstance(losses, list) else (),
        raw={key: value for key, value in line.items() if key not in ("values", "losses")},
    )


def number(value: Any) -> float:
    """A value of a JSON file as a float; NaN where it is none, as null stands for one that is not finite."""
    try:
        return float(value) if type(value) in (int, float) else math.nan
    except OverflowError:
        return math.inf


def _finite(value: Any) -> float | None:
    found = number(value)
    return found if math.isfinite(found) else None


_FOLDER = re.compile(r"checkpoint_(0|[1-9][0-9]*)", re.ASCII)
_INDEX = re.compile(r"model\.ckpt-([0-9]+)\.index", re.ASCII)


@dataclass(frozen=True)
class CheckpointSeen:
    """A finished checkpoint; its bytes are not checked here, but by `portwright checkpoints`."""

    step: int
    path: str
    size_bytes: int
    written: float  # wall time


def list_seen(model_dir: Path) -> list[CheckpointSeen]:
    """Finished checkpoints, the one written first first; none where the folder is not there. May raise an OSError."""
    found = []
    try:
        entries = list(model_dir.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    for entry in entries:
        # One was removed meanwhile, as the run keeps only the newest; or its manifest is not there yet.
        with suppress(OSError):
            if match := _FOLDER.fullmatch(entry.name):
                found.append(_of_folder(entry, int(match[1])))
            elif match := _INDEX.fullmatch(entry.name):
                found.append(_of_index(entry, int(match[1])))
    return sorted(found, key=lambda seen: (seen.written, seen.step))


def _of_folder(folder: Path, step: int) -> CheckpointSeen:
    written = (folder / "manifest.json").stat().st_mtime  # it is written last
    size = sum(file.stat().st_size for file in folder.iterdir())
    return CheckpointSeen(step, str(folder), size, written)


def _of_index(index: Path, step: int) -> CheckpointSeen:
    name = index.name.removesuffix(".index")
    files = [index, *index.parent.glob(f"{name}.data-*"), *index.parent.glob(f"{name}.meta")]
    size = sum(file.stat().st_size for file in files)
    return CheckpointSeen(step, str(index.with_name(name)), size, index.stat().st_mtime)


def newest_step(model_dir: Path) -> int | None:
    """The step of the furthest checkpoint; None where there is none, or the folder cannot be read."""
    with suppress(OSError):
        return max((seen.step for seen in list_seen(model_dir)), default=None)
    return None


def runconfig_of(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section runconfig of params that were not checked."""
    found = params.get("runconfig")
    return found if isinstance(found, Mapping) else {}


def last_step_of(runconfig: Mapping[str, Any], first_step: int | None) -> int | None:
    """The step that a run ends at, as far as its params say; None for `first_step`: num_steps do not tell."""
    keys = ("max_steps", "num_steps", "num_epochs", "steps_per_epoch")
    counts = [x if type(x) is int and x > 0 else None for x in map(runconfig.get, keys)]
    ends, num_steps, num_epochs, epoch = counts[:1], *counts[1:]
    if num_steps and first_step is not None:
        ends.append(first_step + num_steps)
    if num_epochs and epoch:
        ends.append(num_epochs * epoch)
    return min(filter(None, ends), default=None)
