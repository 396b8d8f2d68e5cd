"""Convolutions and pooling over images [batch, height, width, channels], and the blocks of a U-Net."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from portwright.errors import UserError, suggest
from portwright.tensorflow.layers.activations import Activation, get_activation
from portwright.tensorflow.layers.base import BaseLayer, check_sizes, shape_of
from portwright.tensorflow.layers.dense import WithBias
from portwright.tensorflow.layers.initializers import InitializerSpec, get_initializer

Size = int | Sequence[int]
_PADDINGS = ("valid", "same")
NORMS = ("batchnorm",)


def _pair(name: str, size: Size) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2:
        raise UserError(f"{name} is {size!r}.", "Give a number, or two: height and width.")
    check_sizes(**{f"{name}[{index}]": part for index, part in enumerate(pair)})
    return pair[0], pair[1]


def _padding(padding: str) -> str:
    if not isinstance(padding, str) or padding.lower() not in _PADDINGS:
        raise UserError(f"Unknown padding {padding!r}.", suggest(str(padding), _PADDINGS))
    return padding.upper()


class Conv2D(WithBias):
    """A convolution, with weights `kernel` [height, width, in, out] and `bias`."""

    def __init__(
        self,
        filters: int,
        kernel_size: Size,
        strides: Size = 1,
        padding: str = "valid",
        dilation_rate: Size = 1,
        activation: str | Activation | None = None,
        use_bias: bool = True,
        kernel_initializer: InitializerSpec = "glorot_uniform",
        bias_initializer: InitializerSpec = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(activation, use_bias, bias_initializer, **kwargs)
        check_sizes(filters=filters)
        self.filters = self.width = filters
        self.kernel_size, self.strides = _pair("kernel_size", kernel_size), _pair("strides", strides)
        self.padding, self.dilation_rate = _padding(padding), _pair("dilation_rate", dilation_rate)
        self.kernel_initializer = get_initializer(kernel_initializer)

    def build(self, input_shape: Any) -> None:
        shape = self._kernel_shape(_channels(input_shape))
        self.kernel = self.add_parameter("kernel", shape, self.kernel_initializer)
        super().build(input_shape)

    def _kernel_shape(self, channels: int) -> tuple[int, ...]:
        return (*self.kernel_size, channels, self.filters)

    def call(self, inputs: Any) -> Any:
        x = tf.nn.conv2d(
            self.to_compute(inputs),
            self.to_compute(self.kernel),
            strides=self.strides,
            padding=self.padding,
            dilations=self.dilation_rate,
        )
        return self.activation(x if self.bias is None else tf.nn.bias_add(x, self.to_compute(self.bias)))


class Conv2DTranspose(Conv2D):
    """The transpose of a convolution, which makes images larger; `kernel` is [height, width, out, in] as in Keras."""

    def __init__(
        self,
        filters: int,
        kernel_size: Size,
        strides: Size = 1,
        padding: str = "valid",
        activation: str | Activation | None = None,
        *given: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(filters, kernel_size, strides, padding, 1, activation, *given, **kwargs)

    def _kernel_shape(self, channels: int) -> tuple[int, ...]:
        return (*self.kernel_size, self.filters, channels)

    def call(self, inputs: Any) -> Any:
        batch, *sizes, _ = shape_of(inputs)
        larger = [
            size * stride + (max(window - stride, 0) if self.padding == "VALID" else 0)
            for size, stride, window in zip(sizes, self.strides, self.kernel_size, strict=True)
        ]
        x = tf.nn.conv2d_transpose(
            self.to_compute(inputs),
            self.to_compute(self.kernel),
            output_shape=tf.stack([batch, *larger, self.filters]),
            strides=self.strides,
            padding=self.padding,
        )
        if all(isinstance(size, int) for size in larger):
            x.set_shape([inputs.shape[0], *larger, self.filters])
        return self.activation(x if self.bias is None else tf.nn.bias_add(x, self.to_compute(self.bias)))


class MaxPool2D(BaseLayer):
    """The largest of each window; windows do not overlap unless `strides` says so."""

    def __init__(
        self, pool_size: Size = 2, strides: Size | None = None, padding: str = "valid", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.pool_size = _pair("pool_size", pool_size)
        self.strides = self.pool_size if strides is None else _pair("strides", strides)
        self.padding = _padding(padding)

    def call(self, inputs: Any) -> Any:
        return tf.nn.max_pool2d(self.to_compute(inputs), self.pool_size, self.strides, self.padding)


Conv2DLayer, Conv2DTransposeLayer, MaxPool2DLayer = Conv2D, Conv2DTranspose, MaxPool2D


class UNetBlock(BaseLayer):
    """Two or more convolutions of equal width, each with its norm and activation.

    `norm` is None or "batchnorm"; its moving means are updated by `updates`, which the Estimator runs.
    """

    def __init__(
        self,
        filters: int,
        kernel_size: Size = 3,
        num_convs: int = 2,
        activation: str | Activation | None = "relu",
        norm: str | None = None,
        padding: str = "same",
        kernel_initializer: InitializerSpec = "he_normal",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_sizes(num_convs=num_convs)
        if norm is not None and norm not in NORMS:
            raise UserError(f"Unknown norm {norm!r}.", suggest(str(norm), NORMS))
        self.activation = get_activation(activation)
        self.convs = [
            Conv2D(
                filters,
                kernel_size,
                padding=padding,
                use_bias=norm is None,
                kernel_initializer=kernel_initializer,
                name=f"conv_{index}",
                dtype=self.policy,
            )
            for index in range(num_convs)
        ]
        self.norms = [
            None
            if norm is None
            else tf.keras.layers.BatchNormalization(name=f"norm_{index}", dtype=self.policy)
            for index in range(num_convs)
        ]

    def call(self, inputs: Any, training: bool = False) -> Any:
        x = inputs
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = conv(x)
            x = x if norm is None else norm(x, training=training)
            x = self.activation(x)
        return x


def _channels(input_shape: Any) -> int:
    shape = tf.TensorShape(input_shape)
    if shape.rank != 4 or shape[-1] is None:
        raise UserError(
            f"A convolution got the shape {shape}.", "Give [batch, height, width, channels], channels known."
        )
    return int(shape[-1])
