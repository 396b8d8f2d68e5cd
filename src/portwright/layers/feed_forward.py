"""A stack of dense layers, each with its activation and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from portwright.errors import UserError
from portwright.layers.activations import Activation, get_activation, is_gated
from portwright.layers.initializers import InitializerSpec, get_initializer


class SingleFeedForwardLayer(nn.Module):
    """A linear layer, its activation and its dropout; for a gated activation it computes value and gate together."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        use_bias: bool = True,
        activation: str | Activation | None = None,
        dropout: float | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        width = 2 * out_features if is_gated(activation) else out_features
        self.linear_layer = nn.Linear(in_features, width, bias=use_bias, device=device, dtype=dtype)
        self.act_layer = None if activation is None else get_activation(activation)
        self.dropout_layer = nn.Dropout(dropout) if dropout else None

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.linear_layer(inputs)
        if self.act_layer is not None:
            outputs = self.act_layer(outputs)
        return outputs if self.dropout_layer is None else self.dropout_layer(outputs)


class FeedForwardNetwork(nn.Module):
    """Dense layers of `layers_units` units, one after another.

    Activations and dropout rates are given one a layer, None where there is none. The model zoo's own class, in
    compat/, has no biases by default.
    """

    def __init__(
        self,
        input_unit: int,
        layers_units: Sequence[int],
        layers_activation: Sequence[str | Activation | None] | None = None,
        layers_dropout_rates: Sequence[float | None] | None = None,
        use_bias: bool = True,
        kernel_initializer: InitializerSpec = "xavier_uniform",
        bias_initializer: InitializerSpec = "zeros",
        output_layer_initializer: InitializerSpec | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        units = [input_unit, *layers_units]
        if len(units) < 2 or min(units) < 1:
            raise UserError(
                f"input_unit={input_unit} and layers_units={list(layers_units)} make no network.",
                "Give at least one layer, and widths above 0.",
            )
        activations: Sequence[str | Activation | None] = _one_each(
            "layers_activation", layers_activation, len(layers_units)
        )
        rates = _one_each("layers_dropout_rates", layers_dropout_rates, len(layers_units))
        self.kernel_initializer = kernel_initializer
        self.bias_initializer = bias_initializer
        self.output_layer_initializer = output_layer_initializer
        self.ffn = nn.ModuleList(
            SingleFeedForwardLayer(width_in, width_out, use_bias, activation, rate, device, dtype)
            for width_in, width_out, activation, rate in zip(
                units, units[1:], activations, rates, strict=False
            )
        )
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for index, layer in enumerate(self.ffn):
            assert isinstance(layer, SingleFeedForwardLayer)
            linear = layer.linear_layer
            is_last = index == len(self.ffn) - 1
            spec = self.output_layer_initializer if is_last else None
            # An initializer treats value and gate as two matrices, though they are stored as one.
            width = linear.out_features // 2 if is_gated(layer.act_layer) else linear.out_features
            for weight in torch.split(linear.weight.detach(), width):
                get_initializer(spec or self.kernel_initializer)(weight)
            if linear.bias is not None:
                get_initializer(self.bias_initializer)(linear.bias.detach())

    def reset_parameters(self) -> None:
        """Draws the weights anew."""
        self._reset_parameters()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = inputs
        for layer in self.ffn:
            outputs = layer(outputs)
        return outputs


T = TypeVar("T")


def _one_each(name: str, given: Sequence[T | None] | None, count: int) -> Sequence[T | None]:
    if given is None:
        return [None] * count
    if isinstance(given, str) or len(given) != count:
        raise UserError(f"{name}={given!r} was given for {count} layers.", f"Give a list of {count}.")
    return given
