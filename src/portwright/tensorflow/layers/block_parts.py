"""What encoder and decoder layers are made of, and the options that the model zoo has beyond torch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from portwright.errors import UserError, suggest
from portwright.tensorflow.layers.activations import Activation
from portwright.tensorflow.layers.attention import MultiheadAttention, MultiQueryAttention
from portwright.tensorflow.layers.base import BaseLayer
from portwright.tensorflow.layers.dense import Dense
from portwright.tensorflow.layers.dropout import Dropout
from portwright.tensorflow.layers.initializers import InitializerSpec
from portwright.tensorflow.layers.linformer import LinformerAttention
from portwright.tensorflow.layers.norms import LayerNorm, get_norm

ATTENTION_MODULES: dict[str, type[MultiheadAttention]] = {
    "aiayn_attention": MultiheadAttention,
    "multiquery_attention": MultiQueryAttention,
    "linformer_attention": LinformerAttention,
}


class BlockOptions(TypedDict, total=False):
    """What the model zoo's layers take beyond torch's."""

    attention_module: str | type[MultiheadAttention]  # a name of ATTENTION_MODULES, or a class of your own
    extra_attention_params: Mapping[str, Any]  # keywords of that module, such as num_kv_groups
    attention_type: str
    attention_dropout_rate: float | None  # None: `dropout`
    attention_initializer: InitializerSpec | None  # None: xavier_uniform
    attention_output_layer_initializer: InitializerSpec | None  # None: attention_initializer
    use_projection_bias_in_attention: bool | None  # None: `bias`
    use_ffn_bias_in_attention: bool | None  # None: `bias`
    use_ffn_bias: bool | None  # None: `bias`
    ffn_initializer: InitializerSpec | None  # None: xavier_uniform
    ffn_output_layer_initializer: InitializerSpec | None  # None: ffn_initializer
    ffn_dropout_rate: float | None  # None: `dropout`
    use_ff_layer1_dropout: bool  # after the activation; True
    use_ff_layer2_dropout: bool  # after the second product; True
    norm_layer: str | Callable[..., BaseLayer] | None  # None: LayerNorm
    dropout_seed: int | None


def check_options(options: BlockOptions) -> None:
    """Refuses a keyword that no layer knows, naming the nearest."""
    for name in options:
        if name not in BlockOptions.__annotations__:
            raise UserError(f"Unknown option {name!r}.", suggest(name, BlockOptions.__annotations__))


class Block(BaseLayer):
    """What encoder and decoder layers have in common: how their parts are made."""

    def _make_attention(
        self, name: str, d_model: int, nhead: int, dropout: float, bias: bool, options: BlockOptions
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
            attention_type=options.get("attention_type", "scaled_dot_product"),
            use_projection_bias=options.get("use_projection_bias_in_attention"),
            use_ffn_bias=options.get("use_ffn_bias_in_attention"),
            attention_initializer=options.get("attention_initializer") or "xavier_uniform",
            output_layer_initializer=options.get("attention_output_layer_initializer"),
            dropout_seed=options.get("dropout_seed"),
            name=name,
            dtype=self.policy,
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
    ) -> None:
        chosen = options.get("use_ffn_bias")
        has_bias = bias if chosen is None else chosen
        first = options.get("ffn_initializer") or "xavier_uniform"
        second = options.get("ffn_output_layer_initializer") or first
        self.linear1 = Dense(dim_feedforward, activation, has_bias, first, name="linear1", dtype=self.policy)
        self.linear2 = Dense(d_model, None, has_bias, second, name="linear2", dtype=self.policy)
        self.dropout = self._make_dropout(
            "dropout", feed_forward_rate(options, dropout, "use_ff_layer1_dropout"), options
        )

    def _make_dropout(self, name: str, rate: float, options: BlockOptions) -> Dropout:
        return Dropout(rate, seed=options.get("dropout_seed"), name=name, dtype=self.policy)

    def _make_norm(self, name: str, eps: float, bias: bool, options: BlockOptions) -> BaseLayer:
        layer = options.get("norm_layer")
        if layer is None or layer is LayerNorm:
            return LayerNorm(eps, bias=bias, name=name, dtype=self.policy)
        return get_norm(layer)(eps=eps, name=name, dtype=self.policy)

    def _feed(self, x: Any, training: bool) -> Any:
        return self.linear2(self.dropout(self.linear1(x), training=training))


def feed_forward_rate(options: BlockOptions, dropout: float, switch: str) -> float:
    """The dropout of a product of the feed-forward, which `switch` may turn off."""
    rate = options.get("ffn_dropout_rate")
    return (dropout if rate is None else rate) if options.get(switch, True) else 0.0
