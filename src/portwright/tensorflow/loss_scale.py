"""Scaling of the loss against underflow of half-precision gradients, in the graph and in its checkpoints."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright.job.optimizer import OptimizerParams

v1 = tf.compat.v1


class LossScale:
    """A factor on the loss, fixed or dynamic.

    A dynamic one doubles after `steps_per_increase` finite updates in a row and halves on an overflow, within its
    bounds. Its variables, `current_loss_scale`, `good_steps` and `num_skipped_updates`, are part of every checkpoint;
    the first two are named as TensorFlow's own DynamicLossScale names them.
    """

    def __init__(self, spec: OptimizerParams) -> None:
        factor = spec.loss_scaling_factor
        self.is_dynamic = isinstance(factor, str)
        self._lowest, self._highest = spec.min_loss_scale, spec.max_loss_scale
        self._steps_per_increase = spec.steps_per_increase
        first = self._bounded(spec.initial_loss_scale) if isinstance(factor, str) else float(factor)
        self._num_skipped = _state("num_skipped_updates", 0, tf.int64)
        if self.is_dynamic:
            self._scale = _state("current_loss_scale", first, tf.float32)
            self._good_steps = _state("good_steps", 0, tf.int64)
            self.factor = tf.convert_to_tensor(self._scale)
        else:
            self.factor = tf.constant(first, tf.float32)

    def _bounded(self, scale: float) -> float:
        return max(self._lowest, scale if self._highest is None else min(self._highest, scale))

    @property
    def num_skipped(self) -> Any:
        """How many updates were left out because a gradient was not finite."""
        return self._num_skipped

    def after_finite(self) -> Any:
        """What happens to the factor after an update."""
        if not self.is_dynamic:
            return tf.no_op()
        count = tf.convert_to_tensor(self._good_steps) + 1
        grows = count >= self._steps_per_increase
        grown = self._clamp(self.factor * 2.0)
        # A factor that float32 cannot hold would never come back.
        grown = tf.where(tf.math.is_finite(grown), grown, self.factor)
        scaled = v1.assign(self._scale, tf.where(grows, grown, self.factor))
        return tf.group(scaled, v1.assign(self._good_steps, tf.where(grows, tf.zeros_like(count), count)))

    def after_overflow(self) -> Any:
        """What happens to the factor when an update is left out."""
        skipped = v1.assign_add(self._num_skipped, tf.constant(1, tf.int64))
        if not self.is_dynamic:
            return tf.group(skipped)
        scaled = v1.assign(self._scale, self._clamp(self.factor * 0.5))
        return tf.group(skipped, scaled, v1.assign(self._good_steps, tf.constant(0, tf.int64)))

    def _clamp(self, scale: Any) -> Any:
        scale = tf.maximum(scale, self._lowest)
        return scale if self._highest is None else tf.minimum(scale, self._highest)


def _state(name: str, value: float, dtype: Any) -> Any:
    # As a function, so that its first value does not wait for what runs before a train op.
    return v1.Variable(lambda: tf.constant(value, dtype), trainable=False, name=name, use_resource=True)
