"""The progress of a job, read from its folder and its run's; calls no scheduler and writes nothing."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from portwright.job.outcome import finite_json
from portwright.launch.run_files import (
    CheckpointSeen,
    Logged,
    Metrics,
    MetricsFile,
    last_step_of,
    list_seen,
    number,
    runconfig_of,
    thin_out,
)

_LOG_TAIL_BYTES = 64 << 10
_TOLD_TOTAL = re.compile(rb"train step \d+/(\d+)")
_MOST_POINTS = 512  # of the series for a page
_CLOCK_SECONDS = 5  # clocks of nodes may differ by so much

LinkState = Literal["done", "running", "failed", "waiting"]


@dataclass(frozen=True)
class Link:
    """A step of the chain."""

    name: str
    state: LinkState


@dataclass(frozen=True)
class Training:
    """The progress of the training; rates are those of the last lines since the last start."""

    step: int
    total: int | None
    loss: float | None  # the last that was logged; may be NaN
    best_loss: float | None
    best_step: int | None
    series: tuple[tuple[int, float], ...]  # step, loss
    evaluated: tuple[tuple[int, float], ...]  # step, loss of the evaluations on the way
    resumed_at: tuple[int, ...]
    non_finite_step: int | None
    steps_per_second: float | None
    samples_per_second: float | None
    logged: float | None  # wall time of the last line
    log_interval_seconds: float | None  # between the last two lines
    is_sampled: bool  # only a part of a huge file was read, so that `best_loss` is of that part
    emulated: str | None

    @property
    def fraction(self) -> float | None:
        return min(1.0, self.step / self.total) if self.total else None

    def seconds_left(self, now: float) -> float | None:
        """Seconds to the last step at the current speed; None where the speed or the end is not known."""
        if self.total is None or self.steps_per_second is None:
            return None
        since = max(0.0, now - self.logged) if self.logged is not None else 0.0
        return max(0.0, (self.total - self.step) / self.steps_per_second - since)

    def silent_seconds(self, now: float) -> float | None:
        """Seconds since the last line, where that is far more than between the last two lines."""
        if self.logged is None:
            return None
        silent = now - self.logged
        return silent if silent > max(120.0, 10 * (self.log_interval_seconds or 0.0)) else None


@dataclass(frozen=True)
class Evaluation:
    """The values of the last evaluation; names without `eval/`."""

    step: int
    values: Mapping[str, float]
    time: float | None


@dataclass(frozen=True)
class Progress:
    """The progress of a job, from its folders."""

    state: str | None  # running, requeued, done, failed, cancelled; None: the script has not begun
    step: str | None  # the one that runs, or ran last
    status: int | None
    restarts: int
    time: float | None  # of state.json
    chain: tuple[Link, ...]
    training: Training | None
    earlier_step: int | None  # the run's step before this job began
    evaluation: Evaluation | None
    checkpoint: CheckpointSeen | None
    num_checkpoints: int
    attempts: tuple[Attempt, ...]
    workers: tuple[Worker, ...]
    notes: tuple[str, ...]  # what could not be read

    def as_json(self) -> dict[str, Any]:
        """The progress as JSON values; a number that is not finite is null."""
        document: dict[str, Any] = finite_json(asdict(self))
        return document


class ProgressReader:
    """Reads a job's folder and its run's `model_dir` (None for an HPC job); `is_brief`: only what a table row needs."""

    def __init__(self, folder: Path, model_dir: Path | None, *, is_brief: bool = False) -> None:
        self._folder, self._model_dir = Path(folder), model_dir
        files = [model_dir / kind / "metrics.jsonl" for kind in ("train", "eval")] if model_dir else []
        self._files = [MetricsFile(file, is_brief=is_brief) for file in files]

    def read(self) -> Progress:
        notes: list[str] = []
        state = _read_mapping(self._folder / "state.json", json.loads, "JSON object", notes)
        manifest = _read_mapping(self._folder / "manifest.json", json.loads, "JSON object", notes)
        submitted = read_time(manifest.get("submitted", manifest.get("time")))
        train, evaluated = [_read_metrics(file, notes) for file in self._files] or (Metrics(), Metrics())
        is_ours = _is_since(train.train, submitted)
        checkpoints = self._list_checkpoints(notes)
        return Progress(
            state=_text(state.get("state")),
            step=_text(state.get("step")),
            status=_whole(state.get("status")),
            restarts=_whole(state.get("restarts")) or 0,
            time=read_time(state.get("time")),
            chain=self._read_chain(manifest, state),
            training=self._training(train, notes) if train.train is not None and is_ours else None,
            earlier_step=train.train.step if train.train is not None and not is_ours else None,
            evaluation=_newest_evaluation(train, evaluated, submitted),
            checkpoint=checkpoints[-1] if checkpoints else None,
            num_checkpoints=len(checkpoints),
            attempts=read_attempts(self._folder / "attempts", notes),
            workers=_workers_of(train, submitted),
            notes=tuple(notes),
        )

    def _list_checkpoints(self, notes: list[str]) -> list[CheckpointSeen]:
        if self._model_dir is not None:
            with _telling(self._model_dir, notes):
                return list_seen(self._model_dir)
        return []

    def _read_chain(self, manifest: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[Link, ...]:
        current, has_failed = state.get("step"), state.get("state") in ("failed", "cancelled")
        links = []
        for name in (step["name"] for step in manifest.get("steps", ())):
            found: LinkState = "waiting"
            if (self._folder / "steps" / f"{name}.done").exists():
                found = "done"
            elif name == current:
                found = "failed" if has_failed else "running"
            links.append(Link(name, found))
        return tuple(links)

    def _training(self, metrics: Metrics, notes: list[str]) -> Training:
        last, best = metrics.train, metrics.best
        assert last is not None
        rate = metrics.steps_per_second()
        recent = [line.wall_time for line in metrics.recent if line.wall_time is not None]
        emulated = last.raw.get("emulated")
        if metrics.num_damaged:
            notes.append(f"{metrics.num_damaged} lines of metrics.jsonl are damaged and left out.")
        return Training(
            step=last.step,
            total=self._find_total(notes),
            loss=last.values.get("loss"),
            best_loss=best[1] if best else None,
            best_step=best[0] if best else None,
            series=tuple(thin_out(metrics.points, _MOST_POINTS)),
            evaluated=tuple(metrics.evaluated),
            resumed_at=tuple(metrics.resumed_at),
            non_finite_step=metrics.non_finite_step,
            steps_per_second=rate,
            samples_per_second=metrics.samples_per_second(rate),
            logged=last.wall_time,
            log_interval_seconds=recent[-1] - recent[-2] if len(recent) > 1 else None,
            is_sampled=metrics.is_sampled,
            emulated=emulated if isinstance(emulated, str) else None,
        )

    def _find_total(self, notes: list[str]) -> int | None:
        """The last step of the training: from the run's log, since only the run knows how long an epoch is."""
        told = _TOLD_TOTAL.findall(read_tail(self._folder / "log.txt", _LOG_TAIL_BYTES, notes))
        if told:
            return int(told[-1])
        files = [self._folder / "params.yaml"]
        if self._model_dir is not None:
            files.append(self._model_dir / "train" / "params_train.yaml")
        for file in files:
            params = _read_mapping(file, yaml.safe_load, "YAML", notes)
            if (total := last_step_of(runconfig_of(params), None)) is not None:
                return total
        return None


@contextlib.contextmanager
def _telling(path: Path, notes: list[str]) -> Iterator[None]:
    """For reading a file: a missing file is ignored, an unreadable one becomes a note."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {(error.strerror or str(error)).lower()}.")


def read_tail(path: Path, most_bytes: int, notes: list[str]) -> bytes:
    """The last bytes of a file; nothing where there is no such file."""
    with _telling(path, notes), path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - most_bytes))
        return file.read(most_bytes)
    return b""


def read_time(value: Any) -> float | None:
    """Wall time from a number of seconds or a text in ISO 8601; None for anything else."""
    if isinstance(value, str):
        import datetime

        try:
            return datetime.datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
        except (ValueError, OverflowError):
            return None
    found = number(value)
    return found if math.isfinite(found) else None


def _read_mapping(path: Path, parse: Callable[[bytes], Any], kind: str, notes: list[str]) -> dict[str, Any]:
    found: Any = {}
    with _telling(path, notes):
        try:
            found = parse(path.read_bytes())
        except (ValueError, RecursionError, yaml.YAMLError):
            found = None
    if not isinstance(found, dict):
        notes.append(f"{path.name} is damaged: it is no {kind}.")
        return {}
    return found


def _read_metrics(file: MetricsFile, notes: list[str]) -> Metrics:
    with _telling(Path("metrics.jsonl"), notes):
        return file.read()
    return file.metrics


def _is_since(line: Logged | None, submitted: float | None) -> bool:
    return line is not None and (
        submitted is None or line.wall_time is None or line.wall_time > submitted - _CLOCK_SECONDS
    )


def _workers_of(train: Metrics, submitted: float | None) -> tuple[Worker, ...]:
    """All workers logged since the last start; those that the last line does not name are lost."""
    lines = [_rates_in(line) for line in train.streams if _is_since(line, submitted)]
    rates = {name: rate for line in lines for name, rate in line.items()}
    # worker 2 comes before worker 10
    names = sorted(rates, key=lambda name: (name.rstrip("0123456789"), len(name), name))
    return tuple(
        Worker(name, rates[name] if math.isfinite(rates[name]) else None, name in lines[-1]) for name in names
    )


def _newest_evaluation(train: Metrics, evaluated: Metrics, submitted: float | None) -> Evaluation | None:
    lines = [m.evaluation for m in (train, evaluated) if m.evaluation and _is_since(m.evaluation, submitted)]
    if not lines:
        return None
    last = max(lines, key=lambda line: line.wall_time or 0.0)
    return Evaluation(
        last.step, {name.removeprefix("eval/"): x for name, x in last.values.items()}, last.wall_time
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


_TIME = re.compile(r"\d{4}-\d\d-\d\dT")
_SIGNALS = {"6": "an abort", "7": "a bus error", "9": "a kill", "11": "a memory fault", "15": "a termination"}


@dataclass(frozen=True)
class Attempt:
    """One line of the file."""

    time: str
    why: str  # as the script wrote it, such as requeue:signal or retry:137
    checkpoint_step: int | None
    step: str = ""  # step of the chain

    @property
    def moment(self) -> str:
        """The time to the minute, as the script wrote it."""
        return re.sub(r"^(\d+-\d+-\d+)T(\d+:\d+):\d+Z$", r"\1 \2 UTC", self.time)

    @property
    def words(self) -> str:
        """Why it ended, for a person."""
        kind, _, detail = self.why.partition(":")
        if kind == "requeue":
            return _REQUEUES.get(detail, f"requeued ({detail})" if detail else "requeued")
        if kind == "retry":
            return f"tried again after {_status_words(detail)}"
        if kind == "node":
            return "the node was lost"
        return self.why


_REQUEUES = {
    "signal": "saved before the time limit and requeued",
    "85": "told to end, saved and requeued",
    "timeout": "reached the time limit and requeued",
    "preempted": "preempted and requeued",
    "slurm": "requeued by SLURM",
}


def read_attempts(path: Path, notes: list[str]) -> tuple[Attempt, ...]:
    """The attempts that ended; none where there is no such file."""
    text = ""
    with _telling(path, notes):
        text = path.read_text("utf-8", errors="replace")
    attempts, is_damaged = [], False
    for words in filter(None, map(str.split, text.splitlines())):
        if len(words) >= 2 and _TIME.match(words[0]):
            time, why, step, name = (*words, "", "")[:4]
            attempts.append(Attempt(time, why, int(step) if step.isdecimal() else None, name))
        else:
            is_damaged = True
    if is_damaged:
        notes.append(f"{path.name} is damaged: some of its lines are left out.")
    return tuple(attempts)


def _status_words(status: str) -> str:
    if status.isdecimal() and 128 < int(status) <= 192:
        number = str(int(status) - 128)
        return _SIGNALS.get(number, f"signal {number}") + f" (status {status})"
    return f"status {status}" if status else "a failure"


_RATE = "/samples_per_second"


@dataclass(frozen=True)
class Worker:
    """One task that reads data; for a lost worker, its last rate."""

    name: str
    samples_per_second: float | None
    is_alive: bool


def _rates_in(line: Logged) -> dict[str, float]:
    """Samples a second of the workers that a line of kind `stream` names."""
    return {
        name.removesuffix(_RATE).replace("_", " "): rate
        for name, rate in line.values.items()
        if name.endswith(_RATE)
    }
