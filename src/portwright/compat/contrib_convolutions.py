"""Convolutions and pools of tf.contrib.layers, with its names of variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from portwright.compat.contrib_layers import Options
from portwright.compat.contrib_scopes import add_arg_scope
from portwright.compat.contrib_variables import collect
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
    *given: Any,
    **named: Any,
) -> Any:
    """A convolution over images."""
    _check(data_format)
    options = Options(*given, **named)
    with tf.variable_scope(options.scope, "Conv", [inputs], reuse=options.reuse) as opened:
        inputs = tf.convert_to_tensor(inputs)
        dtype, channels = inputs.dtype.base_dtype, inputs.shape.as_list()[-1]
        weights = options.weights("weights", [*_two(kernel_size), channels, num_outputs], dtype)
        outputs = tf.nn.conv2d(
            inputs, weights, strides=[1, *_two(stride), 1], padding=padding, dilations=[1, *_two(rate), 1]
        )
        return options.finish(outputs, num_outputs, dtype, opened.name)


@add_arg_scope
def conv2d_transpose(
    inputs: Any,
    num_outputs: int,
    kernel_size: Sizes,
    stride: Sizes = 1,
    padding: str = "SAME",
    data_format: str = "NHWC",
    *given: Any,
    **named: Any,
) -> Any:
    """A convolution's transpose, which makes images larger."""
    _check(data_format)
    options = Options(*given, **named)
    with tf.variable_scope(options.scope, "Conv2d_transpose", [inputs], reuse=options.reuse) as opened:
        inputs = tf.convert_to_tensor(inputs)
        dtype, kernel, strides = inputs.dtype.base_dtype, _two(kernel_size), _two(stride)
        known = inputs.shape.as_list()
        weights = options.weights("weights", [*kernel, num_outputs, known[-1]], dtype)
        places = tf.shape(inputs)
        added = [max(k - s, 0) if padding == "VALID" else 0 for k, s in zip(kernel, strides, strict=True)]
        shape = tf.stack(
            [places[0], *(places[axis + 1] * strides[axis] + added[axis] for axis in (0, 1)), num_outputs]
        )
        outputs = tf.nn.conv2d_transpose(inputs, weights, shape, [1, *strides, 1], padding)
        sizes = [None if known[a + 1] is None else known[a + 1] * strides[a] + added[a] for a in (0, 1)]
        outputs.set_shape([known[0], *sizes, num_outputs])
        return options.finish(outputs, num_outputs, dtype, opened.name)


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
    normalizer_params: Any = None,
    weights_initializer: Any = None,
    pointwise_initializer: Any = None,
    *given: Any,
    **named: Any,
) -> Any:
    """A convolution of each channel, and then one across them where num_outputs is given."""
    _check(data_format)
    options = Options(activation_fn, normalizer_fn, normalizer_params, weights_initializer, *given, **named)
    with tf.variable_scope(options.scope, "SeparableConv2d", [inputs], reuse=options.reuse) as opened:
        inputs = tf.convert_to_tensor(inputs)
        dtype, channels = inputs.dtype.base_dtype, inputs.shape.as_list()[-1]
        depthwise = options.weights(
            "depthwise_weights", [*_two(kernel_size), channels, depth_multiplier], dtype
        )
        strides = [1, *_two(stride), 1]
        if num_outputs is None:
            outputs = tf.nn.depthwise_conv2d(inputs, depthwise, strides, padding, rate=_two(rate))
        else:
            across = [1, 1, depth_multiplier * channels, num_outputs]
            pointwise = options.weights("pointwise_weights", across, dtype, pointwise_initializer)
            outputs = tf.nn.separable_conv2d(inputs, depthwise, pointwise, strides, padding, rate=_two(rate))
        return options.finish(outputs, num_outputs or depth_multiplier * channels, dtype, opened.name)


def _pool(function: str, name: str, pool: Callable[..., Any]) -> Callable[..., Any]:
    def pooled(
        inputs: Any,
        kernel_size: Sizes,
        stride: Sizes = 2,
        padding: str = "VALID",
        data_format: str = "NHWC",
        outputs_collections: Any = None,
        scope: Any = None,
    ) -> Any:
        _check(data_format)
        with tf.name_scope(scope, name, [inputs]) as opened:
            found = pool(inputs, [1, *_two(kernel_size), 1], [1, *_two(stride), 1], padding)
            return collect(outputs_collections, opened, found)

    pooled.__name__ = function  # arg_scope finds it by this name, and repeat uses it for scopes
    return add_arg_scope(pooled)


max_pool2d = _pool("max_pool2d", "MaxPool2D", tf.nn.max_pool2d)
avg_pool2d = _pool("avg_pool2d", "AvgPool2D", tf.nn.avg_pool2d)
convolution2d = conv2d
separable_convolution2d = separable_conv2d
