"""The parts of encoder and decoder layers, and the model zoo's options beyond torch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from portwright.errors import UserError, suggest
from portwright.layers.activations import Activation, get_activation, is_gated
from portwright.layers.attention import MultiheadAttention, MultiQueryAttention
from portwright.layers.initializers import InitializerSpec, get_initializer
from portwright.layers.linformer import LinformerAttention
from portwright.layers.norms import get_norm

Device = torch.device | str | int | None

ATTENTION_MODULES: dict[str, type[MultiheadAttention]] = {
    "aiayn_attention": MultiheadAttention,
    "multiquery_attention": MultiQueryAttention,
    "linformer_attention": LinformerAttention,
}


class BlockOptions(TypedDict, total=False):
    """The options of the model zoo's layers beyond torch's."""

    attention_module: str | type[MultiheadAttention]  # a name of ATTENTION_MODULES, or a class of your own
    extra_attention_params: Mapping[str, Any]  # keywords of that module, such as num_kv_groups
    attention_type: str
    attention_dropout_rate: float | None  # None: `dropout`
    attention_initializer: InitializerSpec | None  # None: torch's
    attention_output_layer_initializer: InitializerSpec | None  # None: attention_initializer
    use_projection_bias_in_attention: bool | None  # None: `bias`
    use_ffn_bias_in_attention: bool | None  # None: `bias`
    use_ffn_bias: bool | None  # None: `bias`
    ffn_initializer: InitializerSpec | None  # None: torch's
    ffn_output_layer_initializer: InitializerSpec | None  # None: ffn_initializer
    ffn_dropout_rate: float | None  # None: `dropout`
    use_ff_layer1_dropout: bool  # after the activation; True
    use_ff_layer2_dropout: bool  # after the second product; True
    norm_layer: str | Callable[..., nn.Module] | None  # None: LayerNorm


INITIALIZER_OPTIONS = (
    "attention_initializer",
    "attention_output_layer_initializer",
    "ffn_initializer",
    "ffn_output_layer_initializer",
)


def check_options(options: BlockOptions) -> None:
    """Refuses an unknown keyword, and names the nearest known one."""
    for name in options:
        if name not in BlockOptions.__annotations__:
            raise UserError(f"Unknown option {name!r}.", suggest(name, BlockOptions.__annotations__))


class Block(nn.Module):
    """The base of encoder and decoder layers, which makes their parts."""

    ffn_initializer: InitializerSpec | None = None
    ffn_output_layer_initializer: InitializerSpec | None = None

    # Set by torch's classes, whose attributes and names these layers keep.
    linear1: nn.Linear
    linear2: nn.Linear
    dropout: nn.Dropout
    dropout1: nn.Dropout
    self_attn: nn.MultiheadAttention

    def _make_attention(
        self,
        d_model: int,
        nhead: int,
        dropout: float,
        bias: bool,
        batch_first: bool,
        options: BlockOptions,
        device: Device,
        dtype: torch.dtype | None,
        kv_dim: int | None = None,
    ) -> MultiheadAttention:
        module = options.get("attention_module") or "aiayn_attention"
        if isinstance(module, str):
            if module.lower() not in ATTENTION_MODULES:
                raise UserError(f"Unknown attention_module {module!r}.", suggest(module, ATTENTION_MODULES))
            module = ATTENTION_MODULES[module.lower()]
        rate = options.get("attention_dropout_rate")
        return module(
            d_model,
            nhead,
            dropout=dropout if rate is None else rate,
            bias=bias,
            batch_first=batch_first,
            kdim=kv_dim,
            vdim=kv_dim,
            device=device,
            dtype=dtype,
            attention_type=options.get("attention_type", "scaled_dot_product"),
            use_projection_bias=options.get("use_projection_bias_in_attention"),
            use_ffn_bias=options.get("use_ffn_bias_in_attention"),
            attention_initializer=options.get("attention_initializer"),
            output_layer_initializer=options.get("attention_output_layer_initializer"),
            **options.get("extra_attention_params", {}),
        )

    def _make_feed_forward(
        self,
        d_model: int,
        dim_feedforward: int,
        dropout: float,
        activation: str | Activation,
        bias: bool,
        options: BlockOptions,
        device: Device,
        dtype: torch.dtype | None,
    ) -> None:
        chosen = options.get("use_ffn_bias")
        has_bias = bias if chosen is None else chosen
        width = 2 * dim_feedforward if is_gated(activation) else dim_feedforward
        self.ffn_initializer = options.get("ffn_initializer")
        self.ffn_output_layer_initializer = options.get("ffn_output_layer_initializer")
        self.linear1 = nn.Linear(d_model, width, bias=has_bias, device=device, dtype=dtype)
        self.dropout = nn.Dropout(feed_forward_rate(options, dropout, "use_ff_layer1_dropout"))
        self.linear2 = nn.Linear(dim_feedforward, d_model, bias=has_bias, device=device, dtype=dtype)

    def _set_activation(self, activation: str | Activation) -> None:
        """Sets the activation; called last, so that one with weights follows the norms in state_dict as in torch's layers."""
        self.activation = get_activation(activation)
        self._initialize_feed_forward()

    def _initialize_feed_forward(self) -> None:
        """Initializes both linear layers if an initializer was given; else torch's weights stay."""
        first, second = self.ffn_initializer, self.ffn_output_layer_initializer or self.ffn_initializer
        # An initializer treats value and gate as two matrices, though they are stored as one.
        parts = 2 if is_gated(self.activation) else 1
        if first is not None:
            for weight in self.linear1.weight.detach().chunk(parts):
                get_initializer(first)(weight)
        if second is not None:
            get_initializer(second)(self.linear2.weight.detach())
        for linear, spec in ((self.linear1, first), (self.linear2, second)):
            if spec is not None and linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def _reset_parameters(self) -> None:
        for part in self.children():
            reset = getattr(part, "reset_parameters", None)
            if reset is not None:
                reset()
        self._initialize_feed_forward()

    def reset_parameters(self) -> None:
        """Draws the weights anew."""
        self._reset_parameters()

    def _sa_block(
        self,
        x: Tensor,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool = False,
        **extras: Any,
    ) -> Tensor:
        attended = self.self_attn(
            x,
            x,
            x,
            attn_mask=attn_mask,
            key_padding_mask=key_padding_mask,
            need_weights=False,
            is_causal=is_causal,
            **extras,
        )[0]
        return self.dropout1(attended)

    def _feed(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


def feed_forward_rate(options: BlockOptions, dropout: float, switch: str) -> float:
    rate = options.get("ffn_dropout_rate")
    return (dropout if rate is None else rate) if options.get(switch, True) else 0.0


def make_norm(
    d_model: int, eps: float, bias: bool, options: BlockOptions, device: Device, dtype: torch.dtype | None
) -> Any:
    layer = options.get("norm_layer")
    if layer is None or layer is nn.LayerNorm:
        return nn.LayerNorm(d_model, eps=eps, bias=bias, device=device, dtype=dtype)
    return get_norm(layer)(d_model, eps=eps, device=device, dtype=dtype)


def given(**arguments: Any) -> dict[str, Any]:
    """The arguments that are not None, so that modules with torch's arguments only can be called too."""
    return {name: value for name, value in arguments.items() if value is not None}
