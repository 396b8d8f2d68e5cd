"""The record of a run: metrics.jsonl and TensorBoard events, written off the training thread."""

from __future__ import annotations

import itertools
import json
import math
import os
import queue
import re
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal

from portwright.errors import UserError
from portwright.job.atomic import atomic_write_bytes, explain_os_error
from portwright.job.console import Console

__all__ = ["Console", "RunLog", "read_metrics"]

FILE_NAME = "metrics.jsonl"
Kind = Literal["train", "eval", "stream"]  # stream: what the tasks that read the data do


class RunLog:
    """Appends values to `metrics.jsonl` and, with `enable_summaries`, to a TensorBoard event file in `folder`.

    `step` is where the run (re)starts: what an earlier run logged after it is dropped, since those steps come again.
    None keeps everything, as an evaluation wants. A line of the file is an object with step, kind, values,
    time_seconds (since this log was opened) and wall_time, and with `emulated` the software that was emulated; a value
    that is not finite is null there, and named in `non_finite`. In TensorBoard, names of
    evaluated values start with `eval/`, those of the tasks that read data with `stream/`.

    A thread writes, so that a slow disk does not hold up training. When it cannot, the next call raises
    a UserError, once.
    """

    def __init__(
        self,
        folder: Path,
        *,
        enable_summaries: bool,
        step: int | None,
        console: Console,
        emulated: str | None = None,
    ) -> None:
        self._path, self._console, self._emulated = Path(folder) / FILE_NAME, console, emulated
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _rewind(self._path, step, console)
            first_step = None if step is None else step + 1
            self._events = EventFile(self._path.parent, first_step) if enable_summaries else None
            self._file: BinaryIO = self._path.open("ab", buffering=0)
        except OSError as error:
            raise explain_os_error(error, self._path) from error
        self._started = time.monotonic()
        self._queue: queue.SimpleQueue[_Line | threading.Event | None] = queue.SimpleQueue()
        self._failure: Exception | None = None
        self._is_failure_told = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="portwright-log", daemon=True)
        self._thread.start()

    def write(self, kind: Kind, step: int, values: Mapping[str, float], losses: Sequence[float] = ()) -> None:
        """Logs the values of a step; returns before they are on the disk.

        `losses` are those of every step since the last logged one, and go into the JSONL line alone.
        """
        self._tell_failure()
        if self._is_closed:
            raise ValueError("this log is closed")
        numbers = {name: float(x) for name, x in values.items()}
        self._queue.put(
            _Line(kind, int(step), numbers, time.monotonic() - self._started, time.time(), losses)
        )

    def flush(self) -> None:
        """Waits until all that was logged is in the files."""
        if not self._is_closed:
            written = threading.Event()
            self._queue.put(written)
            written.wait()
        self._tell_failure()

    def close(self) -> None:
        """Writes what is left; more calls do nothing.

        Where an exception is on its way already, a failure to write is only a warning beside it.
        """
        if not self._is_closed:
            self._is_closed = True
            self._queue.put(None)
            self._thread.join()
        if sys.exc_info()[0] is None:
            self._tell_failure()
        elif self._failure is not None and not self._is_failure_told:
            self._is_failure_told = True
            self._console.warning(str(self._explained(self._failure)))

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tell_failure(self) -> None:
        if self._failure is not None and not self._is_failure_told:
            self._is_failure_told = True
            raise self._explained(self._failure) from self._failure

    def _explained(self, failure: Exception) -> Exception:
        return explain_os_error(failure, self._path) if isinstance(failure, OSError) else failure

    # -- in the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        is_open = True
        while is_open:
            items = [self._queue.get()]
            while not self._queue.empty():
                items.append(self._queue.get())
            is_open = None not in items
            try:
                if self._failure is None:
                    self._write_lines(item for item in items if isinstance(item, _Line))
                if not is_open:
                    self._close_files()
            except Exception as error:  # raised in the training thread
                self._failure = self._failure or error
            for item in items:
                if isinstance(item, threading.Event):
                    item.set()

    def _write_lines(self, lines: Iterable[_Line]) -> None:
        encoded = []
        for line in lines:
            encoded.append(line.as_json(self._emulated))
            if self._events is not None:
                self._events.add(line.step, line.wall_time, line.tagged_values())
        data = memoryview(b"".join(encoded))
        while data:  # a raw file may take a part
            data = data[self._file.write(data) :]
        if self._events is not None:
            self._events.flush()

    def _close_files(self) -> None:
        try:
            self._file.close()
        finally:
            if self._events is not None:
                self._events.close()


@dataclass(slots=True)
class _Line:
    kind: Kind
    step: int
    values: dict[str, float]
    seconds: float
    wall_time: float
    losses: Sequence[float]

    def as_json(self, emulated: str | None = None) -> bytes:
        finite = {name: x if math.isfinite(x) else None for name, x in self.values.items()}
        line: dict[str, Any] = {
            "step": self.step,
            "kind": self.kind,
            "values": finite,
            "time_seconds": round(self.seconds, 6),
            "wall_time": round(self.wall_time, 3),
        }
        if emulated is not None:
            line["emulated"] = emulated
        if self.losses:
            line["losses"] = [x if math.isfinite(x) else None for x in self.losses]
        non_finite = {name: str(x) for name, x in self.values.items() if not math.isfinite(x)}
        if non_finite:
            line["non_finite"] = non_finite
        return json.dumps(line, allow_nan=False).encode("ascii") + b"\n"

    def tagged_values(self) -> dict[str, float]:
        if self.kind == "train":
            return self.values
        start = f"{self.kind}/"
        return {name if name.startswith(start) else f"{start}{name}": x for name, x in self.values.items()}


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl (or of the one in a folder), oldest first, with NaN and infinity put back.

    A last line that a killed process left half written is left out.
    """
    path = Path(path) / FILE_NAME if Path(path).is_dir() else Path(path)
    try:
        raw_lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(
            f"Cannot read {path}: {reason}.", "Name a metrics.jsonl that a run has written."
        ) from error
    lines = []
    for number, raw, line in _parse(raw_lines):
        if line is not None:
            line["values"].update({name: float(x) for name, x in line.pop("non_finite", {}).items()})
            lines.append(line)
        elif not _is_torn(number, raw, raw_lines):
            raise UserError(f"Line {number} of {path} is no metrics line.", "Remove that line, or the file.")
    return lines


def _rewind(path: Path, step: int | None, console: Console) -> None:
    """Drops lines after `step` and repairs what a killed process left, so that appending is right again."""
    if not path.is_file():
        return
    data = path.read_bytes()
    raw_lines = data.splitlines(keepends=True)
    kept, num_foreign = [], 0
    for number, raw, line in _parse(raw_lines):
        if line is None:
            num_foreign += not _is_torn(number, raw, raw_lines)
        elif step is None or line["step"] <= step:
            kept.append(raw.rstrip(b"\r\n") + b"\n")
    if num_foreign:
        aside = _free_name(path)
        atomic_write_bytes(aside, data)
        console.warning(
            f"{num_foreign} lines of {path} are no metrics lines; the file as it was is kept as {aside.name}."
        )
    if (whole := b"".join(kept)) != data:
        atomic_write_bytes(path, whole)


def _parse(raw_lines: list[bytes]) -> Iterator[tuple[int, bytes, dict[str, Any] | None]]:
    for number, raw in enumerate(raw_lines, start=1):
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            line = None
        yield number, raw, line if is_metrics_line(line) else None


def is_metrics_line(line: Any) -> bool:
    return isinstance(line, dict) and type(line.get("step")) is int and isinstance(line.get("values"), dict)


def _is_torn(number: int, raw: bytes, raw_lines: list[bytes]) -> bool:
    # A kill leaves a part of a line; a power cut may leave zeros where a line was to be.
    return (number == len(raw_lines) and not raw.endswith(b"\n")) or not raw.strip(b"\0\r\n ")


def _free_name(path: Path) -> Path:
    names = (f"{path.stem}.damaged-{number}{path.suffix}" for number in itertools.count(1))
    return next(path.with_name(name) for name in names if not path.with_name(name).exists())


_NAME = re.compile(r"events\.out\.tfevents\.(\d+)")


class EventFile:
    """A new event file in `folder`.

    With `first_step`, TensorBoard is told that this file starts there, and hides later steps of older files: those
    of a run that was killed after its last checkpoint.
    """

    def __init__(self, folder: Path, first_step: int | None) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise UserError(
                f"TensorBoard summaries need the package tensorboard, which does not load: {error}.",
                "Install it with `pip install tensorboard`, or set runconfig.enable_summaries to False.",
            ) from error
        self._event, self._summary = event_pb2, summary_pb2
        self.path = folder / _next_name(folder)
        self._records = RecordWriter(self.path.open("xb"))
        self._write(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))
        if first_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(event_pb2.Event(wall_time=time.time(), step=first_step, session_log=start))
        self._records.flush()

    def add(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        """Adds one scalar a tag; not on the disk before `flush`."""
        scalars = [
            self._summary.Summary.Value(tag=tag.encode("utf-8", "replace").decode(), simple_value=value)
            for tag, value in values.items()
        ]
        summary = self._summary.Summary(value=scalars)
        self._write(self._event.Event(wall_time=wall_time, step=step, summary=summary))

    def flush(self) -> None:
        self._records.flush()

    def close(self) -> None:
        self._records.close()

    def _write(self, event: object) -> None:
        self._records.write(event.SerializeToString())  # type: ignore[attr-defined]


def _next_name(folder: Path) -> str:
    # TensorBoard reads files in the order of their names, so a resumed run's must sort last, whatever the clock
    # and the process number say.
    numbers = [int(found[1]) for path in folder.iterdir() if (found := _NAME.match(path.name))]
    number = max([int(time.time()), *(old + 1 for old in numbers)])
    host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
    return f"events.out.tfevents.{number:010}.{host}.{os.getpid()}"
