"""The heads of tf.compat.v1.estimator: subclasses with TensorFlow 1's metrics, reductions and optimizers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright.tensorflow.canned.class_heads import BinaryClassHead, MultiClassHead
from portwright.tensorflow.canned.head import V1_REDUCTIONS, check_reduction, make_train_op
from portwright.tensorflow.canned.head_inputs import check_logits
from portwright.tensorflow.canned.regression_head import RegressionHead
from portwright.tensorflow.canned.single_head import SingleHead

v1 = tf.compat.v1


class _V1(SingleHead):
    def _check_reduction(self, reduction: str) -> None:
        check_reduction(reduction, V1_REDUCTIONS)

    def _metric_ops(
        self, features: Any, logits: Any, labels: Any, regularization_losses: Any
    ) -> dict[str, Any]:
        measures = self._measures()
        observed = self._observe(features, logits, labels, regularization_losses)
        return {self._key(key): measures[key].as_ops(key, *values) for key, values in observed.items()}

    def _train_op(self, loss: Any, optimizer: Any, variables: Any, train_op_fn: Any, update_ops: Any) -> Any:
        collected = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
        return make_train_op(loss, optimizer, variables, train_op_fn, [*(update_ops or ()), *collected])

    def _more_summaries(self, features: Any, logits: Any, labels: Any) -> dict[str, Any]:
        if self._loss_reduction != v1.losses.Reduction.SUM:
            return {}
        logits = check_logits(logits, self.logits_dimension)
        unweighted, weights = self._losses(self._targets(labels, logits), logits, features)
        total_weight = tf.reduce_sum(weights * tf.ones_like(unweighted))
        return {"average_loss": tf.reduce_sum(unweighted * weights) / total_weight}


class V1BinaryClassHead(_V1, BinaryClassHead):
    """Two classes."""


class V1MultiClassHead(_V1, MultiClassHead):
    """Three or more classes."""


class V1RegressionHead(_V1, RegressionHead):
    """Numbers."""
