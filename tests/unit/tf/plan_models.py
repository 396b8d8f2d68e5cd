"""Small model functions and how the plan tests capture them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from portwright.tensorflow.capturing.build import of_functions
from portwright.tensorflow.capturing.capture import Captured, capture_step
from portwright.tensorflow.spec import EstimatorSpec

v1 = tf.compat.v1
layers = tf.keras.layers
Net = Callable[[Any], Any]


def make_input_fn(
    shape: tuple[int, ...] = (4, 8), dtype: Any = tf.float32, drop: bool = True
) -> Callable[[], Any]:
    def input_fn() -> Any:
        data = (tf.zeros([2 * shape[0], *shape[1:]], dtype), tf.zeros([2 * shape[0]], tf.int32))
        return tf.data.Dataset.from_tensor_slices(data).batch(shape[0], drop_remainder=drop)

    return input_fn


def make_model_fn(net: Net, optimizer: Callable[[], Any] | None = None) -> Callable[..., Any]:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        logits = net(features)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        if mode != "train":
            return EstimatorSpec(mode, loss=loss, predictions=logits)
        made = optimizer() if optimizer is not None else v1.train.GradientDescentOptimizer(0.1)
        return EstimatorSpec(mode, loss=loss, train_op=made.minimize(loss, v1.train.get_global_step()))

    return model_fn


def capture_net(
    net: Net,
    shape: tuple[int, ...] = (4, 8),
    dtype: Any = tf.float32,
    optimizer: Callable[[], Any] | None = None,
    mode: str = "train",
    **options: Any,
) -> Captured:
    return capture_fn(make_model_fn(net, optimizer), make_input_fn(shape, dtype), mode=mode, **options)


def capture_fn(model_fn: Callable[..., Any], input_fn: Callable[..., Any] | None, **options: Any) -> Captured:
    return capture_step(*of_functions(model_fn, input_fn, None, None), **options)


def mlp(features: Any) -> Any:
    return layers.Dense(10)(layers.Dense(16, activation="relu")(features))
