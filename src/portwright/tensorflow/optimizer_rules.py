"""The update rules, with PyTorch's results; SGD, momentum, Adagrad and Adam use TensorFlow's own kernels.

Names of slots are those of tf.compat.v1.train's optimizers, so that each can read the other's checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from portwright.tensorflow.gradients import as_dense, name_of

v1 = tf.compat.v1


class Decaying:
    """The base class of all rules: weight decay by variable, and sparse gradients made dense if a rule needs all rows.

    A rule that also inherits from one of TensorFlow's optimizers sets `decay_rates` and `decouples`. The decay is added
    to the gradient or, decoupled, subtracted from the weights.
    """

    decay_rates: Mapping[str, float] = {}
    decouples = False
    # True: the rule leaves rows without a gradient unchanged, and can update the others alone
    takes_sparse = False
    maximize = False
    counts = False  # whether the rule depends on the number of updates, which a variable then holds

    def _create_slots(self, var_list: Any) -> None:
        super()._create_slots(var_list)  # type: ignore[misc]
        if self.counts:
            first = min(var_list, key=lambda variable: variable.name)
            self._create_non_slot_variable(0.0, self._counter_name, first)  # type: ignore[attr-defined]

    @property
    def _counter_name(self) -> str:
        return f"{self._name}_updates"  # type: ignore[attr-defined]

    def _counter(self) -> Any:
        """The variable with the number of updates before this one."""
        with tf.init_scope():  # in a branch of tf.cond: the variable belongs to the graph around it
            graph = None if tf.executing_eagerly() else v1.get_default_graph()
        return self._get_non_slot_variable(self._counter_name, graph=graph)  # type: ignore[attr-defined]

    def _finish(self, update_ops: Any, name_scope: str) -> Any:
        if not self.counts:
            return super()._finish(update_ops, name_scope)  # type: ignore[misc]
        with tf.control_dependencies(update_ops):
            counted = v1.assign_add(self._counter(), 1.0)
        return tf.group(*update_ops, counted, name=name_scope)

    def _decay_of(self, variable: Any) -> float:
        return self.decay_rates.get(name_of(variable), 0.0)

    def _decayed(self, gradient: Any, variable: Any, apply: Any) -> Any:
        """Applies a dense gradient with weight decay."""
        gradient = -gradient if self.maximize else gradient
        rate = self._decay_of(variable)
        if not rate:
            return apply(gradient, variable)
        if not self.decouples:
            return apply(gradient + tf.cast(rate, gradient.dtype) * variable, variable)
        share = tf.cast(self._lr_t * rate, variable.dtype.base_dtype)  # type: ignore[attr-defined]
        # After the gradient is computed: that computation must read the weights before they shrink.
        with tf.control_dependencies([gradient]):
            shrunk = v1.assign_sub(variable, share * variable)
        with tf.control_dependencies([shrunk]):
            return apply(gradient, variable)

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        return self._decayed(grad, var, super()._resource_apply_dense)  # type: ignore[misc]

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        return self._decayed(grad, var, super()._apply_dense)  # type: ignore[misc]

    def _keeps_sparse(self, variable: Any) -> bool:
        return self.takes_sparse and not self._decay_of(variable)

    def _resource_apply_sparse_duplicate_indices(self, grad: Any, handle: Any, indices: Any) -> Any:
        if self._keeps_sparse(handle):
            grad = -grad if self.maximize else grad
            return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices)  # type: ignore[misc]
        dense = tf.math.unsorted_segment_sum(grad, indices, handle.shape[0])
        return self._resource_apply_dense(dense, handle)

    def _apply_sparse_duplicate_indices(self, grad: Any, var: Any) -> Any:
        if self._keeps_sparse(var):
            values = -grad.values if self.maximize else grad.values
            grad = tf.IndexedSlices(values, grad.indices, grad.dense_shape)
            return super()._apply_sparse_duplicate_indices(grad, var)  # type: ignore[misc]
        return self._apply_dense(as_dense(grad, var.shape[0]), var)


class SGD(Decaying, tf.compat.v1.train.GradientDescentOptimizer):  # type: ignore[misc]
    """Gradient descent without momentum."""

    takes_sparse = True

    def __init__(self, learning_rate: Any, *, maximize: bool = False) -> None:
        super().__init__(learning_rate)
        self.maximize = maximize


class Momentum(Decaying, tf.compat.v1.train.MomentumOptimizer):  # type: ignore[misc]
    """Gradient descent with momentum; as in PyTorch, momentum also moves rows without a gradient.

    `dampening` keeps a part of every gradient but the first out of the momentum.
    """

    def __init__(
        self,
        learning_rate: Any,
        momentum: float,
        *,
        dampening: float = 0.0,
        use_nesterov: bool = False,
        maximize: bool = False,
    ) -> None:
        super().__init__(learning_rate, momentum, use_nesterov=use_nesterov)
        self.maximize, self.dampening, self.counts = maximize, dampening, bool(dampening)

    def _decayed(self, gradient: Any, variable: Any, apply: Any) -> Any:
        if not self.dampening:
            return super()._decayed(gradient, variable, apply)

        def dampened(gradient: Any, variable: Any) -> Any:
            slot = self.get_slot(variable, "momentum")
            kept = tf.where(tf.equal(tf.convert_to_tensor(self._counter()), 0), 1.0, 1.0 - self.dampening)
            moved = v1.assign(slot, slot * self._momentum + gradient * tf.cast(kept, gradient.dtype))
            return v1.assign_sub(variable, tf.cast(self._learning_rate_tensor, moved.dtype) * moved)

        return super()._decayed(gradient, variable, dampened)


class Adam(Decaying, tf.compat.v1.train.AdamOptimizer):  # type: ignore[misc]
    """Adam and AdamW; slots and powers of beta are those of tf.compat.v1.train.AdamOptimizer.

    `eps` is added where PyTorch adds it, after the correction of the second moment; TensorFlow's own adds it before.
    """

    def __init__(
        self,
        learning_rate: Any,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        *,
        correct_bias: bool = True,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon=self._epsilon_hat)
        self.eps, self.correct_bias, self.amsgrad = eps, correct_bias, amsgrad

    def _epsilon_hat(self) -> Any:
        if not self.correct_bias:
            return self.eps
        return self.eps * tf.sqrt(1.0 - tf.cast(self._get_beta_accumulators()[1], tf.float32))

    def _create_slots(self, var_list: Any) -> None:
        if self.correct_bias:
            super()._create_slots(var_list)
        for variable in var_list:
            for slot in ("m", "v", *(["vhat"] if self.amsgrad else [])):
                self._zeros_slot(variable, slot, self._name)

    def _get_beta_accumulators(self) -> Any:
        if self.correct_bias:
            return super()._get_beta_accumulators()
        return tf.constant(0.0), tf.constant(0.0)  # powers of 0 turn the bias correction off

    def _finish(self, update_ops: Any, name_scope: str) -> Any:
        if self.correct_bias:
            return super()._finish(update_ops, name_scope)
        return tf.group(*update_ops, name=name_scope)

    def _decayed(self, gradient: Any, variable: Any, apply: Any) -> Any:
        return super()._decayed(gradient, variable, self._apply_largest if self.amsgrad else apply)

    def _apply_largest(self, gradient: Any, variable: Any) -> Any:
        dtype = gradient.dtype
        power1, power2 = (tf.cast(power, dtype) for power in self._get_beta_accumulators())
        beta1, beta2 = tf.cast(self._beta1_t, dtype), tf.cast(self._beta2_t, dtype)
        mean, square, largest = (self.get_slot(variable, slot) for slot in ("m", "v", "vhat"))
        mean_t = v1.assign(mean, beta1 * mean + (1 - beta1) * gradient)
        square_t = v1.assign(square, beta2 * square + (1 - beta2) * tf.square(gradient))
        largest_t = v1.assign(largest, tf.maximum(largest, square_t))
        rate = tf.cast(self._lr_t, dtype) * tf.sqrt(1 - power2) / (1 - power1)
        return v1.assign_sub(variable, rate * mean_t / (tf.sqrt(largest_t) + tf.cast(self._epsilon_t, dtype)))


class AdamW(Adam):
    """Adam whose weight decay does not pass through the moments."""

    decouples = True


class Composed(Decaying, tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """A rule that a subclass writes as one method, `_move`, of a dense gradient and a variable; its slots start at zero."""

    slots: Sequence[str] = ()

    def __init__(self, learning_rate: Any) -> None:
        super().__init__(False, type(self).__name__)
        self._lr = learning_rate

    def _create_slots(self, var_list: Any) -> None:
        for variable in var_list:
            self._make_slots(variable)
        super()._create_slots(var_list)

    def _make_slots(self, variable: Any) -> None:
        for slot in self.slots:
            self._zeros_slot(variable, slot, self._name)

    def _prepare(self) -> None:
        self._lr_t = tf.convert_to_tensor(self._lr)
        if self.counts:
            self._step_t = tf.convert_to_tensor(self._counter()) + 1.0

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        return self._decayed(grad, var, self._move)

    _apply_dense = _resource_apply_dense

    def _move(self, gradient: Any, variable: Any) -> Any:
        raise NotImplementedError

    def _mean(self, variable: Any, slot: str, value: Any, decay: Any) -> Any:
        """Updates a running mean and returns it."""
        held = self.get_slot(variable, slot)
        return v1.assign(held, decay * held + (1.0 - decay) * value)


class Adagrad(Composed):
    """Adagrad; its slot is that of tf.compat.v1.train.AdagradOptimizer."""

    takes_sparse = True

    def __init__(
        self,
        learning_rate: Any,
        *,
        lr_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-6,
        maximize: bool = False,
    ) -> None:
        super().__init__(learning_rate)
        self.lr_decay, self.eps, self.maximize, self.counts = lr_decay, eps, maximize, bool(lr_decay)
        self.initial_accumulator_value = initial_accumulator_value

    def _make_slots(self, variable: Any) -> None:
        start, dtype = tf.constant_initializer(self.initial_accumulator_value), variable.dtype.base_dtype
        self._get_or_make_slot_with_initializer(
            variable, start, variable.shape, dtype, "accumulator", self._name
        )

    def _prepare(self) -> None:
        super()._prepare()
        if self.lr_decay:
            self._lr_t = self._lr_t / (1.0 + self.lr_decay * (self._step_t - 1.0))

    def _move(self, gradient: Any, variable: Any) -> Any:
        total = v1.assign_add(self.get_slot(variable, "accumulator"), tf.square(gradient))
        return v1.assign_sub(variable, self._step_of(gradient, total))

    def _step_of(self, gradient: Any, total: Any) -> Any:
        return tf.cast(self._lr_t, total.dtype) * gradient / (tf.sqrt(total) + self.eps)

    def _resource_apply_sparse(self, grad: Any, handle: Any, indices: Any) -> Any:
        slot = self.get_slot(handle, "accumulator")
        with tf.control_dependencies([v1.scatter_add(slot, indices, tf.square(grad))]):
            total = tf.gather(slot, indices)
        return v1.scatter_sub(handle, indices, self._step_of(grad, total)).op

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        return self._resource_apply_sparse(grad.values, var, grad.indices)


class RMSprop(Composed):
    """RMSprop as in PyTorch: means start at 0, eps is added outside the root, the rate does not enter the momentum."""

    slot_names = ("square", "momentum", "mean")

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
        used = zip(self.slot_names, (True, momentum > 0, centered), strict=True)
        self.slots = tuple(name for name, is_used in used if is_used)

    def _move(self, gradient: Any, variable: Any) -> Any:
        direction = gradient / (tf.sqrt(self._spread(gradient, variable)) + self.eps)
        direction = self._with_momentum(direction, variable)
        return v1.assign_sub(variable, tf.cast(self._lr_t, direction.dtype) * direction)

    def _spread(self, gradient: Any, variable: Any) -> Any:
        square, _, mean = self.slot_names
        spread = self._mean(variable, square, tf.square(gradient), self.alpha)
        if self.centered:
            spread = spread - tf.square(self._mean(variable, mean, gradient, self.alpha))
        return spread

    def _with_momentum(self, step: Any, variable: Any) -> Any:
        if not self.momentum:
            return step
        held = self.get_slot(variable, "momentum")
        return v1.assign(held, self.momentum * held + step)


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

    The learning rate is relative to the variable's size if `scale_parameter` is set, and is not used with
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

    def _make_slots(self, variable: Any) -> None:
        zeros, shape, dtype = tf.zeros_initializer(), variable.shape, variable.dtype.base_dtype
        shapes = {"square": shape}
        if shape.rank >= 2:
            shapes = {"row": shape[:-1], "column": shape[:-2].concatenate(shape[-1:])}
        for slot, of_slot in shapes.items():
            self._get_or_make_slot_with_initializer(variable, zeros, of_slot, dtype, slot, self._name)
        if self.beta1 is not None:
            self._zeros_slot(variable, "m", self._name)

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
