"""What the processes of a training do together: begin alike, agree on each step's loss and on stopping, and end."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from portwright.tensorflow.processes import Processes
from portwright.tensorflow.resume_point import ResumePoint, point_as_json, point_from_json

v1 = tf.compat.v1


class StartTogether(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Gives every process the chief's variables before the first step."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._copy: Any = None

    def begin(self) -> None:
        copies = []
        for variable in v1.global_variables():
            value = variable.read_value()
            wide = tf.cast(value, tf.int32) if value.dtype == tf.bool else value
            if not (wide.dtype.is_floating or wide.dtype.is_integer):
                continue
            own = wide if self._processes.rank == 0 else tf.zeros_like(wide)
            chiefs = tf.cast(self._processes.sum(own), value.dtype)
            copies.append(v1.assign(variable, chiefs) if self._processes.rank else chiefs)
        self._copy = tf.group(*copies)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._copy)


@dataclass(frozen=True)
class Beginning:
    """What a training begins from."""

    checkpoint: str | None
    point: ResumePoint | None
    states: list[bytes]
    own_seed: int


def as_the_chief(processes: Processes, own: Beginning) -> Beginning:
    """The chief's beginning, told to every process.

    Only the chief's input has its state saved: the others draw and drop as many batches as it has had.
    """
    written = None if own.point is None else point_as_json(own.point)
    told = json.loads(processes.hear_chief(json.dumps([own.checkpoint, own.own_seed, written])))
    if processes.rank == 0:
        return own
    checkpoint, own_seed, text = told
    point = None
    if text is not None:
        point = replace(
            point_from_json(text),
            states=(),
            state_runs=0,
            why_no_state="only the chief's is saved",
            input_digest="",
        )
    return Beginning(checkpoint, point, [], own_seed)


class Agreement:
    """One small sum a step: the mean loss, and whether anybody wants to stop."""

    def __init__(self, processes: Processes, loss: Any) -> None:
        flag = v1.Variable(
            0.0, trainable=False, collections=[v1.GraphKeys.LOCAL_VARIABLES], name="wants_to_stop"
        )
        summed = processes.sum(tf.stack([tf.cast(loss, tf.float32), flag]))
        self.loss = tf.cast(summed[0] / processes.size, loss.dtype)
        self.stops = summed[1]
        self._ask = flag.assign(1.0)
        self._end = processes.sum(tf.constant(1))

    def ask_to_stop(self, session: Any) -> None:
        """The next step's sum tells everybody."""
        session.run(self._ask)

    def end_together(self, session: Any) -> None:
        """Returns when everybody has made the last step: a process that has ended looks like one that died."""
        session.run(self._end)
