"""Session hooks under the names that tf.estimator gave them; they are TensorFlow's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from portwright.errors import suggest
from portwright.tensorflow.arguments import BadValue
from portwright.tensorflow.checkpoints import step_of
from portwright.tensorflow.resume_point import mark_ended, read_point

if TYPE_CHECKING:
    from portwright.tensorflow.estimator import Estimator

v1 = tf.compat.v1

CheckpointSaverHook = v1.train.CheckpointSaverHook
CheckpointSaverListener = v1.train.CheckpointSaverListener
FeedFnHook = v1.train.FeedFnHook
FinalOpsHook = v1.train.FinalOpsHook
GlobalStepWaiterHook = v1.train.GlobalStepWaiterHook
LoggingTensorHook = v1.train.LoggingTensorHook
NanLossDuringTrainingError = v1.train.NanLossDuringTrainingError
NanTensorHook = v1.train.NanTensorHook
ProfilerHook = v1.train.ProfilerHook
SecondOrStepTimer = v1.train.SecondOrStepTimer
SessionRunArgs = v1.train.SessionRunArgs
SessionRunContext = v1.train.SessionRunContext
SessionRunHook = v1.train.SessionRunHook
SessionRunValues = v1.train.SessionRunValues
StepCounterHook = v1.train.StepCounterHook
StopAtStepHook = v1.train.StopAtStepHook
SummarySaverHook = v1.train.SummarySaverHook

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
