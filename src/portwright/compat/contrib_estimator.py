"""The part of tf.contrib.estimator that TensorFlow has nowhere else."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf


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
