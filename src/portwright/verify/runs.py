"""The runs behind a verdict: each is made once, when first needed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from portwright.verify.launch import PROGRESS, Recorder, record
from portwright.verify.recording import Recording

Dropout = Literal["drawn", "off"]
Dtype = Literal["as written", "float64"]
Report = Callable[[str, int, int], None]  # what runs, steps done, steps asked for
_POLL_SECONDS = 0.2


@dataclass
class Runs:
    """Runs both commands with one seed, and keeps the recordings in `scratch`."""

    original_command: str | Sequence[str]
    ported_command: str | Sequence[str]
    scratch: Path
    options: Recorder
    report: Report | None = None
    folder: Path | None = None
    label: str = "port"
    emulate: str = ""  # the target whose package is emulated for the port
    _originals: dict[tuple[Dropout, Dtype, float], Recording] = field(default_factory=dict)
    _ports: dict[tuple[Dropout, Dtype], Recording] = field(default_factory=dict)
    # ports may be judged side by side
    _originals_lock: threading.RLock = field(default_factory=threading.RLock)

    def of_another_port(self, command: str | Sequence[str], label: str) -> Runs:
        """Runs of another port, which share those of the original."""
        return replace(self, ported_command=command, label=label, _ports={})

    def original(self, dropout: Dropout, dtype: Dtype = "as written", perturb: float = 0.0) -> Recording:
        key = (dropout, dtype, perturb)
        with self._originals_lock:
            if key not in self._originals:
                words = "original, weights off by a rounding" if perturb else "original"
                options = replace(self.options, dropout=dropout, dtype=dtype, perturb=perturb)
                folder = self._original_folder(dropout, dtype, perturb)
                self._originals[key] = self._record(words, self.original_command, folder, options)
            return self._originals[key]

    def ported(self, dropout: Dropout, dtype: Dtype = "as written") -> Recording:
        key = (dropout, dtype)
        if key not in self._ports:
            self.original(dropout, dtype)
            against = self._original_folder(dropout, dtype, 0.0)
            options = replace(
                self.options, dropout=dropout, dtype=dtype, against=against, emulate=self.emulate
            )
            folder = self.scratch / f"{self.label}-{dropout}-{dtype.replace(' ', '-')}"
            self._ports[key] = self._record(self.label, self.ported_command, folder, options)
        return self._ports[key]

    def _original_folder(self, dropout: Dropout, dtype: Dtype, perturb: float) -> Path:
        return self.scratch / f"original-{dropout}-{dtype.replace(' ', '-')}{'-perturbed' if perturb else ''}"

    def _record(self, words: str, command: str | Sequence[str], into: Path, options: Recorder) -> Recording:
        how = [words]
        how += ["in float64"] if options.dtype == "float64" else []
        how += ["dropout off"] if options.dropout == "off" else []
        with _followed(into / PROGRESS, ", ".join(how), options.steps, self.report):
            return record(command, into, options, self.folder)


@contextmanager
def _followed(progress: Path, words: str, steps: int, report: Report | None) -> Iterator[None]:
    """Reports the progress of a run in the block."""
    if report is None:
        yield
        return
    is_over = threading.Event()
    progress.unlink(missing_ok=True)

    def follow(tell: Report = report) -> None:
        while not is_over.wait(_POLL_SECONDS):
            try:
                tell(words, int(progress.read_text() or 0), steps)
            except (OSError, ValueError):  # not there yet, or half written
                continue

    report(words, 0, steps)
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def progress_on_stderr() -> Iterator[Report]:
    """Shows progress: a bar on a terminal, one line a run elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        said: set[str] = set()

        def tell(words: str, done: int, total: int) -> None:
            if words not in said:
                said.add(words)
                print(f"running the {words}, {total} steps", file=sys.stderr)

        yield tell
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, object] = {}

        def report(words: str, done: int, total: int) -> None:
            if words not in tasks:
                tasks[words] = bars.add_task(words, total=total)
            bars.update(tasks[words], completed=done)  # type: ignore[arg-type]

        yield report
