"""TensorBoard event files, written without TensorFlow or torch: TensorBoard's own writer opens files through
TensorFlow wherever that is installed, which costs seconds and gigabytes."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from portwright.errors import UserError

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
