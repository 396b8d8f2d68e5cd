"""What watches a training from outside, such as a run with its log, its progress bar and its stop signals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from portwright.job.console import Console
from portwright.job.signals import StopSignals

if TYPE_CHECKING:
    from portwright.tensorflow.stream_source import Source


@dataclass
class Monitor:
    """Wishes of whoever runs an Estimator; `watching` makes them hold for every Estimator in its block.

    `signals` are asked between steps: when one was received, training saves, ends early and returns, and the owner of
    the signals decides what follows. `on_log(step, values, losses)` hears of every `log_steps`-th step and of the last
    one: its loss and steps_per_second, and the losses of all steps since the call before. `continues_input` lets a second
    training go on in the data where the first one ended; else only one that was interrupted does, as with tf.estimator.
    `checks_losses` True stops at an infinite loss too, False at none; None stops at NaN, as tf.estimator does.
    `source` gives the batches of a training in place of its input function, whose they are all the same: other tasks call it.
    """

    console: Console = field(default_factory=Console)
    signals: StopSignals | None = None
    on_log: Callable[[int, Mapping[str, float], Sequence[float]], None] | None = None
    log_steps: int | None = None
    continues_input: bool = False
    checks_losses: bool | None = None
    source: Source | None = None

    def note(self, message: str) -> None:
        self.console.note(message)

    def is_bad(self, loss: float) -> bool:
        """Whether training must stop at this loss."""
        if self.checks_losses is None:
            return math.isnan(loss)
        return self.checks_losses and not math.isfinite(loss)

    def is_logged(self, step: int, is_last: bool = False) -> bool:
        return is_last or (bool(self.log_steps) and step % (self.log_steps or 1) == 0)


_current: ContextVar[Monitor | None] = ContextVar("portwright_monitor", default=None)


@contextmanager
def watching(monitor: Monitor) -> Iterator[Monitor]:
    """Makes `monitor` the one that Estimators in this block report to."""
    token = _current.set(monitor)
    try:
        yield monitor
    finally:
        _current.reset(token)


def current_monitor() -> Monitor | None:
    """The monitor of the enclosing `watching` block; None outside of one."""
    return _current.get()
