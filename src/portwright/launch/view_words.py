"""Words about a job that its page, its line and its row in a table share."""

from __future__ import annotations

import math

from portwright.job.progress import format_value
from portwright.launch.view import Phase, View

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


def place_in_queue(view: View) -> str:
    """Behind the state of a job that waits: `, place 3 of 12 in RM`; empty where that is not known."""
    state = view.state
    if view.phase not in ("pending", "requeued") or state is None or state.queue_position is None:
        return ""
    length = getattr(state, "queue_length", None)
    of = f" of {length}" if length else ""
    where = f" in {view.asked.partition}" if view.asked.partition else ""
    return f", place {state.queue_position}{of}{where}"


def loss_words(view: View) -> str:
    """The last loss, and the best where that is another."""
    training = view.progress.training
    if training is None or training.loss is None:
        return ""
    text = f"{format_value(training.loss)} {'now' if view.phase == 'running' else 'last'}"
    if training.best_loss is not None and training.best_step != training.step:
        seen = " seen" if training.is_sampled else ""
        text += f", {format_value(training.best_loss)} best{seen} (step {training.best_step})"
    return text


def count_of(view: View) -> str:
    """The step of a job that has trained, and of how many."""
    training = view.progress.training
    assert training is not None
    return f"{training.step}/{training.total}" if training.total else str(training.step)


def percent(fraction: float) -> str:
    return f"{math.floor(100 * fraction)}%"


def evaluated_values(view: View) -> str:
    """Of a job that was evaluated."""
    evaluation = view.progress.evaluation
    assert evaluation is not None
    return "  ".join(f"{name} {format_value(value)}" for name, value in evaluation.values.items())
