"""Synchronises the processes of a training: they begin with the same values, share each step's loss, and stop at the same step."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from portwright.tensorflow.peer_watch import ConnectionBroken
from portwright.tensorflow.processes import Processes
from portwright.tensorflow.resume_point import ResumePoint, point_as_json, point_from_json

v1 = tf.compat.v1

_SUMMABLE = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


class StartTogether(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Gives every process the chief's variables before the first step."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._copy: Any = None
        self._has_begun = False

    def begin(self) -> None:
        copies = []
        for variable in v1.global_variables():
            value = variable.read_value()
            if not (value.dtype.is_floating or value.dtype.is_integer or value.dtype == tf.bool):
                continue  # a text, which cannot be summed
            wide = value if value.dtype in _SUMMABLE else tf.cast(value, tf.int64)
            own = wide if self._processes.rank == 0 else tf.zeros_like(wide)
            chiefs = tf.cast(self._processes.sum(own), value.dtype)
            copies.append(v1.assign(variable, chiefs) if self._processes.rank else chiefs)
        self._copy = tf.group(*copies)

    def after_create_session(self, session: Any, coord: Any) -> None:
        # TensorFlow made a new session, since a call between two servers failed; the other processes still use the old one.
        if self._has_begun:
            raise ConnectionBroken(
                "the connection to another process of this training broke.",
                "The same command in every process goes on from the last checkpoint.",
            )
        self._has_begun = True
        with self._processes.watching(lambda: session):
            session.run(self._copy)


@dataclass(frozen=True)
class Beginning:
    """The checkpoint, position and seed that a training begins from."""

    checkpoint: str | None
    point: ResumePoint | None
    states: list[bytes]
    own_seed: int


def as_the_chief(processes: Processes, own: Beginning) -> Beginning:
    """Returns the chief's beginning in every process.

    Only the state of the chief's input is saved: the other processes draw and drop as many batches as the chief had read.
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
    """One small sum in each step, over all processes: the mean loss, and whether a process asks to stop."""

    def __init__(self, processes: Processes, loss: Any) -> None:
        flag = v1.Variable(
            0.0, trainable=False, collections=[v1.GraphKeys.LOCAL_VARIABLES], name="wants_to_stop"
        )
        summed = processes.sum(tf.stack([tf.cast(loss, tf.float32), flag]))
        self.loss = tf.cast(summed[0] / processes.size, loss.dtype)
        self.stops = summed[1]
        self._ask = flag.assign(1.0)
        self._end = processes.sum(tf.constant(1))
        self._vote = v1.placeholder(tf.int32, [])
        self._votes = processes.sum(self._vote)
        self.has_votes = False  # whether hooks may ask to stop, in this process or in another

    def ask_to_stop(self, session: Any) -> None:
        """Makes the next step's sum tell every process to stop."""
        session.run(self._ask)

    def is_stop_wanted(self, session: Any, wants_to_stop: bool) -> bool:
        """Whether any process wants to stop after this step; every process must call it."""
        return bool(session.run(self._votes, {self._vote: int(wants_to_stop)}) > 0)

    def end_together(self, session: Any) -> None:
        """Waits until every process has made the last step: one that ended earlier would be taken for dead."""
        session.run(self._end)
