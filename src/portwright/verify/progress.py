"""How far the runs of a proof are, on stderr: one line that moves on a terminal, one line a run elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from portwright.verify.runs import Report


@contextmanager
def progress_on_stderr() -> Iterator[Report]:
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
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


class _Lines:
    """Says each run once, where lines cannot be overwritten."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, words: str, done: int, total: int) -> None:
        if words not in self._said:
            self._said.add(words)
            print(f"running the {words}, {total} steps", file=sys.stderr)
