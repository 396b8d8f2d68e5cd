"""The page of a job."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from portwright.job.progress import format_rate, format_seconds
from portwright.job.sizes import show_bytes
from portwright.launch.page_text import UNICODE, Line, Marks, Piece, cut, pad, width_of, wrap
from portwright.launch.queue_words import explain_reason
from portwright.launch.sparkline import sparkline
from portwright.launch.tunnel import tensorboard_lines
from portwright.launch.view import View
from portwright.launch.view_words import (
    STYLES,
    count_of,
    evaluated_values,
    loss_words,
    percent,
    place_in_queue,
)

_LABEL = 10
_MOST_WORKERS = 16
_MOST_ATTEMPTS = 5


def job_page(view: View, width: int = 100, marks: Marks = UNICODE) -> list[Line]:
    """Everything worth knowing of a job, for a terminal of this width; commands are never broken."""
    lines = _headline(view, width)
    if view.unanswered:
        lines += _row(
            "note", f"The scheduler does not answer: {view.unanswered} Below is what was known last.", width
        )
    if view.progress.chain:
        lines.append((("  ", ""), *_chain(view, marks)))
    for part in (_waiting, _why, _training, _limits, _evaluation, _saved, _restarts, _workers, _log_end):
        lines += part(view, width, marks)
    for note in view.progress.notes:
        lines += _row("note", note, width)
    lines += _hints(view, width)
    return lines


# -- parts of the page ---------------------------------------------------------------------------------------------


def _headline(view: View, width: int) -> list[Line]:
    entry, style = view.entry, STYLES[view.phase]
    words = {
        "pending": f"waits in the queue{place_in_queue(view)}",
        "requeued": f"waits to go on{place_in_queue(view)}",
        "running": f"runs on {view.state.nodes}" if view.state and view.state.nodes else "runs",
        "lost": "is gone",
        "not taken": "was not taken",
    }.get(view.phase, f"is {view.phase}" if view.phase == "done" else view.phase)
    number = f", job {entry.scheduler_id}" if entry.scheduler == "slurm" and entry.scheduler_id else ""
    emulated = view.progress.training.emulated if view.progress.training else None
    about = f"{entry.title + ' ' if entry.title else ''}at {entry.site}{number}"
    told = f"  (emulated: {emulated})" if emulated else ""
    head: Line = ((entry.name, "bold"), ("  ", ""), (words, style))
    rest: Line = ((f"  {about}", "dim"), (told, "yellow"))
    is_short = sum(width_of(text) for text, _ in (*head, *rest)) <= width
    return [(*head, *rest)] if is_short else [head, rest]


def _chain(view: View, marks: Marks) -> Iterator[Piece]:
    training = view.progress.training
    for number, link in enumerate(view.progress.chain):
        if number:
            yield "  ", ""
        sign = {
            "done": marks.done,
            "running": marks.running,
            "failed": marks.failed,
            "waiting": marks.waiting,
        }
        style = {"done": "green", "running": "cyan", "failed": "red", "waiting": "dim"}[link.state]
        state = (
            "waiting"
            if link.state == "running" and view.phase in ("pending", "requeued", "lost")
            else link.state
        )
        text = f"{link.name} {sign[state]}"
        if (
            link.name == "train"
            and link.state in ("running", "failed")
            and training
            and training.fraction is not None
        ):
            text += f" {percent(training.fraction)}"
        yield text, style


def _waiting(view: View, width: int, marks: Marks) -> list[Line]:
    lines: list[Line] = []
    if view.phase not in ("pending", "requeued"):
        return lines
    state, progress = view.state, view.progress
    if state and (reason := explain_reason(state.reason)):
        lines += _row("because", f"{reason.words}.{' ' + reason.cure if reason.cure else ''}", width)
    if state and state.start_estimate:
        lines += _row("starts", f"about {_start(state.start_estimate, view.now)}, as SLURM estimates", width)
    if view.phase == "requeued" and progress.training:
        lines += _row("reached", f"step {count_of(view)}; it goes on from its last checkpoint", width)
    elif progress.earlier_step is not None:
        lines += _row(
            "earlier",
            f"its folder has a run up to step {progress.earlier_step}: training goes on from there",
            width,
        )
    return lines


def _training(view: View, width: int, marks: Marks) -> list[Line]:
    training = view.progress.training
    if training is None or view.phase in ("pending", "not taken"):
        return []
    lines: list[Line] = []
    if training.fraction is not None and view.phase == "running":
        lines.append(_bar(training.fraction, f"step {count_of(view)}", width, marks))
    elif view.phase != "requeued":
        lines += _row("trained", f"to step {count_of(view)}", width)
    lines += _loss(view, width, marks)
    if training.non_finite_step is not None:
        lines += _row(
            "alarm", f"the loss was not finite at step {training.non_finite_step}", width, "bold red"
        )
    rates = [(training.steps_per_second, "step"), (training.samples_per_second, "sample")]
    shown = "  ".join(format_rate(rate, unit) for rate, unit in rates if rate is not None)
    if shown and (view.is_training or view.phase == "done"):
        lines += _row("speed", shown, width)
    if view.is_training and (silent := training.silent_seconds(view.now)) is not None:
        lines += _row("silent", f"nothing was logged for {format_seconds(silent)}", width, "yellow")
    return lines


def _loss(view: View, width: int, marks: Marks) -> list[Line]:
    """The curve beside the numbers where there is room, else below them."""
    training, text = view.progress.training, loss_words(view)
    if training is None or not text:
        return []
    beside = min(60, width - _LABEL - 4 - width_of(text))
    room = beside if beside >= 12 else min(60, width - _LABEL - 2)
    drawn = sparkline(training.series, room, marks.levels, marks.broken)
    if beside >= 12:
        return [(*_label("loss"), (f"{text}  ", ""), (drawn, "cyan"))]
    return [*_row("loss", text, width), (*_label(""), (drawn, "cyan"))]


def _limits(view: View, width: int, marks: Marks) -> list[Line]:
    if view.phase != "running":
        return []
    parts = []
    left, limit, requeues = view.training_seconds_left, view.limit_seconds_left, view.num_more_requeues
    if left is not None:
        parts.append(f"{format_seconds(left)} of training")
    if limit is not None:
        parts.append(f"{format_seconds(limit)} until the time limit")
    if requeues:
        parts.append(f"it will be saved and requeued about {_times(requeues)} before it is through")
    elif requeues == 0:
        parts.append("it will be through before that")
    elif limit is not None and left is not None:
        parts.append("it will be saved and requeued there")
    return _row("left", "; ".join(parts), width) if parts else []


def _why(view: View, width: int, marks: Marks) -> list[Line]:
    lines: list[Line] = []
    if view.phase == "not taken":
        return _row("because", view.entry.error or "it was never submitted", width, "red")
    if view.phase == "lost":
        said = view.progress.state
        text = (
            f"The scheduler does not know this job any more, and its script's last word was '{said}': it was ended from outside before it could say how."
            if said
            else "The scheduler does not know this job any more, and its script never began."
        )
        lines += _row("because", text, width, "red")
    elif view.phase == "failed":
        lines += _row("because", view.why_failed, width, "red")
    for what, cure in view.explanations:
        lines += _row("log says", what, width)
        lines += _row("to do", cure, width) if cure else []
    return lines


def _log_end(view: View, width: int, marks: Marks) -> list[Line]:
    if not view.log_lines:
        return []
    told: list[Line] = [(*_label("log ends"), (f"(portwright logs {view.entry.name})", "dim"))]
    room = max(20, width - 4)
    return told + [((f"  | {cut(text, room, marks.ellipsis)}", "dim"),) for text in view.log_lines]


def _evaluation(view: View, width: int, marks: Marks) -> list[Line]:
    evaluation = view.progress.evaluation
    if evaluation is None:
        return []
    return _row("result", f"{evaluated_values(view)}  (evaluated at step {evaluation.step})", width, "green")


def _saved(view: View, width: int, marks: Marks) -> list[Line]:
    newest, count = view.progress.checkpoint, view.progress.num_checkpoints
    if newest is None:
        return []
    age = format_seconds(max(0.0, view.now - newest.written))
    more = f", {count} in all" if count > 1 else ""
    return _row("saved", f"step {newest.step}, {show_bytes(newest.size_bytes)}, {age} ago{more}", width)


def _restarts(view: View, width: int, marks: Marks) -> list[Line]:
    attempts = view.progress.attempts
    if not attempts and not view.restarts:
        return []
    count = (
        max(view.restarts, len(attempts))
        if view.phase in ("requeued", "running")
        else view.restarts or len(attempts)
    )
    lines = _row("restarts", str(count), width)
    for attempt in attempts[-_MOST_ATTEMPTS:]:
        at = f"; saved: step {attempt.checkpoint_step}" if attempt.checkpoint_step is not None else ""
        where = f"{attempt.step}: " if attempt.step else ""
        lines += _row("", f"{attempt.moment}  {where}{attempt.words}{at}", width, "dim")
    return lines


def _workers(view: View, width: int, marks: Marks) -> list[Line]:
    workers = view.progress.workers
    if not workers:
        return []
    if view.phase != "running":
        return _row("workers", f"{len(workers)} read data for the one that trained", width)
    alive = sum(worker.is_alive for worker in workers)
    lines = _row("workers", f"{alive} of {len(workers)} read data for the one that trains", width)
    most = max(width_of(worker.name) for worker in workers)
    for worker in workers[:_MOST_WORKERS]:
        rate = worker.samples_per_second
        told = "gone" if not worker.is_alive else format_rate(rate, "sample") if rate is not None else ""
        lines += _row("", f"{pad(worker.name, most)}  {told}", width, "" if worker.is_alive else "red")
    if len(workers) > _MOST_WORKERS:
        lines += _row("", f"and {len(workers) - _MOST_WORKERS} more", width)
    return lines


def _next(view: View, width: int) -> list[Line]:
    """How to go on from an end."""
    checkpoint, training = view.progress.checkpoint, view.progress.training
    if view.phase == "done" and checkpoint is not None and training is not None:
        more = 2 * (training.total or checkpoint.step)
        text = f"train longer: submit it again with -D runconfig.max_steps={more}, and it goes on from step {checkpoint.step}"
        return _row("next", text, width)
    if view.phase in ("failed", "lost", "cancelled"):
        at = f"training goes on from step {checkpoint.step}" if checkpoint else "it begins at the first step"
        when = "once that is mended, " if view.phase == "failed" else ""
        return _row("next", f"{when}submit the same again: {at}", width)
    return []


def _hints(view: View, width: int) -> list[Line]:
    name = view.entry.name
    commands: list[tuple[str, str]] = []
    if view.phase in ("pending", "requeued", "running", "unknown"):
        commands += [("follow", f"portwright jobs {name} -f"), ("log", f"portwright logs {name} -f")]
        commands += [("end it", f"portwright cancel {name}")]
    elif view.phase != "not taken":
        commands.append(("log", f"portwright logs {name}"))
    lines: list[Line] = [*_next(view, width), (*_label("folder"), (str(view.entry.folder), ""))]
    if view.model_dir:
        lines.append((*_label("run"), (view.model_dir, "")))
    lines += [(*_label(label), (command, "bold")) for label, command in commands]
    if view.model_dir and (view.progress.training or view.progress.earlier_step is not None):
        nodes = view.state.nodes if view.state and view.phase == "running" else ""
        is_local = view.entry.scheduler == "none"
        for number, (where, command) in enumerate(
            tensorboard_lines(view.model_dir, is_local=is_local, login_host=view.login_host, nodes=nodes)
        ):
            lines.append((*_label("" if number else "board"), (where, "dim")))
            lines.append((*_label(""), (command, "bold")))
    return lines


# -- pieces --------------------------------------------------------------------------------------------------------


def _label(label: str) -> Line:
    return ((f"  {label:<{_LABEL}}", "dim"),)


def _row(label: str, text: str, width: int, style: str = "") -> list[Line]:
    wrapped = wrap(text, max(20, width - _LABEL - 2))
    return [(*_label("" if number else label), (line, style)) for number, line in enumerate(wrapped)]


def _bar(fraction: float, text: str, width: int, marks: Marks) -> Line:
    room = max(8, min(60, width - 4 - len(text)))
    full = int(fraction * room)
    return (
        ("  ", ""),
        (marks.bar * full, "green" if fraction >= 1 else "cyan"),
        (marks.bar_rest * (room - full), "dim"),
        (f"  {text}", ""),
    )


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _start(estimate: str, now: float) -> str:
    """SLURM's estimate, which is in local time, and how long that is from now."""
    try:
        moment = datetime.datetime.fromisoformat(estimate)
    except ValueError:
        return estimate
    seconds = moment.timestamp() - now
    return f"{moment:%Y-%m-%d %H:%M}" + (f" (in {format_seconds(seconds)})" if seconds > 0 else "")
