"""Update rules for which TensorFlow has no kernel with PyTorch's numbers, made of plain operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from portwright.tensorflow.optimizer_rules import Decaying, create_counter, finish_counted, read_counter

v1 = tf.compat.v1


class Composed(Decaying, tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """A rule as one function of a dense gradient and a variable, `_move`, over slots that start at zero."""

    slots: Sequence[str] = ()
    counts = False  # whether the rule depends on the number of updates

    def __init__(self, learning_rate: Any, name: str | None = None) -> None:
        super().__init__(False, name or type(self).__name__)
        self._lr = learning_rate

    def _slots_of(self, variable: Any) -> Sequence[str]:
        return self.slots

    def _create_slots(self, var_list: Any) -> None:
        for variable in var_list:
            for slot in self._slots_of(variable):
                self._zeros_slot(variable, slot, self._name)
        if self.counts:
            create_counter(self, var_list)

    def _prepare(self) -> None:
        self._lr_t = tf.convert_to_tensor(self._lr)
        if self.counts:
            self._step_t = read_counter(self) + 1.0

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        return self._decayed(grad, var, self._move)

    _apply_dense = _resource_apply_dense

    def _finish(self, update_ops: Any, name_scope: str) -> Any:
        if self.counts:
            return finish_counted(self, update_ops, name_scope)
        return tf.group(*update_ops, name=name_scope)

    def _move(self, gradient: Any, variable: Any) -> Any:
        raise NotImplementedError

    def _mean(self, variable: Any, slot: str, value: Any, decay: Any) -> Any:
        """Updates a running mean and gives it."""
        held = self.get_slot(variable, slot)
        return v1.assign(held, decay * held + (1.0 - decay) * value)


class RMSprop(Composed):
    """RMSprop as PyTorch has it: means start at 0, eps is outside the root, the rate outside the momentum."""

    def __init__(
        self,
        learning_rate: Any,
        *,
        alpha: float = 0.99,
        eps: float = 1e-6,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        super().__init__(learning_rate)
        self.alpha, self.eps, self.momentum, self.centered = alpha, eps, momentum, centered
        self.slots = ("square", *(["momentum"] if momentum else []), *(["mean"] if centered else []))

    def _move(self, gradient: Any, variable: Any) -> Any:
        spread = self._mean(variable, "square", tf.square(gradient), self.alpha)
        if self.centered:
            spread = spread - tf.square(self._mean(variable, "mean", gradient, self.alpha))
        direction = gradient / (tf.sqrt(spread) + self.eps)
        if self.momentum:
            held = self.get_slot(variable, "momentum")
            direction = v1.assign(held, self.momentum * held + direction)
        return v1.assign_sub(variable, tf.cast(self._lr_t, direction.dtype) * direction)


class Lamb(Composed):
    """Adam whose step in each tensor is as long as the tensor's norm, `clamp_value` at most; decay is part of it."""

    slots = ("m", "v")
    counts = True

    def __init__(
        self,
        learning_rate: Any,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        clamp_value: float = 10.0,
        correct_bias: bool = False,
        adam: bool = False,
    ) -> None:
        super().__init__(learning_rate)
        self.beta1, self.beta2, self.eps = beta1, beta2, eps
        self.clamp_value, self.correct_bias, self.adam = clamp_value, correct_bias, adam

    def _decayed(self, gradient: Any, variable: Any, apply: Any) -> Any:
        return self._move(gradient, variable)

    def _move(self, gradient: Any, variable: Any) -> Any:
        mean = self._mean(variable, "m", gradient, self.beta1)
        root = tf.sqrt(self._mean(variable, "v", tf.square(gradient), self.beta2))
        if self.correct_bias:
            step = tf.cast(self._step_t, gradient.dtype)
            root = root / tf.sqrt(1.0 - tf.pow(tf.cast(self.beta2, step.dtype), step))
            mean = mean / (1.0 - tf.pow(tf.cast(self.beta1, step.dtype), step))
        direction = mean / (root + self.eps)
        rate = self._decay_of(variable)
        if rate:
            direction = direction + rate * variable
        if not self.adam:
            size, length = tf.norm(tf.convert_to_tensor(variable)), tf.norm(direction)
            safe = tf.where(length > 0, length, tf.ones_like(length))
            ratio = tf.minimum(size, self.clamp_value) / safe
            direction = direction * tf.where((size > 0) & (length > 0), ratio, tf.ones_like(ratio))
        return v1.assign_sub(variable, tf.cast(self._lr_t, direction.dtype) * direction)


class Lion(Composed):
    """Steps by the sign of a mix of momentum and gradient; weights decay beside the gradient."""

    slots = ("m",)
    decouples = True

    def __init__(self, learning_rate: Any, *, beta1: float = 0.9, beta2: float = 0.99) -> None:
        super().__init__(learning_rate)
        self.beta1, self.beta2 = beta1, beta2

    def _move(self, gradient: Any, variable: Any) -> Any:
        held = self.get_slot(variable, "m")
        direction = tf.sign(self.beta1 * held + (1.0 - self.beta1) * gradient)
        with tf.control_dependencies([direction]):
            kept = self._mean(variable, "m", gradient, self.beta2)
        moved = v1.assign_sub(variable, tf.cast(self._lr_t, direction.dtype) * direction)
        return tf.group(kept, moved)


class Adafactor(Composed):
    """Keeps second moments as one row and one column a matrix.

    The learning rate is relative to the variable's size where `scale_parameter` is set, and not read with
    `relative_step`.
    """

    counts = True

    def __init__(
        self,
        learning_rate: Any,
        *,
        eps1: float = 1e-30,
        eps2: float = 1e-3,
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | None = None,
        scale_parameter: bool = True,
        relative_step: bool = False,
        warmup_init: bool = False,
    ) -> None:
        super().__init__(learning_rate)
        self.eps1, self.eps2, self.clip_threshold = eps1, eps2, clip_threshold
        self.decay_rate, self.beta1, self.scale_parameter = decay_rate, beta1, scale_parameter
        self.relative_step, self.warmup_init = relative_step, warmup_init

    def _create_slots(self, var_list: Any) -> None:
        zeros = tf.zeros_initializer()
        for variable in var_list:
            shape, dtype = variable.shape, variable.dtype.base_dtype
            shapes = {"square": shape}
            if shape.rank >= 2:
                shapes = {"row": shape[:-1], "column": shape[:-2].concatenate(shape[-1:])}
            for slot, of_slot in shapes.items():
                self._get_or_make_slot_with_initializer(variable, zeros, of_slot, dtype, slot, self._name)
            if self.beta1 is not None:
                self._zeros_slot(variable, "m", self._name)
        create_counter(self, var_list)

    def _prepare(self) -> None:
        super()._prepare()
        if self.relative_step:
            ceiling = 1e-6 * self._step_t if self.warmup_init else 1e-2
            self._lr_t = tf.minimum(ceiling, tf.math.rsqrt(self._step_t))
        self._decay_t = 1.0 - tf.pow(self._step_t, self.decay_rate)

    def _decayed(self, gradient: Any, variable: Any, apply: Any) -> Any:
        return self._move(gradient, variable)

    def _move(self, gradient: Any, variable: Any) -> Any:
        dtype = gradient.dtype
        rate = tf.cast(self._lr_t, dtype)
        weight = tf.convert_to_tensor(variable)
        if self.scale_parameter:
            rate = rate * tf.maximum(_root_mean_square(weight), self.eps2)
        update = self._direction(gradient, variable, tf.cast(self._decay_t, dtype))
        update = update * (rate / tf.maximum(_root_mean_square(update) / self.clip_threshold, 1.0))
        if self.beta1 is not None:
            update = self._mean(variable, "m", update, self.beta1)
        decay = self._decay_of(variable)
        return v1.assign(variable, weight * (1.0 - decay * rate) - update)

    def _direction(self, gradient: Any, variable: Any, decay: Any) -> Any:
        squared = tf.square(gradient) + self.eps1
        if variable.shape.rank < 2:
            return gradient * tf.math.rsqrt(self._mean(variable, "square", squared, decay))
        row = self._mean(variable, "row", tf.reduce_mean(squared, axis=-1), decay)
        column = self._mean(variable, "column", tf.reduce_mean(squared, axis=-2), decay)
        row_factor = tf.math.rsqrt(row / tf.reduce_mean(row, axis=-1, keepdims=True))
        return gradient * row_factor[..., None] * tf.math.rsqrt(column)[..., None, :]


def _root_mean_square(x: Any) -> Any:
    return tf.sqrt(tf.reduce_mean(tf.square(x)))
