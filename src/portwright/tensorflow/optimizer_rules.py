"""The update rules with kernels of TensorFlow's own: SGD, momentum, Adagrad and Adam, with PyTorch's numbers.

Names of slots are those of tf.compat.v1.train's optimizers, so that checkpoints exchange with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from portwright.tensorflow.gradient_clipping import as_dense
from portwright.tensorflow.weight_decay import name_of

v1 = tf.compat.v1


class Decaying:
    """What all rules share: weight decay by variable, and sparse gradients made dense where a rule needs all rows.

    A rule that stands before one of TensorFlow's optimizers sets `decay_rates` and `decouples`. The decay is added to
    the gradient or, decoupled, taken from the weights beside it.
    """

    decay_rates: Mapping[str, float] = {}
    decouples = False
    takes_sparse = False  # rows without a gradient stay as they are, so that the others are enough
    maximize = False

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
        # Behind the gradient, so that the step that it comes from has read the weights before they shrink.
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

    def __init__(self, learning_rate: Any, *, maximize: bool = False, name: str = "GradientDescent") -> None:
        super().__init__(learning_rate, name=name)
        self.maximize = maximize


class Momentum(Decaying, tf.compat.v1.train.MomentumOptimizer):  # type: ignore[misc]
    """Gradient descent with momentum; rows without a gradient move on along theirs, as in PyTorch.

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
        name: str = "Momentum",
    ) -> None:
        super().__init__(learning_rate, momentum, name=name, use_nesterov=use_nesterov)
        self.maximize, self.dampening = maximize, dampening

    def _create_slots(self, var_list: Any) -> None:
        super()._create_slots(var_list)
        if self.dampening:
            create_counter(self, var_list)

    def _decayed(self, gradient: Any, variable: Any, apply: Any) -> Any:
        if not self.dampening:
            return super()._decayed(gradient, variable, apply)

        def dampened(gradient: Any, variable: Any) -> Any:
            slot = self.get_slot(variable, "momentum")
            kept = tf.where(tf.equal(read_counter(self), 0), 1.0, 1.0 - self.dampening)
            moved = v1.assign(slot, slot * self._momentum + gradient * tf.cast(kept, gradient.dtype))
            return v1.assign_sub(variable, tf.cast(self._learning_rate_tensor, moved.dtype) * moved)

        return super()._decayed(gradient, variable, dampened)

    def _finish(self, update_ops: Any, name_scope: str) -> Any:
        return (
            finish_counted(self, update_ops, name_scope)
            if self.dampening
            else super()._finish(update_ops, name_scope)
        )


class Adagrad(Decaying, tf.compat.v1.train.Optimizer):  # type: ignore[misc]
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
        name: str = "Adagrad",
    ) -> None:
        super().__init__(False, name)
        self._lr, self.lr_decay, self.eps, self.maximize = learning_rate, lr_decay, eps, maximize
        self.initial_accumulator_value = initial_accumulator_value

    def _create_slots(self, var_list: Any) -> None:
        start = tf.constant_initializer(self.initial_accumulator_value)
        for variable in var_list:
            dtype = variable.dtype.base_dtype
            self._get_or_make_slot_with_initializer(
                variable, start, variable.shape, dtype, "accumulator", self._name
            )
        if self.lr_decay:
            create_counter(self, var_list)

    def _prepare(self) -> None:
        rate = tf.convert_to_tensor(self._lr)
        if self.lr_decay:
            rate = rate / (1.0 + self.lr_decay * read_counter(self))
        self._lr_t = rate

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        return self._decayed(grad, var, self._move)

    _apply_dense = _resource_apply_dense

    def _move(self, gradient: Any, variable: Any) -> Any:
        total = v1.assign_add(self.get_slot(variable, "accumulator"), tf.square(gradient))
        moved = tf.cast(self._lr_t, total.dtype) * gradient / (tf.sqrt(total) + self.eps)
        return v1.assign_sub(variable, moved)

    def _resource_apply_sparse(self, grad: Any, handle: Any, indices: Any) -> Any:
        slot = self.get_slot(handle, "accumulator")
        squared = v1.scatter_add(slot, indices, tf.square(grad))
        with tf.control_dependencies([squared]):
            total = tf.gather(slot, indices)
        moved = tf.cast(self._lr_t, total.dtype) * grad / (tf.sqrt(total) + self.eps)
        return v1.scatter_sub(handle, indices, moved).op

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        return self._resource_apply_sparse(grad.values, var, grad.indices)

    def _finish(self, update_ops: Any, name_scope: str) -> Any:
        return (
            finish_counted(self, update_ops, name_scope)
            if self.lr_decay
            else tf.group(*update_ops, name=name_scope)
        )


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
        name: str = "Adam",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon=self._epsilon_hat, name=name)
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
        return tf.constant(0.0), tf.constant(0.0)  # as if they had vanished: nothing is left to correct

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


def create_counter(optimizer: Any, var_list: Any) -> None:
    """A variable that counts the updates of an optimizer whose rule depends on their number."""
    first = min(var_list, key=lambda variable: variable.name)
    optimizer._create_non_slot_variable(0.0, f"{optimizer._name}_updates", first)


def read_counter(optimizer: Any) -> Any:
    """How many updates came before this one."""
    return tf.convert_to_tensor(_counter(optimizer))


def finish_counted(optimizer: Any, update_ops: Any, name_scope: str) -> Any:
    """Ends an update and counts it."""
    with tf.control_dependencies(update_ops):
        counted = v1.assign_add(_counter(optimizer), 1.0)
    return tf.group(*update_ops, counted, name=name_scope)


def _counter(optimizer: Any) -> Any:
    with tf.init_scope():  # inside of a branch the variable is that of the graph around it
        graph = None if tf.executing_eagerly() else v1.get_default_graph()
    return optimizer._get_non_slot_variable(f"{optimizer._name}_updates", graph=graph)
