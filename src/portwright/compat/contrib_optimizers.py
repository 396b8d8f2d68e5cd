"""Optimizers of tf.contrib.opt."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf


class DecoupledWeightDecayExtension:
    """Takes `weight_decay` times a variable from it, before the step; mix it in before an optimizer."""

    def __init__(self, weight_decay: Any, **kwargs: Any) -> None:
        self._decay = weight_decay
        self._decayed: set[str] | None = None
        super().__init__(**kwargs)

    def minimize(self, *args: Any, decay_var_list: Any = None, **kwargs: Any) -> Any:
        self._decayed = None if decay_var_list is None else {v.name for v in decay_var_list}
        return super().minimize(*args, **kwargs)  # type: ignore[misc]

    def apply_gradients(
        self,
        grads_and_vars: Any,
        global_step: Any = None,
        name: str | None = None,
        decay_var_list: Any = None,
    ) -> Any:
        if decay_var_list is not None:
            self._decayed = {v.name for v in decay_var_list}
        pairs = list(grads_and_vars)
        rate = self._decay() if callable(self._decay) else self._decay
        decays = [
            tf.assign_sub(v, tf.cast(rate, v.dtype.base_dtype) * v)
            for g, v in pairs
            if g is not None and (self._decayed is None or v.name in self._decayed)
        ]
        with tf.control_dependencies(decays):
            return super().apply_gradients(pairs, global_step, name)  # type: ignore[misc]


class AdamWOptimizer(DecoupledWeightDecayExtension, tf.train.AdamOptimizer):  # type: ignore[misc]
    """Adam with decoupled weight decay."""

    def __init__(
        self,
        weight_decay: Any,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: float = 1e-8,
        use_locking: bool = False,
        name: str = "AdamW",
    ) -> None:
        super().__init__(
            weight_decay, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon, use_locking=use_locking,
            name=name,
        )  # fmt: skip


def extend_with_decoupled_weight_decay(base_optimizer: type) -> type:
    """A class like the given one with decoupled weight decay."""

    class OptimizerWithDecoupledWeightDecay(DecoupledWeightDecayExtension, base_optimizer):  # type: ignore[misc]
        pass

    return OptimizerWithDecoupledWeightDecay


class LazyAdamOptimizer(tf.train.AdamOptimizer):  # type: ignore[misc]
    """Adam whose moments of rows without a gradient stay as they are."""

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        return self._lazy(grad.values, var, grad.indices)

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
        return self._lazy(grad, var, indices)

    def _lazy(self, grad: Any, var: Any, indices: Any) -> Any:
        dtype = var.dtype.base_dtype
        beta1_power, beta2_power = (tf.cast(power, dtype) for power in self._get_beta_accumulators())
        rate, beta1, beta2, epsilon = (
            tf.cast(t, dtype) for t in (self._lr_t, self._beta1_t, self._beta2_t, self._epsilon_t)
        )
        rate = rate * tf.sqrt(1 - beta2_power) / (1 - beta1_power)
        m, v = self.get_slot(var, "m"), self.get_slot(var, "v")
        new_m = beta1 * tf.gather(m, indices) + (1 - beta1) * grad
        new_v = beta2 * tf.gather(v, indices) + (1 - beta2) * tf.square(grad)
        return tf.group(
            tf.scatter_update(m, indices, new_m),
            tf.scatter_update(v, indices, new_v),
            tf.scatter_sub(var, indices, rate * new_m / (tf.sqrt(new_v) + epsilon)),
        )
