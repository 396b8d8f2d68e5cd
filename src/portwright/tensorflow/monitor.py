"""The monitor of a training: its console, stop signals, log and progress bar, set by a run or by the Estimator itself."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import tensorflow as tf

from portwright.job.console import Console
from portwright.job.progress import Progress
from portwright.job.signals import StopSignals

if TYPE_CHECKING:
    from portwright.tensorflow.stream_source import Source


@dataclass
class Monitor:
    """Settings and callbacks of the code that runs an Estimator; `watching` applies them to every Estimator in its block.

    `signals` are checked between steps: after one was received, training saves, ends early and returns, and the owner of
    the signals decides what follows. `on_log(step, values, losses)` is called at every `log_steps`-th step and at the last
    one, with its loss and steps_per_second, and the losses of all steps since the call before. With `continues_input` a
    second training continues in the data where the first one ended; without, only an interrupted training is continued.
    `checks_losses` True stops at an infinite loss too, False at none; None stops at NaN, as tf.estimator does.
    `source` gives the batches that other tasks read with the training's input function.
    """

    console: Console = field(default_factory=Console)
    signals: StopSignals | None = None
    on_log: Callable[[int, Mapping[str, float], Sequence[float]], None] | None = None
    log_steps: int | None = None
    continues_input: bool = False
    checks_losses: bool | None = None
    source: Source | None = None
    ended: str = ""  # why the last training ended: "steps" (or a hook stopped it) or "data"

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


@contextmanager
def watched() -> Iterator[Monitor]:
    """The monitor of the enclosing `watching` block; without one, a new one that saves and ends the process on a stop signal.

    The process then ends as a run does: with status 85 after SIGTERM and SIGUSR1, a KeyboardInterrupt after Ctrl-C.
    """
    given = current_monitor()
    if given is not None:
        yield given
        return
    monitor = Monitor()
    if not _signals_are_free():
        yield monitor
        return
    with StopSignals() as signals:
        monitor.signals = signals
        yield monitor
    if signals.requested:
        signals.end()


@contextmanager
def showing_progress(
    monitor: Monitor, start: int, total: int | None, is_chief: bool = True
) -> Iterator[None]:
    """Shows a bar on the chief's terminal, unless a `watching` block has its own or TensorFlow's log shows losses already."""
    logs_losses = tf.compat.v1.logging.get_verbosity() <= tf.compat.v1.logging.INFO
    if not is_chief or current_monitor() is not None or logs_losses or not monitor.console.is_terminal:
        yield
        return
    with Progress("train", total, monitor.console, start=start) as progress:

        def on_log(step: int, values: Mapping[str, float], losses: Sequence[float]) -> None:
            progress.update(step, {"loss": values["loss"]})

        monitor.on_log, monitor.log_steps = on_log, 1
        yield


def _signals_are_free() -> bool:
    """Whether stop signals have their default handlers; handlers of a script's own are kept."""
    if threading.current_thread() is not threading.main_thread():
        return False
    taken = (signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT))
    return all(handler in (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler) for handler in taken)
