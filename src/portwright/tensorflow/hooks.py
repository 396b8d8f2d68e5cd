"""Session hooks under the names that tf.estimator gave them; they are TensorFlow's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from portwright.errors import suggest
from portwright.tensorflow.bad_input import BadValue

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
    """Asks that the position in the input is saved with each checkpoint, as `tf.data.experimental` had it.

    Our Estimator always does that, so a hook of this class has nothing left to do: it is accepted and checked, so that
    code that asks for it runs unchanged.
    """

    def __init__(self, estimator: Estimator, external_state_policy: str | None = None) -> None:
        policy = getattr(external_state_policy, "name", external_state_policy)
        if policy is not None and str(policy).lower() not in _POLICIES:
            raise BadValue(f"external_state_policy is {policy!r}.", suggest(str(policy), _POLICIES))
        self._estimator = estimator


__all__ = sorted(
    name for name, value in dict(globals()).items() if isinstance(value, type) and value is not Any
)
