"""Optimizers of tf.keras whose update its own classes for graphs, the legacy ones, write otherwise.

RMSprop and Adagrad add epsilon under the root; the legacy ones add it to the root.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


class _DenseUpdates(v1.train.Optimizer):  # type: ignore[misc, name-defined]
    """An optimizer that takes gradients of looked-up rows as gradients of the whole table, with zeros elsewhere."""

    def __init__(self, learning_rate: Any, epsilon: float, name: str) -> None:
        super().__init__(use_locking=False, name=name)
        self._learning_rate, self._epsilon = learning_rate, epsilon

    def _rate(self, variable: Any) -> Any:
        rate = self._learning_rate() if callable(self._learning_rate) else self._learning_rate
        return tf.cast(rate, variable.dtype.base_dtype)

    def _resource_apply_sparse(self, grad: Any, handle: Any, indices: Any) -> Any:
        dense = tf.scatter_nd(indices[:, None], grad, tf.shape(handle, out_type=indices.dtype))
        return self._resource_apply_dense(dense, handle)

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        return self._resource_apply_dense(grad, var)

    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        raise NotImplementedError


class RMSprop(_DenseUpdates):
    def __init__(
        self, learning_rate: Any, *, rho: float, momentum: float, epsilon: float, centered: bool
    ) -> None:
        super().__init__(learning_rate, epsilon, "RMSprop")
        self._rho, self._momentum, self._centered = rho, momentum, centered

    def _create_slots(self, var_list: Any) -> None:
        wanted = {"velocity": True, "momentum": self._momentum > 0, "average": self._centered}
        for variable in var_list:
            for name, is_wanted in wanted.items():
                if is_wanted:
                    self._zeros_slot(variable, name, self._name)

    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        rho = self._rho
        slot = self.get_slot(handle, "velocity")
        velocity = rho * slot + (1 - rho) * tf.square(grad)
        updates = [slot.assign(velocity)]
        denominator = velocity + self._epsilon
        if self._centered:
            slot = self.get_slot(handle, "average")
            average = rho * slot + (1 - rho) * grad
            updates.append(slot.assign(average))
            denominator = velocity - tf.square(average) + self._epsilon
        step = self._rate(handle) * grad * tf.math.rsqrt(denominator)
        if self._momentum > 0:
            slot = self.get_slot(handle, "momentum")
            step = self._momentum * slot + step
            updates.append(slot.assign(step))
        return tf.group(*updates, handle.assign_sub(step))


class Adagrad(_DenseUpdates):
    def __init__(self, learning_rate: Any, *, initial_accumulator_value: float, epsilon: float) -> None:
        super().__init__(learning_rate, epsilon, "Adagrad")
        self._initial = initial_accumulator_value

    def _create_slots(self, var_list: Any) -> None:
        for variable in var_list:
            initial = tf.constant(self._initial, variable.dtype.base_dtype, variable.shape)
            self._get_or_make_slot(variable, initial, "accumulator", self._name)

    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        slot = self.get_slot(handle, "accumulator")
        accumulator = slot + tf.square(grad)
        step = self._rate(handle) * grad / tf.sqrt(accumulator + self._epsilon)
        return tf.group(slot.assign(accumulator), handle.assign_sub(step))
