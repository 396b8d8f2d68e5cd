"""U-Net: an encoder that halves an image repeatedly, a decoder that doubles it, and skip connections between them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright import UserError
from portwright.tensorflow import ModeKeys
from portwright.tensorflow.layers.activations import get_activation
from portwright.tensorflow.layers.initializers import get_initializer
from portwright.tensorflow.models_common import model_parts
from portwright.tensorflow.models_common.model_parts import make_spec, policy_of


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    model = params["model"]
    network = UNet(model)
    logits = tf.cast(network(features["image"], training=mode == ModeKeys.TRAIN), tf.float32)
    classes = classes_of(logits)
    if mode == ModeKeys.PREDICT:
        return make_spec(
            mode, params, predictions={"classes": classes, "probabilities": probabilities_of(logits)}
        )
    return make_spec(
        mode,
        params,
        loss=segmentation_loss(logits, labels, model["loss"]),
        host_call=(lambda truth, found: eval_metrics(truth, found, model["num_classes"]), [labels, classes]),
    )


class UNet:
    """Called with images [batch, height, width, channels], it gives a logit for each pixel: [..., 1] for two classes."""

    def __init__(self, params: dict[str, Any]) -> None:
        if len(params["encoder_filters"]) != len(params["decoder_filters"]) + 1:
            raise UserError(
                f"model.encoder_filters has {len(params['encoder_filters'])} depths and decoder_filters "
                f"{len(params['decoder_filters'])}.",
                "Give one more encoder depth: the bottleneck.",
            )
        self.params = params
        self.policy = policy_of(params)
        self.num_outputs = 1 if params["num_classes"] == 2 else params["num_classes"]

    def __call__(self, images: Any, training: bool) -> Any:
        params = self.params
        x = images
        if params["initial_conv_filters"]:
            x = self._conv(x, params["initial_conv_filters"], 3, "initial_conv", training)
        *encoder, bottleneck = params["encoder_filters"]
        passed = []
        for depth, filters in enumerate(encoder):
            x = self._block(x, filters, f"encoder_{depth}", training)
            passed.append(x)
            x = tf.nn.max_pool2d(x, 2, 2, "VALID", name=f"pool_{depth}")
        x = self._block(x, bottleneck, "bottleneck", training)
        for depth, filters in enumerate(params["decoder_filters"]):
            x = self._up(x, filters, f"decoder_{depth}_up")
            if params["skip_connect"]:
                x = tf.concat([x, passed[-1 - depth]], -1)
            x = self._block(x, filters, f"decoder_{depth}", training)
        return self._layer(tf.keras.layers.Conv2D, self.num_outputs, 1, "output")(x)

    def _block(self, x: Any, filters: int, name: str, training: bool) -> Any:
        for index, kind in enumerate(self.params["convs_per_block"]):
            x = self._conv(x, filters, 3 if kind == "3x3_conv" else 1, f"{name}_conv_{index}", training)
        return x

    def _conv(self, x: Any, filters: int, size: int, name: str, training: bool) -> Any:
        x = self._layer(tf.keras.layers.Conv2D, filters, size, name)(x)
        if self.params["batch_norm"]:
            norm = tf.keras.layers.BatchNormalization(name=f"{name}_norm", dtype=self.policy)
            x = norm(x, training=training)
        return get_activation(self.params["nonlinearity"])(x)

    def _up(self, x: Any, filters: int, name: str) -> Any:
        return self._layer(tf.keras.layers.Conv2DTranspose, filters, 2, name, strides=2)(x)

    def _layer(self, kind: Any, filters: int, size: int, name: str, strides: int = 1) -> Any:
        return kind(
            filters,
            size,
            strides=strides,
            padding="same",
            use_bias=self.params["enable_bias"],
            kernel_initializer=get_initializer(self.params["initializer"]),
            name=name,
            dtype=self.policy,
        )


def segmentation_loss(logits: Any, labels: Any, kind: str) -> Any:
    """The mean of the pixels' cross-entropies, with `bce_dice` also one minus the Dice coefficient of the batch."""
    if logits.shape[-1] == 1:
        truth = tf.cast(labels, tf.float32)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=truth, logits=logits[..., 0]))
        found = tf.sigmoid(logits[..., 0])
    else:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        truth = tf.one_hot(labels, logits.shape[-1])[..., 1:]
        found = tf.nn.softmax(logits)[..., 1:]
    if kind == "bce":
        return loss
    overlap = 2 * tf.reduce_sum(truth * found) + 1
    return loss + 1 - overlap / (tf.reduce_sum(truth) + tf.reduce_sum(found) + 1)


def classes_of(logits: Any) -> Any:
    if logits.shape[-1] == 1:
        return tf.cast(logits[..., 0] > 0, tf.int32)
    return tf.argmax(logits, -1, output_type=tf.int32)


def probabilities_of(logits: Any) -> Any:
    return tf.sigmoid(logits) if logits.shape[-1] == 1 else tf.nn.softmax(logits)


def eval_metrics(labels: Any, classes: Any, num_classes: int) -> dict[str, Any]:
    return {
        "eval/accuracy": model_parts.accuracy(labels, classes),
        "eval/dice": model_parts.dice(labels, classes),
        "eval/mean_iou": model_parts.mean_iou(labels, classes, num_classes),
        "eval/mean_per_class_accuracy": model_parts.mean_per_class_accuracy(labels, classes, num_classes),
    }
