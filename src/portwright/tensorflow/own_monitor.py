"""What watches a training that nobody else does: a script that calls an Estimator by itself."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import tensorflow as tf

from portwright.errors import ExitStatus
from portwright.job.progress import Progress
from portwright.job.signals import StopSignals
from portwright.tensorflow.monitor import Monitor, current_monitor


@contextmanager
def watched() -> Iterator[Monitor]:
    """The monitor of an enclosing block; without one, one that saves and ends the process when a signal asks for it.

    The status is then that of a run: 85 after SIGTERM and SIGUSR1, a KeyboardInterrupt after Ctrl-C.
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
        if signals.exit_status is ExitStatus.INTERRUPTED:
            raise KeyboardInterrupt
        raise SystemExit(int(signals.exit_status))


@contextmanager
def showing_progress(
    monitor: Monitor, start: int, total: int | None, is_chief: bool = True
) -> Iterator[None]:
    """Shows a bar on the chief's terminal, unless the training is a run's, or the user has TensorFlow log each loss anyway."""
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
    """Whether nobody else catches stop signals: a script's own handlers stay in charge."""
    if threading.current_thread() is not threading.main_thread():
        return False
    taken = (signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT))
    return all(handler in (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler) for handler in taken)
