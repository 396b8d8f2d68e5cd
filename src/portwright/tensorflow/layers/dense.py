"""Dense layers, feed-forward networks and poolers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import tensorflow as tf

from portwright.errors import UserError, suggest
from portwright.tensorflow.layers.activations import ACTIVATIONS, Activation, get_activation, is_gated, linear
from portwright.tensorflow.layers.base import BaseLayer, check_sizes, last_width, shape_of, wide_type
from portwright.tensorflow.layers.initializers import InitializerSpec, get_initializer, in_parts
from portwright.tensorflow.layers.norms import Dropout


class WithBias(BaseLayer):
    """A layer with an activation and, if asked for, a bias of `width` numbers."""

    width: int

    def __init__(
        self,
        activation: str | Activation | None,
        use_bias: bool,
        bias_initializer: InitializerSpec,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.activation, self.use_bias = get_activation(activation), use_bias
        self.bias_initializer = get_initializer(bias_initializer)
        self.bias = None

    def build(self, input_shape: Any) -> None:
        if self.use_bias:
            self.bias = self.add_parameter("bias", (self.width,), self.bias_initializer)
        super().build(input_shape)


class Dense(WithBias):
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
        super().__init__(activation, use_bias, bias_initializer, **kwargs)
        check_sizes(units=units)
        self.units = units
        self.width = 2 * units if is_gated(self.activation) else units
        self.kernel_initializer = get_initializer(kernel_initializer)

    def build(self, input_shape: Any) -> None:
        width_in = tf.TensorShape(input_shape)[-1]
        if width_in is None:
            raise UserError(
                f"A dense layer got the shape {input_shape}.", "Its last dimension must be known."
            )
        initializer = in_parts(self.kernel_initializer, self.width // self.units)
        self.kernel = self.add_parameter("kernel", (width_in, self.width), initializer)
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        bias = None if self.bias is None else self.to_compute(self.bias)
        return multiply(self.to_compute(inputs), self.to_compute(self.kernel), bias, self.activation)


DenseLayer = Dense


class SharedWeightsDense(WithBias):
    """A dense layer whose kernel comes with each call, such as the embedding table of a language model."""

    def __init__(
        self,
        units: int,
        activation: str | Activation | None = None,
        use_bias: bool = True,
        bias_initializer: InitializerSpec = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(activation, use_bias, bias_initializer, **kwargs)
        check_sizes(units=units)
        self.units = self.width = units

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
    # A known activation is applied to the flat product, in the same kernel; a user's function is given the real shape.
    is_known = activation in ACTIVATIONS.values()
    product = activation(product) if is_known else product
    if x.shape.rank != 2:
        product = tf.reshape(product, [*shape_of(x)[:-1], product.shape[-1]])
    return product if is_known else activation(product)


T = TypeVar("T")


class FeedForwardNetwork(BaseLayer):
    """Dense layers of `layers_units` units, one after another, named dense_0, dense_1, ...

    Activations and dropout rates are given one a layer, None where there is none.
    """

    def __init__(
        self,
        layers_units: Sequence[int],
        layers_activation: Sequence[str | Activation | None] | None = None,
        layers_dropout_rates: Sequence[float | None] | None = None,
        use_bias: bool = True,
        kernel_initializer: InitializerSpec = "glorot_uniform",
        bias_initializer: InitializerSpec = "zeros",
        output_layer_initializer: InitializerSpec | None = None,
        dropout_seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        count = len(layers_units)
        if count == 0:
            raise UserError("layers_units is empty.", "Give at least one layer.")
        activations: Sequence[str | Activation | None] = _one_each(
            "layers_activation", layers_activation, count
        )
        rates = _one_each("layers_dropout_rates", layers_dropout_rates, count)
        self.dense_layers, self.dropouts = [], []
        for index, (units, activation, rate) in enumerate(zip(layers_units, activations, rates, strict=True)):
            is_last = index == count - 1
            self.dense_layers.append(
                Dense(
                    units,
                    activation,
                    use_bias,
                    (output_layer_initializer if is_last else None) or kernel_initializer,
                    bias_initializer,
                    name=f"dense_{index}",
                    dtype=self.policy,
                )
            )
            self.dropouts.append(
                Dropout(rate or 0.0, seed=dropout_seed, name=f"dropout_{index}", dtype=self.policy)
            )

    def call(self, inputs: Any, training: bool = False) -> Any:
        outputs = inputs
        for dense, dropout in zip(self.dense_layers, self.dropouts, strict=True):
            outputs = dropout(dense(outputs), training=training)
        return outputs


def _one_each(name: str, given: Sequence[T | None] | None, count: int) -> Sequence[T | None]:
    if given is None:
        return [None] * count
    if isinstance(given, str) or len(given) != count:
        raise UserError(f"{name}={given!r} was given for {count} layers.", f"Give a list of {count}.")
    return given


POOLER_TYPES = ("mean", "max", "first", "last", "sum")


class PoolerLayer(BaseLayer):
    """Reduces an axis, 1 unless given: mean, max, first, last, sum, or None for no pooling.

    `padding_mask`, 1 for tokens and 0 for padding, keeps padding out of mean, max and sum, and lets `last` take the
    last token of each sequence. A sequence of padding alone gives zeros.
    """

    def __init__(self, pooler_type: str | None = "mean", axis: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if pooler_type is not None and pooler_type not in POOLER_TYPES:
            raise UserError(f"Unknown pooler_type {pooler_type!r}.", suggest(str(pooler_type), POOLER_TYPES))
        self.pooler_type, self.axis = pooler_type, axis

    def call(self, inputs: Any, padding_mask: Any = None) -> Any:
        x = tf.cast(inputs, wide_type(self.compute_dtype))
        kind, axis = self.pooler_type, self.axis
        if kind is None:
            return self.to_compute(inputs)
        if kind == "first":
            return self.to_compute(tf.gather(x, 0, axis=axis))
        if padding_mask is None:
            if kind == "last":
                return self.to_compute(tf.gather(x, x.shape[axis] - 1, axis=axis))
            reduce = {"mean": tf.reduce_mean, "max": tf.reduce_max, "sum": tf.reduce_sum}[kind]
            return self.to_compute(reduce(x, axis=axis))
        counted = tf.cast(padding_mask, x.dtype)
        while counted.shape.rank < x.shape.rank:
            counted = counted[..., None]
        if kind == "max":
            hidden = tf.where(counted > 0, x, tf.constant(x.dtype.min, x.dtype))
            any_token = tf.reduce_max(counted, axis=axis) > 0
            return self.to_compute(tf.where(any_token, tf.reduce_max(hidden, axis=axis), 0.0))
        if kind == "last":
            # The last token has weight 1: the one after which no token follows.
            after = tf.cumsum(counted, axis=axis, exclusive=True, reverse=True)
            counted = counted * tf.cast(tf.equal(after, 0.0), x.dtype)
        total = tf.reduce_sum(x * counted, axis=axis)
        if kind == "mean":
            total = tf.math.divide_no_nan(total, tf.reduce_sum(counted, axis=axis))
        return self.to_compute(total)


class BertPooler(BaseLayer):
    """The first token through a dense layer and tanh, as BERT's classifiers read it."""

    def __init__(
        self,
        units: int,
        activation: str | Activation = "tanh",
        kernel_initializer: InitializerSpec = "glorot_uniform",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.dense = Dense(
            units, activation, kernel_initializer=kernel_initializer, name="dense", dtype=self.policy
        )

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs[:, 0])
