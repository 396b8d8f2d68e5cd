"""The position of a training (steps, input, random numbers), which is saved so that a new process can continue from it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright.errors import NonFiniteError
from portwright.tensorflow.checkpoints import saved_steps, step_in_name, trust
from portwright.tensorflow.graph_walk import ancestors
from portwright.tensorflow.input_state import InputState
from portwright.tensorflow.monitor import Monitor
from portwright.tensorflow.random_counters import RandomCounters
from portwright.tensorflow.resume_point import (
    ResumePoint,
    can_keep_points,
    mark_ended,
    prune_points,
    write_point,
)
from portwright.tensorflow.stream_source import SourceState

v1 = tf.compat.v1


class NanLossError(NonFiniteError, tf.compat.v1.train.NanLossDuringTrainingError):  # type: ignore[misc]
    """The loss became NaN; old code catches this as TensorFlow's NanLossDuringTrainingError."""


class Position:
    """Counts steps and the random numbers they drew; made in the finished graph of a training, before its session."""

    def __init__(
        self,
        train_op: Any,
        loss: Any,
        model_dir: str,
        own_seed: int,
        monitor: Monitor,
        point: ResumePoint | None = None,
    ) -> None:
        needed = ancestors([train_op, loss])
        self.input = InputState(needed) if monitor.source is None else SourceState(needed, monitor.source)
        self.random = RandomCounters(needed, own_seed, None if point is None else point.drawn)
        self.point = point  # the saved position to continue from; None for a new training
        self.model_dir, self.own_seed, self.monitor = model_dir, own_seed, monitor
        self.num_runs = 0
        self.ended = ""
        self.has_started = False
        self.last_loss: Any = None
        self.losses: list[float] = []  # since the last call of take_losses

    def advance(self, loss: Any, sizes: Any) -> None:
        """Counts a step, and raises NanLossError if its loss is not acceptable."""
        self.num_runs += 1
        self.last_loss = loss
        self.random.count(sizes)
        number = float(loss)
        if self.monitor.is_bad(number):
            raise NanLossError(
                f"The loss is {str(number).replace('nan', 'NaN')} after {self.num_runs} steps of this training.",
                "Lower the learning rate, or look for values in the data that are not finite; the last checkpoint is from before.",
            )
        if self.monitor.on_log is not None:
            self.losses.append(number)

    def take_losses(self) -> list[float]:
        taken, self.losses = self.losses, []
        return taken

    def start(self, session: Any, states: list[bytes]) -> None:
        """Restores the positions of the input and the random ops in a new session; without a saved point both start anew."""
        self.random.initialize(session)
        if self.point is None:
            self.input.start_over()
        else:
            self._put_input_back(session, self.point, states)
            if self.random.problems:
                self.monitor.note(
                    f"From here on, random numbers are not those of an uninterrupted run: {'; '.join(self.random.problems)}."
                )
        self.has_started = True

    def _put_input_back(self, session: Any, point: ResumePoint, states: list[bytes]) -> None:
        self.num_runs = point.num_runs
        if not self.input.has_iterators:
            if tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.QUEUE_RUNNERS):
                self.monitor.note(
                    "The input is a queue, whose position cannot be restored: it starts from the beginning."
                )
            return
        # "": the point is the chief's, told to another process, and says nothing of this process's data.
        if point.input_digest not in (self.input.digest, ""):
            self.num_runs = 0
            self.input.start_over()
            self.monitor.note(
                "The input pipeline is not the one of the checkpoint: it starts from the beginning."
            )
            return
        problem = point.why_no_state or "it was not saved"
        if states or self.input.needs_no_state:
            problem = self.input.restore(session, states, point.state_runs)
        # Without a digest there is no note: only the chief's input has a state to restore.
        if problem and point.input_digest:
            self.monitor.note(
                f"The input's position cannot be restored ({problem}): {point.num_runs} batches are drawn and dropped instead, which is exact if the pipeline gives the same again."
            )
        self.input.skip(session, point.num_runs - (0 if problem else point.state_runs))


class CountSteps(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Counts the steps that go through hooks; it comes before the hook that saves, which needs the count."""

    def __init__(self, position: Position, loss: Any) -> None:
        self._position = position
        sizes = position.random.sizes
        self._fetches = {"loss": loss} if sizes is None else {"loss": loss, "sizes": sizes}

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._position.advance(run_values.results["loss"], run_values.results.get("sizes"))

    def wants(self, step: int) -> bool:
        return False


class StartPosition(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Restores the position in a new session; must come after the hooks that initialise iterators."""

    def __init__(self, position: Position, states: list[bytes]) -> None:
        self._position, self._states = position, states

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._position.start(session, self._states)


class KeepPosition(tf.compat.v1.train.CheckpointSaverListener):  # type: ignore[misc]
    """Writes the position beside each checkpoint, before TensorFlow lists the checkpoint as the newest."""

    def __init__(self, position: Position) -> None:
        self._position = position
        self._has_noted = False

    def before_save(self, session: Any, global_step_value: Any) -> None:
        position = self._position
        # A save before `start` holds what was restored or initialised: its point exists already or is not needed.
        if not position.has_started or not can_keep_points(position.model_dir):
            return
        saved = position.input.save(session, position.num_runs)
        if position.input.refusal and not self._has_noted:
            self._has_noted = True
            position.monitor.note(
                f"The input's position cannot be saved ({saved.refusal}): after an interruption its batches are drawn again and dropped."
            )
        point = ResumePoint(
            step=int(global_step_value),
            num_runs=position.num_runs,
            own_seed=position.own_seed,
            ended=position.ended,
            input_digest=position.input.digest,
            drawn=position.random.drawn,
            state_runs=saved.num_runs,
            why_no_state=saved.refusal,
        )
        write_point(position.model_dir, point, saved.states)

    def after_save(self, session: Any, global_step_value: Any) -> None:
        folder = self._position.model_dir
        saved = tf.train.latest_checkpoint(folder)
        if saved is not None and step_in_name(saved) == global_step_value:
            trust(saved)
        if can_keep_points(folder):
            prune_points(folder, saved_steps(folder))

    def end(self, session: Any, global_step_value: Any) -> None:
        # The last checkpoint may have been saved before the training knew that it would end.
        if self._position.ended and can_keep_points(self._position.model_dir):
            mark_ended(self._position.model_dir, int(global_step_value), self._position.ended)
