"""Dense layers: one with weights of its own, one that uses those of another layer."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright.errors import UserError
from portwright.tensorflow.layers.activations import ACTIVATIONS, Activation, get_activation, is_gated, linear
from portwright.tensorflow.layers.base import BaseLayer, check_sizes, last_width, shape_of
from portwright.tensorflow.layers.initializers import InitializerSpec, get_initializer, in_parts


class Dense(BaseLayer):
    """A product and a bias on the last dimension; with a gated activation the product gives value and gate.

    The weights are `kernel`, [in, out], and `bias`.
    """

    def __init__(
        self,
        units: int,
        activation: str | Activation | None = None,
        use_bias: bool = True,
        kernel_initializer: InitializerSpec = "glorot_uniform",
        bias_initializer: InitializerSpec = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_sizes(units=units)
        self.units = units
        self.activation = get_activation(activation)
        self.width = 2 * units if is_gated(self.activation) else units
        self.use_bias = use_bias
        self.kernel_initializer = get_initializer(kernel_initializer)
        self.bias_initializer = get_initializer(bias_initializer)
        self.bias = None

    def build(self, input_shape: Any) -> None:
        width_in = tf.TensorShape(input_shape)[-1]
        if width_in is None:
            raise UserError(
                f"A dense layer got the shape {input_shape}.", "Its last dimension must be known."
            )
        initializer = in_parts(self.kernel_initializer, self.width // self.units)
        self.kernel = self.add_parameter("kernel", (width_in, self.width), initializer)
        if self.use_bias:
            self.bias = self.add_parameter("bias", (self.width,), self.bias_initializer)
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        bias = None if self.bias is None else self.to_compute(self.bias)
        return multiply(self.to_compute(inputs), self.to_compute(self.kernel), bias, self.activation)


DenseLayer = Dense


class SharedWeightsDense(BaseLayer):
    """A dense layer whose kernel comes with each call, such as the embedding table of a language model."""

    def __init__(
        self,
        units: int,
        activation: str | Activation | None = None,
        use_bias: bool = True,
        bias_initializer: InitializerSpec = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_sizes(units=units)
        self.units = units
        self.activation = get_activation(activation)
        self.use_bias = use_bias
        self.bias_initializer = get_initializer(bias_initializer)
        self.bias = None

    def build(self, input_shape: Any) -> None:
        if self.use_bias:
            self.bias = self.add_parameter("bias", (self.units,), self.bias_initializer)
        super().build(input_shape)

    def call(self, inputs: Any, kernel: Any, transpose_kernel: bool = True) -> Any:
        """Multiplies by the kernel, [units, in], or [in, units] with `transpose_kernel=False`."""
        expected = (self.units, inputs.shape[-1]) if transpose_kernel else (inputs.shape[-1], self.units)
        if not kernel.shape.is_compatible_with(expected):
            raise UserError(f"The shared kernel has shape {kernel.shape}.", f"Give {expected}.")
        bias = None if self.bias is None else self.to_compute(self.bias)
        return multiply(
            self.to_compute(inputs),
            self.to_compute(kernel),
            bias,
            self.activation,
            transpose=transpose_kernel,
        )


SharedWeightsDenseLayer = SharedWeightsDense


def multiply(
    x: Any, kernel: Any, bias: Any = None, activation: Activation = linear, *, transpose: bool = False
) -> Any:
    """One matrix product over the last dimension, whatever comes before it, with its bias and activation."""
    width_in = last_width(x, "the input of a product")
    rows = x if x.shape.rank == 2 else tf.reshape(x, [-1, width_in])
    product = tf.matmul(rows, kernel, transpose_b=transpose)
    if bias is not None:
        product = tf.nn.bias_add(product, bias)
    # What follows the product directly is computed in the same kernel; a function of the user's gets the real shape.
    is_known = activation in ACTIVATIONS.values()
    product = activation(product) if is_known else product
    if x.shape.rank != 2:
        product = tf.reshape(product, [*shape_of(x)[:-1], product.shape[-1]])
    return product if is_known else activation(product)
