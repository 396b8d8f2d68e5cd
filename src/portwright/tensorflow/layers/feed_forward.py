"""A stack of dense layers, each with its activation and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from portwright.errors import UserError
from portwright.tensorflow.layers.activations import Activation
from portwright.tensorflow.layers.base import BaseLayer
from portwright.tensorflow.layers.dense import Dense
from portwright.tensorflow.layers.dropout import Dropout
from portwright.tensorflow.layers.initializers import InitializerSpec

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
