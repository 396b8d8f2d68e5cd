"""The loop that makes steps, as fast as the hooks allow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from portwright.tensorflow.monitor import Monitor
from portwright.tensorflow.position import Position
from portwright.tensorflow.processes import ENDED, is_end_of_data
from portwright.tensorflow.train_hooks import counts_steps, skip_step, wants_step


@dataclass(frozen=True)
class Step:
    """What one run of the graph makes: the update, its loss, and the step's number after it."""

    train_op: Any
    loss: Any
    number: Any
    sizes: Any  # of random draws that are not known beforehand; None without any
    agreement: Any = None  # with the other processes of this training; None where this one is alone

    @property
    def fetches(self) -> list[Any]:
        stops = [] if self.agreement is None else [self.agreement.stops]
        return [self.train_op, self.loss, self.number, *stops, *([] if self.sizes is None else [self.sizes])]


def run_steps(
    session: Any,
    step: Step,
    position: Position,
    hooks: Sequence[Any],
    first_step: int,
    last_step: int | None,
    monitor: Monitor,
) -> None:
    """Makes steps until `last_step`, the end of the data, or a request to stop.

    The end of the data is an OutOfRangeError, which the session's block takes for a good end.
    """
    # Only a session of this process can be called past its wrappers: another's may have to be made anew.
    quick = (
        session._tf_sess().make_callable(step.fetches)
        if step.agreement is None and not session._tf_sess().sess_str
        else None
    )
    counting = [hook for hook in hooks if counts_steps(hook)]
    number, log = first_step, _Log(monitor, position, first_step)
    signals = monitor.signals
    try:
        while not session.should_stop():
            wanted = [wants_step(hook, number + 1) for hook in hooks]  # each is asked: some keep count by it
            if quick is None or any(wanted):
                _, _, number, *rest = session.run(step.fetches)
            else:
                _, loss, number, *sizes = quick()
                position.advance(loss, sizes[0] if sizes else None)
                for hook in counting:
                    skip_step(hook)
            is_last = last_step is not None and number >= last_step
            if monitor.on_log is not None and monitor.is_logged(int(number), is_last):
                log.write(int(number))
            if is_last:
                position.ended = "steps"
                break
            if step.agreement is not None:
                if step.agreement.has_votes and step.agreement.is_anyone_for_it(
                    session._tf_sess(), session.should_stop()
                ):
                    position.ended = "steps"  # a hook asked for it, here or in another process
                    break
                if rest[0] > 0:
                    if signals is not None:
                        signals.follow("another process")
                    break
                if signals is not None and signals.requested:
                    step.agreement.ask_to_stop(session._tf_sess())
            elif signals is not None and signals.requested:
                break
        else:
            position.ended = "steps"  # a hook asked for it
    except (tf.errors.OutOfRangeError, StopIteration):
        position.ended = "data"
        raise
    except tf.errors.InvalidArgumentError as error:
        if not is_end_of_data(error):
            raise
        position.ended = "data"
        raise tf.errors.OutOfRangeError(None, None, ENDED) from error
    finally:
        log.close(int(number))


class _Log:
    """Tells the monitor of steps, with the rate since it was told last."""

    def __init__(self, monitor: Monitor, position: Position, step: int) -> None:
        self._monitor, self._position = monitor, position
        self._step, self._time = step, time.monotonic()

    def write(self, step: int) -> None:
        now = time.monotonic()
        losses = self._position.take_losses()
        if self._monitor.on_log is None or not losses:
            return
        rate = (step - self._step) / max(now - self._time, 1e-9)
        self._step, self._time = step, now
        self._monitor.on_log(step, {"loss": losses[-1], "steps_per_second": rate}, losses)

    def close(self, step: int) -> None:
        """Tells of the steps since, so that none is missing from a log however training ends."""
        self.write(step)
