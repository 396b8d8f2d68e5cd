"""How far a job is, read from its folder and its run's: nothing is asked of the scheduler, nothing is written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from portwright.launch.attempts_file import Attempt, read_attempts
from portwright.launch.checkpoints_seen import CheckpointSeen, list_seen
from portwright.launch.metrics_file import Logged, Metrics, MetricsFile, number, thin_out
from portwright.launch.stream_counts import Worker, list_workers, rates_in

_LOG_TAIL_BYTES = 64 << 10
_TOLD_TOTAL = re.compile(rb"train step \d+/(\d+)")
_MOST_POINTS = 512  # of the series that is handed on
_CLOCK_SECONDS = 5  # by which clocks of nodes may differ

LinkState = Literal["done", "running", "failed", "waiting"]


@dataclass(frozen=True)
class Link:
    """A step of the chain."""

    name: str
    state: LinkState


@dataclass(frozen=True)
class Training:
    """How far the training is; a rate is of the last part since the last start."""

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
    is_sampled: bool  # of a huge file a part was read, so that `best_loss` is the best of that part
    emulated: str | None

    @property
    def fraction(self) -> float | None:
        return min(1.0, self.step / self.total) if self.total else None

    def seconds_left(self, now: float) -> float | None:
        """Until the last step, at the speed of late; None where the speed or the end is not known."""
        if self.total is None or self.steps_per_second is None:
            return None
        since = max(0.0, now - self.logged) if self.logged is not None else 0.0
        return max(0.0, (self.total - self.step) / self.steps_per_second - since)

    def silent_seconds(self, now: float) -> float | None:
        """How long nothing was logged, where that is far longer than it was between the last lines."""
        if self.logged is None:
            return None
        silent = now - self.logged
        return silent if silent > max(120.0, 10 * (self.log_interval_seconds or 0.0)) else None


@dataclass(frozen=True)
class Evaluation:
    """What the last evaluation came to; names without `eval/`."""

    step: int
    values: Mapping[str, float]
    time: float | None


@dataclass(frozen=True)
class Progress:
    """What a job's folders say of it."""

    state: str | None  # running, requeued, done, failed, cancelled; None: the script has not begun
    step: str | None  # the one that runs, or ran last
    status: int | None
    restarts: int
    time: float | None  # of state.json
    chain: tuple[Link, ...]
    training: Training | None
    earlier_step: int | None  # what the run's folder had reached before this job wrote to it
    evaluation: Evaluation | None
    checkpoint: CheckpointSeen | None
    num_checkpoints: int
    attempts: tuple[Attempt, ...]
    workers: tuple[Worker, ...]
    notes: tuple[str, ...]  # what could not be read

    def as_json(self) -> dict[str, Any]:
        """All of it as JSON knows it; a number that is not finite is null."""
        document: dict[str, Any] = as_plain(self)
        return document


def read_progress(folder: Path, model_dir: Path | None) -> Progress:
    """Looks once; who looks again and again keeps a ProgressReader."""
    return ProgressReader(folder, model_dir).read()


class ProgressReader:
    """Reads a job's folder and its run's `model_dir`, which an HPC job has none of; `is_brief`: for a row of a table."""

    def __init__(self, folder: Path, model_dir: Path | None, *, is_brief: bool = False) -> None:
        self._folder, self._model_dir = Path(folder), model_dir
        files = [model_dir / kind / "metrics.jsonl" for kind in ("train", "eval")] if model_dir else []
        self._files = [MetricsFile(file, is_brief=is_brief) for file in files]

    def read(self) -> Progress:
        notes: list[str] = []
        state = _read_object(self._folder / "state.json", notes)
        manifest = _read_object(self._folder / "manifest.json", notes)
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
        if self._model_dir is None:
            return []
        try:
            return list_seen(self._model_dir)
        except OSError as error:
            notes.append(_cannot_read(self._model_dir, error))
            return []

    def _read_chain(self, manifest: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[Link, ...]:
        steps = manifest.get("steps")
        names = [_step_name(step) for step in steps] if isinstance(steps, list) else []
        current, ending = state.get("step"), state.get("state")
        links = []
        for name in names:
            found: LinkState = "waiting"
            if (self._folder / "steps" / f"{name}.done").exists():
                found = "done"
            elif name == current:
                found = "failed" if ending in ("failed", "cancelled") else "running"
            links.append(Link(name, found))
        return tuple(links)

    def _training(self, metrics: Metrics, notes: list[str]) -> Training:
        last, best = metrics.train, metrics.best
        assert last is not None
        rate, per_step = metrics.steps_per_second(), metrics.samples_per_step()
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
            samples_per_second=rate * per_step if rate is not None and per_step is not None else None,
            logged=last.wall_time,
            log_interval_seconds=recent[-1] - recent[-2] if len(recent) > 1 else None,
            is_sampled=metrics.is_sampled,
            emulated=emulated if isinstance(emulated, str) else None,
        )

    def _find_total(self, notes: list[str]) -> int | None:
        """The step that the training ends at: as the run told its log, since it alone knows how long an epoch is."""
        told = _TOLD_TOTAL.findall(read_tail(self._folder / "log.txt", _LOG_TAIL_BYTES, notes))
        if told:
            return int(told[-1])
        files = [self._folder / "params.yaml"]
        if self._model_dir is not None:
            files.append(self._model_dir / "train" / "params_train.yaml")
        for file in files:
            total = _total_of(_read_runconfig(file, notes))
            if total is not None:
                return total
        return None


def read_tail(path: Path, most_bytes: int, notes: list[str]) -> bytes:
    """The last bytes of a file; nothing where there is no such file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most_bytes))
            return file.read(most_bytes)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        notes.append(_cannot_read(path, error))
        return b""


def read_time(value: Any) -> float | None:
    """A moment as a number of seconds or in ISO 8601, as wall time; None where it is neither."""
    if isinstance(value, str):
        import datetime

        try:
            return datetime.datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
        except (ValueError, OverflowError):
            return None
    found = number(value)
    return found if math.isfinite(found) else None


def _read_object(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        notes.append(_cannot_read(path, error))
        return {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        notes.append(f"{path.name} is damaged: it is no JSON object.")
        return {}
    return found


def _read_metrics(file: MetricsFile, notes: list[str]) -> Metrics:
    try:
        return file.read()
    except OSError as error:
        notes.append(_cannot_read(Path("metrics.jsonl"), error))
        return file.metrics


def _read_runconfig(path: Path, notes: list[str]) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        notes.append(_cannot_read(path, error))
        return {}
    except (yaml.YAMLError, ValueError, RecursionError):
        notes.append(f"{path.name} is damaged: it is no YAML.")
        return {}
    section = found.get("runconfig") if isinstance(found, dict) else None
    return section if isinstance(section, dict) else {}


def _total_of(runconfig: Mapping[str, Any]) -> int | None:
    ends = []
    if max_steps := _whole(runconfig.get("max_steps")):
        ends.append(max_steps)
    epochs, length = _whole(runconfig.get("num_epochs")), _whole(runconfig.get("steps_per_epoch"))
    if epochs and length:
        ends.append(epochs * length)
    return min(ends, default=None)


def _is_since(line: Logged | None, submitted: float | None) -> bool:
    return line is not None and (
        submitted is None or line.wall_time is None or line.wall_time > submitted - _CLOCK_SECONDS
    )


def _workers_of(train: Metrics, submitted: float | None) -> tuple[Worker, ...]:
    lines = [line for line in train.streams if _is_since(line, submitted)]
    rates: dict[str, float] = {}
    for line in lines:
        rates.update(rates_in(line))
    return list_workers(rates, lines[-1] if lines else None)


def _newest_evaluation(train: Metrics, evaluated: Metrics, submitted: float | None) -> Evaluation | None:
    lines = [m.evaluation for m in (train, evaluated) if m.evaluation and _is_since(m.evaluation, submitted)]
    if not lines:
        return None
    last = max(lines, key=lambda line: line.wall_time or 0.0)
    return Evaluation(
        last.step, {name.removeprefix("eval/"): x for name, x in last.values.items()}, last.wall_time
    )


def _step_name(step: Any) -> str:
    return str(step.get("name", "?")) if isinstance(step, dict) else str(step)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _cannot_read(path: Path, error: OSError) -> str:
    return f"{path.name} cannot be read: {(error.strerror or str(error)).lower()}."


def as_plain(value: Any) -> Any:
    """Dataclasses as what JSON knows; a number that is not finite is null."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: as_plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
