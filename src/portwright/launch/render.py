"""Jobs for a person: a page of one job, a line of one job, a table of many."""

from __future__ import annotations

import datetime
import math
import shlex
from collections.abc import Iterable, Iterator, Sequence

from portwright.job.progress import format_rate, format_seconds, format_value
from portwright.job.sizes import show_bytes
from portwright.launch.page_text import UNICODE, Line, Marks, Piece, cut, pad, width_of, wrap
from portwright.launch.progress import Evaluation, Training
from portwright.launch.queue_words import explain_reason
from portwright.launch.view import Phase, View

_LABEL = 10
_MOST_WORKERS = 16
_MOST_ATTEMPTS = 5
STYLES: dict[Phase, str] = {
    "pending": "yellow",
    "requeued": "yellow",
    "running": "cyan",
    "done": "green",
    "failed": "bold red",
    "cancelled": "magenta",
    "lost": "bold red",
    "not taken": "bold red",
    "unknown": "yellow",
}
Row = tuple[str, str, str]  # label, text, style


def job_page(view: View, width: int = 100, marks: Marks = UNICODE) -> list[Line]:
    """The page of a job, for a terminal of this width; commands are never broken."""
    lines, training = _headline(view, width), view.progress.training
    if view.unanswered:
        told = f"The scheduler does not answer: {view.unanswered} Below is what was known last."
        lines += _wrapped([("note", told, "")], width)
    if view.progress.chain:
        lines.append((("  ", ""), *_chain(view, marks)))
    lines += _wrapped([*_waiting(view), *_why(view)], width)
    if training is not None and training.fraction is not None and view.phase == "running":
        lines.append(_bar(training.fraction, f"step {_count_of(training)}", width, marks))
    for rows in (_training, _limits, _evaluation, _saved, _restarts, _workers):
        lines += _wrapped(rows(view), width)
    if view.log_lines:
        lines.append((*_label("log ends"), (f"(portwright logs {view.entry.name})", "dim")))
        room = max(20, width - 4)
        lines += [((f"  | {cut(text, room, marks.ellipsis)}", "dim"),) for text in view.log_lines]
    lines += _wrapped([*(("note", note, "") for note in view.progress.notes), *_next(view)], width)
    return lines + [(*_label(label), (text, style)) for label, text, style in _hints(view)]


# -- parts of the page ---------------------------------------------------------------------------------------------


def _headline(view: View, width: int) -> list[Line]:
    entry = view.entry
    place = _place_in_queue(view)
    nodes = view.state.nodes if view.state else ""
    words = {
        "pending": f"waits in the queue{place}",
        "requeued": f"waits to go on{place}",
        "running": f"runs on {nodes}" if nodes else "runs",
        "done": "is done",
        "lost": "is gone",
        "not taken": "was not taken",
    }.get(view.phase, view.phase)
    number = f", job {entry.scheduler_id}" if entry.scheduler == "slurm" and entry.scheduler_id else ""
    emulated = view.progress.training.emulated if view.progress.training else None
    head: Line = ((entry.name, "bold"), ("  ", ""), (words, STYLES[view.phase]))
    rest: Line = (
        (f"  {entry.title + ' ' if entry.title else ''}at {entry.site}{number}", "dim"),
        (f"  (emulated: {emulated})" if emulated else "", "yellow"),
    )
    is_short = sum(width_of(text) for text, _ in (*head, *rest)) <= width
    return [(*head, *rest)] if is_short else [head, rest]


def _chain(view: View, marks: Marks) -> Iterator[Piece]:
    looks = {
        "done": (marks.done, "green"),
        "running": (marks.running, "cyan"),
        "failed": (marks.failed, "red"),
        "waiting": (marks.waiting, "dim"),
    }
    training = view.progress.training
    for number, link in enumerate(view.progress.chain):
        if number:
            yield "  ", ""
        waits = link.state == "running" and view.phase in ("pending", "requeued", "lost")
        sign, style = looks[link.state]
        text = f"{link.name} {marks.waiting if waits else sign}"
        is_on = link.name == "train" and link.state in ("running", "failed")
        if is_on and training and training.fraction is not None:
            text += f" {_percent(training.fraction)}"
        yield text, style


def _waiting(view: View) -> Iterator[Row]:
    if view.phase not in ("pending", "requeued"):
        return
    state, progress = view.state, view.progress
    if state and (reason := explain_reason(state.reason)):
        yield "because", f"{reason.words}.{' ' + reason.cure if reason.cure else ''}", ""
    if state and state.start_estimate:
        yield "starts", f"about {_start(state.start_estimate, view.now)}, as SLURM estimates", ""
    if view.phase == "requeued" and progress.training:
        yield "reached", f"step {_count_of(progress.training)}; it goes on from its last checkpoint", ""
    elif progress.earlier_step is not None:
        at = progress.earlier_step
        yield "earlier", f"its folder has a run up to step {at}: training goes on from there", ""


def _why(view: View) -> Iterator[Row]:
    if view.phase == "not taken":
        yield "because", view.entry.error or "it was never submitted", "red"
        return
    if view.phase == "lost":
        text = "The scheduler does not know this job any more, and its script never began."
        if said := view.progress.state:
            text = f"The scheduler does not know this job any more, and its script's last word was '{said}': it was ended from outside before it could say how."
        yield "because", text, "red"
    elif view.phase == "failed":
        yield "because", view.why_failed, "red"
    for what, cure in view.explanations:
        yield "log says", what, ""
        if cure:
            yield "to do", cure, ""


def _training(view: View) -> Iterator[Row]:
    training = view.progress.training
    if training is None or view.phase in ("pending", "not taken"):
        return
    if view.phase != "requeued" and (training.fraction is None or view.phase != "running"):
        yield "trained", f"to step {_count_of(training)}", ""
    if training.loss is not None:
        text = f"{format_value(training.loss)} {'now' if view.phase == 'running' else 'last'}"
        if training.best_loss is not None and training.best_step != training.step:
            seen = " seen" if training.is_sampled else ""
            text += f", {format_value(training.best_loss)} best{seen} (step {training.best_step})"
        yield "loss", text, ""
    if training.non_finite_step is not None:
        yield "alarm", f"the loss was not finite at step {training.non_finite_step}", "bold red"
    rates = [(training.steps_per_second, "step"), (training.samples_per_second, "sample")]
    shown = "  ".join(format_rate(rate, unit) for rate, unit in rates if rate is not None)
    if shown and (view.is_training or view.phase == "done"):
        yield "speed", shown, ""
    if view.is_training and (silent := training.silent_seconds(view.now)) is not None:
        yield "silent", f"nothing was logged for {format_seconds(silent)}", "yellow"


def _limits(view: View) -> Iterator[Row]:
    if view.phase != "running":
        return
    parts = []
    left, limit, requeues = view.training_seconds_left, view.limit_seconds_left, view.num_more_requeues
    if left is not None:
        parts.append(f"{format_seconds(left)} of training")
    if limit is not None:
        parts.append(f"{format_seconds(limit)} until the time limit")
    if requeues:
        times = {1: "once", 2: "twice"}.get(requeues, f"{requeues} times")
        parts.append(f"it will be saved and requeued about {times} before it is through")
    elif requeues == 0:
        parts.append("it will be through before that")
    elif limit is not None and left is not None:
        parts.append("it will be saved and requeued there")
    if parts:
        yield "left", "; ".join(parts), ""


def _evaluation(view: View) -> Iterator[Row]:
    if (evaluation := view.progress.evaluation) is not None:
        yield "result", f"{_values_of(evaluation)}  (evaluated at step {evaluation.step})", "green"


def _saved(view: View) -> Iterator[Row]:
    newest, count = view.progress.checkpoint, view.progress.num_checkpoints
    if newest is not None:
        age = format_seconds(max(0.0, view.now - newest.written))
        more = f", {count} in all" if count > 1 else ""
        yield "saved", f"step {newest.step}, {show_bytes(newest.size_bytes)}, {age} ago{more}", ""


def _restarts(view: View) -> Iterator[Row]:
    attempts = view.progress.attempts
    if not attempts and not view.restarts:
        return
    goes_on = view.phase in ("requeued", "running")
    count = max(view.restarts, len(attempts)) if goes_on else view.restarts or len(attempts)
    yield "restarts", str(count), ""
    for attempt in attempts[-_MOST_ATTEMPTS:]:
        at = f"; saved: step {attempt.checkpoint_step}" if attempt.checkpoint_step is not None else ""
        where = f"{attempt.step}: " if attempt.step else ""
        yield "", f"{attempt.moment}  {where}{attempt.words}{at}", "dim"


def _workers(view: View) -> Iterator[Row]:
    workers = view.progress.workers
    if not workers:
        return
    if view.phase != "running":
        yield "workers", f"{len(workers)} read data for the one that trained", ""
        return
    alive = sum(worker.is_alive for worker in workers)
    yield "workers", f"{alive} of {len(workers)} read data for the one that trains", ""
    most = max(width_of(worker.name) for worker in workers)
    for worker in workers[:_MOST_WORKERS]:
        rate = worker.samples_per_second
        told = "gone" if not worker.is_alive else format_rate(rate, "sample") if rate is not None else ""
        yield "", f"{pad(worker.name, most)}  {told}", "" if worker.is_alive else "red"
    if len(workers) > _MOST_WORKERS:
        yield "", f"and {len(workers) - _MOST_WORKERS} more", ""


def _next(view: View) -> Iterator[Row]:
    """Commands to go on after the job's end."""
    checkpoint, training = view.progress.checkpoint, view.progress.training
    if view.phase == "done" and checkpoint is not None and training is not None:
        more = 2 * (training.total or checkpoint.step)
        text = f"train longer: submit it again with -D runconfig.max_steps={more}, and it goes on from step {checkpoint.step}"
        yield "next", text, ""
    if view.phase in ("failed", "lost", "cancelled"):
        at = f"training goes on from step {checkpoint.step}" if checkpoint else "it begins at the first step"
        when = "once that is mended, " if view.phase == "failed" else ""
        yield "next", f"{when}submit the same again: {at}", ""


def _hints(view: View) -> Iterator[Row]:
    """Folders and commands, which are never broken."""
    name = view.entry.name
    yield "folder", str(view.entry.folder), ""
    if view.model_dir:
        yield "run", view.model_dir, ""
    if view.phase in ("pending", "requeued", "running", "unknown"):
        yield "follow", f"portwright jobs {name} -f", "bold"
        yield "log", f"portwright logs {name} -f", "bold"
        yield "end it", f"portwright cancel {name}", "bold"
    elif view.phase != "not taken":
        yield "log", f"portwright logs {name}", "bold"
    if view.model_dir and (view.progress.training or view.progress.earlier_step is not None):
        yield "board", f"tensorboard --logdir {shlex.quote(view.model_dir)}", "bold"


# -- jobs in brief -------------------------------------------------------------------------------------------------


def status_line(view: View) -> str:
    """A job in one line, for a log."""
    words = [view.entry.name, view.phase]
    if view.phase in ("pending", "requeued"):
        words[1] += _place_in_queue(view)
        if view.state and (reason := explain_reason(view.state.reason)):
            words.append(reason.words)
    elif view.phase in ("failed", "lost"):
        words.append(view.why_failed)
    if view.phase == "running" and view.progress.step:
        words.append(view.progress.step)
    training = view.progress.training
    if training is not None and view.phase not in ("pending", "lost"):
        words.append(f"step {_count_of(training)}")
        if training.loss is not None:
            words.append(f"loss {format_value(training.loss)}")
        if view.is_training and training.steps_per_second:
            words.append(format_rate(training.steps_per_second, "step"))
    if (left := view.training_seconds_left) is not None:
        words.append(f"ETA {format_seconds(left)}")
    if view.restarts:
        words.append(f"{view.restarts} restart{'s' if view.restarts > 1 else ''}")
    if view.phase == "done" and view.progress.evaluation is not None:
        words.append(f"evaluated: {_values_of(view.progress.evaluation)}")
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
    # If the table is still too wide, names are cut.
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
        f"{_percent(training.fraction)} of {training.total}"
        if training and training.fraction is not None
        else (f"step {training.step}" if training else marks.dash)
    )
    yield format_value(training.loss) if training and training.loss is not None else marks.dash
    left = view.training_seconds_left
    yield format_seconds(left) if left is not None else marks.dash
    yield format_seconds(view.age_seconds) if view.age_seconds is not None else marks.dash


# -- pieces --------------------------------------------------------------------------------------------------------


def _label(label: str) -> Line:
    return ((f"  {label:<{_LABEL}}", "dim"),)


def _wrapped(rows: Iterable[Row], width: int) -> list[Line]:
    return [
        (*_label("" if number else label), (line, style))
        for label, text, style in rows
        for number, line in enumerate(wrap(text, max(20, width - _LABEL - 2)))
    ]


def _bar(fraction: float, text: str, width: int, marks: Marks) -> Line:
    room = max(8, min(60, width - 4 - len(text)))
    full = int(fraction * room)
    style = "green" if fraction >= 1 else "cyan"
    rest = marks.bar_rest * (room - full)
    return (("  ", ""), (marks.bar * full, style), (rest, "dim"), (f"  {text}", ""))


def _start(estimate: str, now: float) -> str:
    """SLURM's estimated start in local time, and the time until then."""
    try:
        moment = datetime.datetime.fromisoformat(estimate)
    except ValueError:
        return estimate
    seconds = moment.timestamp() - now
    return f"{moment:%Y-%m-%d %H:%M}" + (f" (in {format_seconds(seconds)})" if seconds > 0 else "")


def _place_in_queue(view: View) -> str:
    """A suffix for a waiting job's state: `, place 3 of 12 in RM`; empty where that is not known."""
    state = view.state
    if view.phase not in ("pending", "requeued") or state is None or state.queue_position is None:
        return ""
    of = f" of {state.queue_length}" if state.queue_length else ""
    where = f" in {view.asked['partition']}" if view.asked.get("partition") else ""
    return f", place {state.queue_position}{of}{where}"


def _count_of(training: Training) -> str:
    """The training step and the last one, as 500/1000."""
    return f"{training.step}/{training.total}" if training.total else str(training.step)


def _percent(fraction: float) -> str:
    return f"{math.floor(100 * fraction)}%"


def _values_of(evaluation: Evaluation) -> str:
    return "  ".join(f"{name} {format_value(value)}" for name, value in evaluation.values.items())
