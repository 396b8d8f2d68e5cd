"""Jobs in brief: one in a line, many in a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from portwright.job.progress import format_rate, format_seconds, format_value
from portwright.launch.page_text import UNICODE, Line, Marks, cut, pad, width_of
from portwright.launch.queue_words import explain_reason
from portwright.launch.view import View
from portwright.launch.view_words import STYLES, count_of, evaluated_values, percent, place_in_queue


def status_line(view: View) -> str:
    """A job in one line, for a log."""
    words = [view.entry.name, view.phase]
    if view.phase in ("pending", "requeued"):
        words[1] += place_in_queue(view)
        if view.state and (reason := explain_reason(view.state.reason)):
            words.append(reason.words)
    elif view.phase in ("failed", "lost"):
        words.append(view.why_failed)
    if view.phase == "running" and view.progress.step:
        words.append(view.progress.step)
    training = view.progress.training
    if training is not None and view.phase not in ("pending", "lost"):
        words.append(f"step {count_of(view)}")
        if training.loss is not None:
            words.append(f"loss {format_value(training.loss)}")
        if view.is_training and training.steps_per_second:
            words.append(format_rate(training.steps_per_second, "step"))
    if (left := view.training_seconds_left) is not None:
        words.append(f"ETA {format_seconds(left)}")
    if view.restarts:
        words.append(f"{view.restarts} restart{'s' if view.restarts > 1 else ''}")
    if view.phase == "done" and view.progress.evaluation is not None:
        words.append(f"evaluated: {evaluated_values(view)}")
    return "  ".join(words)


_COLUMNS = ("name", "site", "state", "step", "progress", "loss", "ETA", "age")
_DROPPED_FIRST = ("site", "ETA", "loss", "step", "age")  # where a terminal is too narrow


def jobs_table(views: Sequence[View], width: int = 100, marks: Marks = UNICODE) -> list[Line]:
    """One row a job."""
    rows = [dict(zip(_COLUMNS, _cells(view, marks), strict=True)) for view in views]
    columns = list(_COLUMNS)
    widths = {c: max([width_of(c), *(width_of(row[c]) for row in rows)]) for c in columns}
    for column in _DROPPED_FIRST:
        if _table_width(widths, columns) > width:
            columns.remove(column)
    # What is still too wide is a name.
    widths["name"] = max(8, min(widths["name"], width - _table_width(widths, columns[1:]) - 2))
    lines: list[Line] = [tuple((pad(column, widths[column] + 2), "bold") for column in columns)]
    for view, row in zip(views, rows, strict=True):
        cells = (
            (column, pad(cut(row[column], widths[column], marks.ellipsis), widths[column] + 2))
            for column in columns
        )
        lines.append(tuple((cell, STYLES[view.phase] if column == "state" else "") for column, cell in cells))
    return lines


def _table_width(widths: dict[str, int], columns: Sequence[str]) -> int:
    return sum(widths[column] + 2 for column in columns) - 2


def _cells(view: View, marks: Marks) -> Iterator[str]:
    training = view.progress.training
    yield view.entry.name
    yield view.entry.site
    place = view.state.queue_position if view.state and view.phase in ("pending", "requeued") else None
    yield view.phase + (f" #{place}" if place else "")
    yield view.progress.step or marks.dash
    yield (
        f"{percent(training.fraction)} of {training.total}"
        if training and training.fraction is not None
        else (f"step {training.step}" if training else marks.dash)
    )
    yield format_value(training.loss) if training and training.loss is not None else marks.dash
    left = view.training_seconds_left
    yield format_seconds(left) if left is not None else marks.dash
    yield format_seconds(view.age_seconds) if view.age_seconds is not None else marks.dash
