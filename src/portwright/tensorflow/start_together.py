"""What the processes of a training do together: begin alike, agree on each step's loss and on stopping, and end."""

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
                continue  # a text, which no sum carries
            wide = value if value.dtype in _SUMMABLE else tf.cast(value, tf.int64)
            own = wide if self._processes.rank == 0 else tf.zeros_like(wide)
            chiefs = tf.cast(self._processes.sum(own), value.dtype)
            copies.append(v1.assign(variable, chiefs) if self._processes.rank else chiefs)
        self._copy = tf.group(*copies)

    def after_create_session(self, session: Any, coord: Any) -> None:
        # A session is made anew when a call between two servers fails; the others know nothing of that.
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
        self._vote = v1.placeholder(tf.int32, [])
        self._votes = processes.sum(self._vote)
        self.has_votes = False  # whether hooks may ask to stop, in this process or in another

    def ask_to_stop(self, session: Any) -> None:
        """The next step's sum tells everybody."""
        session.run(self._ask)

    def is_anyone_for_it(self, session: Any, wish: bool) -> bool:
        """Whether any process wishes to stop after this very step."""
        return bool(session.run(self._votes, {self._vote: int(wish)}) > 0)

    def end_together(self, session: Any) -> None:
        """Returns when everybody has made the last step: a process that has ended looks like one that died."""
        session.run(self._end)
