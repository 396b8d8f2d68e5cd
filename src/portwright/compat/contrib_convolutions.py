"""Convolutions and pools of tf.contrib.layers, with its names of variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from portwright.compat.contrib_initializers import xavier_initializer
from portwright.compat.contrib_layers import ZEROS, finish
from portwright.compat.contrib_scopes import add_arg_scope
from portwright.compat.contrib_variables import collect, model_variable
from portwright.errors import UserError

Sizes = int | Sequence[int]


def _two(sizes: Sizes) -> list[int]:
    return [sizes, sizes] if isinstance(sizes, int) else [int(size) for size in sizes]


def _check(data_format: str | None) -> None:
    if data_format not in (None, "NHWC"):
        raise UserError(f"data_format is '{data_format}'.", "Only NHWC is lent, which a CPU needs anyway.")


@add_arg_scope
def conv2d(
    inputs: Any,
    num_outputs: int,
    kernel_size: Sizes,
    stride: Sizes = 1,
    padding: str = "SAME",
    data_format: str | None = None,
    rate: Sizes = 1,
    activation_fn: Callable[..., Any] | None = tf.nn.relu,
    normalizer_fn: Callable[..., Any] | None = None,
    normalizer_params: Mapping[str, Any] | None = None,
    weights_initializer: Any = None,
    weights_regularizer: Any = None,
    biases_initializer: Any = ZEROS,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Any:
    """A convolution over images."""
    _check(data_format)
    with tf.variable_scope(scope, "Conv", [inputs], reuse=reuse) as opened:
        inputs = tf.convert_to_tensor(inputs)
        dtype = inputs.dtype.base_dtype
        weights = model_variable(
            "weights", [*_two(kernel_size), inputs.shape.as_list()[-1], num_outputs], dtype,
            weights_initializer or xavier_initializer(), weights_regularizer, trainable, variables_collections,
        )  # fmt: skip
        outputs = tf.nn.conv2d(
            inputs, weights, strides=[1, *_two(stride), 1], padding=padding, dilations=[1, *_two(rate), 1]
        )
        biases = _biases(
            num_outputs, dtype, biases_initializer, biases_regularizer, trainable, variables_collections
        )
        return finish(
            outputs, normalizer_fn, normalizer_params, biases, activation_fn, outputs_collections, opened.name
        )


def _biases(size: int, dtype: Any, initializer: Any, *rest: Any) -> Callable[[], Any]:
    return lambda: (
        None if initializer is None else model_variable("biases", [size], dtype, initializer, *rest)
    )


@add_arg_scope
def conv2d_transpose(
    inputs: Any,
    num_outputs: int,
    kernel_size: Sizes,
    stride: Sizes = 1,
    padding: str = "SAME",
    data_format: str = "NHWC",
    activation_fn: Callable[..., Any] | None = tf.nn.relu,
    normalizer_fn: Callable[..., Any] | None = None,
    normalizer_params: Mapping[str, Any] | None = None,
    weights_initializer: Any = None,
    weights_regularizer: Any = None,
    biases_initializer: Any = ZEROS,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Any:
    """A convolution's transpose, which makes images larger."""
    _check(data_format)
    with tf.variable_scope(scope, "Conv2d_transpose", [inputs], reuse=reuse) as opened:
        inputs = tf.convert_to_tensor(inputs)
        dtype, kernel, strides = inputs.dtype.base_dtype, _two(kernel_size), _two(stride)
        weights = model_variable(
            "weights", [*kernel, num_outputs, inputs.shape.as_list()[-1]], dtype, weights_initializer or xavier_initializer(),
            weights_regularizer, trainable, variables_collections,
        )  # fmt: skip
        places = tf.shape(inputs)
        added = [max(k - s, 0) if padding == "VALID" else 0 for k, s in zip(kernel, strides, strict=True)]
        shape = tf.stack(
            [places[0], *(places[axis + 1] * strides[axis] + added[axis] for axis in (0, 1)), num_outputs]
        )
        outputs = tf.nn.conv2d_transpose(inputs, weights, shape, [1, *strides, 1], padding)
        known = inputs.shape.as_list()
        outputs.set_shape(
            [
                known[0],
                *(None if known[a + 1] is None else known[a + 1] * strides[a] + added[a] for a in (0, 1)),
                num_outputs,
            ]
        )
        biases = _biases(
            num_outputs, dtype, biases_initializer, biases_regularizer, trainable, variables_collections
        )
        return finish(
            outputs, normalizer_fn, normalizer_params, biases, activation_fn, outputs_collections, opened.name
        )


@add_arg_scope
def separable_conv2d(
    inputs: Any,
    num_outputs: int | None,
    kernel_size: Sizes,
    depth_multiplier: int = 1,
    stride: Sizes = 1,
    padding: str = "SAME",
    data_format: str = "NHWC",
    rate: Sizes = 1,
    activation_fn: Callable[..., Any] | None = tf.nn.relu,
    normalizer_fn: Callable[..., Any] | None = None,
    normalizer_params: Mapping[str, Any] | None = None,
    weights_initializer: Any = None,
    pointwise_initializer: Any = None,
    weights_regularizer: Any = None,
    biases_initializer: Any = ZEROS,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Any:
    """A convolution of each channel, and then one across them where num_outputs is given."""
    _check(data_format)
    with tf.variable_scope(scope, "SeparableConv2d", [inputs], reuse=reuse) as opened:
        inputs = tf.convert_to_tensor(inputs)
        dtype, channels = inputs.dtype.base_dtype, inputs.shape.as_list()[-1]
        first = weights_initializer or xavier_initializer()
        depthwise = model_variable(
            "depthwise_weights", [*_two(kernel_size), channels, depth_multiplier], dtype, first, weights_regularizer,
            trainable, variables_collections,
        )  # fmt: skip
        strides = [1, *_two(stride), 1]
        if num_outputs is None:
            outputs = tf.nn.depthwise_conv2d(inputs, depthwise, strides, padding, rate=_two(rate))
        else:
            pointwise = model_variable(
                "pointwise_weights", [1, 1, depth_multiplier * channels, num_outputs], dtype,
                pointwise_initializer or first, weights_regularizer, trainable, variables_collections,
            )  # fmt: skip
            outputs = tf.nn.separable_conv2d(inputs, depthwise, pointwise, strides, padding, rate=_two(rate))
        biases = _biases(
            num_outputs or depth_multiplier * channels, dtype, biases_initializer, biases_regularizer, trainable,
            variables_collections,
        )  # fmt: skip
        return finish(
            outputs, normalizer_fn, normalizer_params, biases, activation_fn, outputs_collections, opened.name
        )


@add_arg_scope
def max_pool2d(
    inputs: Any,
    kernel_size: Sizes,
    stride: Sizes = 2,
    padding: str = "VALID",
    data_format: str = "NHWC",
    outputs_collections: Any = None,
    scope: Any = None,
) -> Any:
    """The largest of each window."""
    _check(data_format)
    with tf.name_scope(scope, "MaxPool2D", [inputs]) as name:
        pooled = tf.nn.max_pool2d(inputs, [1, *_two(kernel_size), 1], [1, *_two(stride), 1], padding)
        return collect(outputs_collections, name, pooled)


@add_arg_scope
def avg_pool2d(
    inputs: Any,
    kernel_size: Sizes,
    stride: Sizes = 2,
    padding: str = "VALID",
    data_format: str = "NHWC",
    outputs_collections: Any = None,
    scope: Any = None,
) -> Any:
    """The mean of each window."""
    _check(data_format)
    with tf.name_scope(scope, "AvgPool2D", [inputs]) as name:
        pooled = tf.nn.avg_pool2d(inputs, [1, *_two(kernel_size), 1], [1, *_two(stride), 1], padding)
        return collect(outputs_collections, name, pooled)


convolution = convolution2d = conv2d
convolution2d_transpose = conv2d_transpose
separable_convolution2d = separable_conv2d
