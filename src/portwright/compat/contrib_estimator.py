"""What of tf.contrib.estimator split a model over the devices of one machine; tf.distribute does it today."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf

from portwright.errors import UserError


class TowerOptimizer(tf.train.Optimizer):  # type: ignore[misc]
    """An optimizer for a model that may stand on several devices; on one it is the optimizer itself."""

    def __new__(cls, optimizer_or_optimizer_fn: Any) -> Any:
        made = optimizer_or_optimizer_fn
        return made() if callable(made) and not isinstance(made, tf.train.Optimizer) else made


def replicate_model_fn(model_fn: Any, loss_reduction: Any = None, devices: Any = None) -> Any:
    """The model function itself, for one device."""
    if devices is not None and len(devices) > 1:
        raise UserError(
            f"replicate_model_fn was given {len(devices)} devices.",
            "Pass train_distribute=tf.distribute.MirroredStrategy() to RunConfig instead.",
        )
    return model_fn


def clip_gradients_by_norm(optimizer: Any, clip_norm: float) -> Any:
    """An optimizer whose gradients are each cut to a norm."""
    base = type(optimizer)

    class Clipped(base):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            self.__dict__.update(optimizer.__dict__)

        def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = [(g if g is None else tf.clip_by_norm(g, clip_norm), v) for g, v in grads_and_vars]
            return super().apply_gradients(pairs, *args, **kwargs)

    return Clipped()
