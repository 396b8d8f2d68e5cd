"""A fully connected network on handwritten digits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright import UserError
from portwright.tensorflow import EstimatorSpec, ModeKeys
from portwright.tensorflow.optimizers import make_train_op

ACTIVATIONS = {
    "relu": tf.nn.relu,
    "tanh": tf.nn.tanh,
    "elu": tf.nn.elu,
    "selu": tf.nn.selu,
    "gelu": tf.nn.gelu,
    "linear": tf.identity,
}


def model_fn(
    features: tf.Tensor, labels: tf.Tensor | None, mode: str, params: dict[str, Any]
) -> EstimatorSpec:
    """Builds the network and the parts that the mode needs: a loss and an update, metrics, or predictions."""
    logits = build_mlp(features, params["model"], is_training=mode == ModeKeys.TRAIN)
    digit = tf.argmax(logits, axis=-1)
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(mode, predictions={"digit": digit, "probabilities": tf.nn.softmax(logits)})
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    if mode == ModeKeys.EVAL:
        metrics = {"accuracy": tf.compat.v1.metrics.accuracy(labels=labels, predictions=digit)}
        return EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    return EstimatorSpec(mode, loss=loss, train_op=make_train_op(loss, params["optimizer"]))


def build_mlp(images: tf.Tensor, params: dict[str, Any], *, is_training: bool) -> tf.Tensor:
    """Dense layers with an activation and dropout between them; logits in float32."""
    num_pixels = images.shape[1:].num_elements()
    if num_pixels != params["input_size"]:
        raise UserError(
            f"model.input_size is {params['input_size']}, and an image has {num_pixels} pixels.",
            "Set model.input_size: 64 for digits, 784 for MNIST.",
        )
    policy = "mixed_bfloat16" if params["mixed_precision"] else "float32"
    hidden = tf.keras.layers.Flatten()(images)
    for number, size in enumerate(params["hidden_sizes"]):
        hidden = tf.keras.layers.Dense(size, name=f"hidden_{number}", dtype=policy)(hidden)
        hidden = ACTIVATIONS[params["activation_fn"]](hidden)
        if is_training and params["dropout"]:
            hidden = tf.nn.dropout(hidden, rate=params["dropout"])
    logits = tf.keras.layers.Dense(params["num_classes"], name="logits", dtype=policy)(hidden)
    return tf.cast(logits, tf.float32)
