"""Session hooks under the names that tf.estimator gave them; they are TensorFlow's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf
from tensorflow.python.training.basic_session_run_hooks import (
    CheckpointSaverHook,
    CheckpointSaverListener,
    FeedFnHook,
    FinalOpsHook,
    GlobalStepWaiterHook,
    LoggingTensorHook,
    NanLossDuringTrainingError,
    NanTensorHook,
    ProfilerHook,
    SecondOrStepTimer,
    StepCounterHook,
    StopAtStepHook,
    SummarySaverHook,
)
from tensorflow.python.training.session_run_hook import (
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)

from portwright.errors import suggest
from portwright.tensorflow.arguments import BadValue
from portwright.tensorflow.checkpoints import step_of
from portwright.tensorflow.resume_point import mark_ended, read_point

if TYPE_CHECKING:
    from portwright.tensorflow.estimator import Estimator

__all__ = [
    "CheckpointInputPipelineHook",
    "CheckpointSaverHook",
    "CheckpointSaverListener",
    "FeedFnHook",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "LoggingTensorHook",
    "NanLossDuringTrainingError",
    "NanTensorHook",
    "ProfilerHook",
    "SecondOrStepTimer",
    "SessionRunArgs",
    "SessionRunContext",
    "SessionRunHook",
    "SessionRunValues",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
]

v1 = tf.compat.v1

_POLICIES = ("fail", "ignore", "warn")


class CheckpointInputPipelineHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Makes a training continue in its data where the one before ended, as the hook of `tf.data.experimental` did.

    Portwright's Estimator saves the input's position beside every checkpoint, and continues from it after an interruption.
    Without this hook, the training after one that ended normally starts its data anew. Make a hook for each call of `train`.
    """

    def __init__(self, estimator: Estimator, external_state_policy: str | None = None) -> None:
        policy = getattr(external_state_policy, "name", external_state_policy)
        if policy is not None and str(policy).lower() not in _POLICIES:
            raise BadValue(f"external_state_policy is {policy!r}.", suggest(str(policy), _POLICIES))
        latest = estimator.latest_checkpoint()
        found = read_point(estimator.model_dir, step_of(latest), v1.logging.warning) if latest else None
        if found is not None and found[0].ended == "steps":
            mark_ended(estimator.model_dir, found[0].step, "")
