"""Shows progress on stderr: a bar on a terminal, elsewhere a line for each tenth, at most one a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from portwright.job.progress import format_rate, format_seconds
from portwright.job.sizes import show_bytes

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LINE_SECONDS = 1.0  # the least time between two lines


class ByteProgress:
    """Called with the kind of work, the bytes done and the bytes in all; each kind of work has a bar.

    Without `lines` nothing is shown where there is no terminal.
    """

    def __init__(
        self,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        lines: bool = True,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._lines = lines
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._tenths: dict[str, int] = {}
        self._started: dict[str, float] = {}
        self._clock = clock
        self._last_line = clock()

    def __enter__(self) -> ByteProgress:
        if self._stream.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                Progress,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )

            console = Console(file=self._stream)
            columns = (
                "{task.description}",
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
            )
            self._bars = Progress(*columns, console=console)
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._bars is not None:
            if what not in self._tasks:
                self._tasks[what] = self._bars.add_task(what, total=total)
            self._bars.update(self._tasks[what], completed=done)
        elif self._lines:
            self._print_tenths(what, done, total)

    def _print_tenths(self, what: str, done: int, total: int) -> None:
        now = self._clock()
        started = self._started.setdefault(what, now)
        tenth = 10 * done // total if total else 10
        if tenth <= self._tenths.get(what, 0) or now - self._last_line < _LINE_SECONDS:
            return
        self._tenths[what] = tenth
        self._last_line = now
        fields = [f"{what}: {show_bytes(done)} of {show_bytes(total)}"]
        if now > started:
            rate = done / (now - started)
            fields += [format_rate(rate, "byte"), f"ETA {format_seconds((total - done) / rate)}"]
        print("  ".join(fields), file=self._stream, flush=True)
