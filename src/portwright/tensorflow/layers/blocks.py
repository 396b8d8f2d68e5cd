"""Encoder and decoder layers: torch.nn's arguments, with the model zoo's options as keywords."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from typing_extensions import Unpack

from portwright.errors import UserError, suggest
from portwright.tensorflow.layers.activations import Activation
from portwright.tensorflow.layers.attention import (
    KeyValue,
    MultiheadAttention,
    MultiQueryAttention,
    RotaryEmbedding,
)
from portwright.tensorflow.layers.base import BaseLayer, check_sizes
from portwright.tensorflow.layers.dense import Dense
from portwright.tensorflow.layers.initializers import InitializerSpec
from portwright.tensorflow.layers.linformer import LinformerAttention
from portwright.tensorflow.layers.norms import Dropout, LayerNorm, get_norm

ATTENTION_MODULES: dict[str, type[MultiheadAttention]] = {
    "aiayn_attention": MultiheadAttention,
    "multiquery_attention": MultiQueryAttention,
    "linformer_attention": LinformerAttention,
}


class BlockOptions(TypedDict, total=False):
    """Options of the model zoo's layers that torch's do not have."""

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


class Block(BaseLayer):
    """The base class of encoder and decoder layers, which makes their parts."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int,
        dropout: float,
        activation: str | Activation,
        layer_norm_eps: float,
        norm_first: bool,
        bias: bool,
        name: str | None,
        dtype: Any,
        options: BlockOptions,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        for option in options:
            if option not in BlockOptions.__annotations__:
                raise UserError(f"Unknown option {option!r}.", suggest(option, BlockOptions.__annotations__))
        check_sizes(d_model=d_model, nhead=nhead, dim_feedforward=dim_feedforward)
        self.norm_first = norm_first
        self.self_attn = self._make_attention("self_attn", d_model, nhead, dropout, bias, options)
        self._make_feed_forward(d_model, dim_feedforward, dropout, activation, bias, options)
        self.norm1 = self._make_norm("norm1", layer_norm_eps, bias, options)
        self.dropout1 = self._make_dropout("dropout1", dropout, options)

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
    """The dropout rate after a product of the feed-forward; 0 if `switch` is off."""
    rate = options.get("ffn_dropout_rate")
    return (dropout if rate is None else rate) if options.get(switch, True) else 0.0


class TransformerEncoderLayer(Block):
    """Self attention and feed-forward, each with dropout, residual and norm; `BlockOptions` names further keywords.

    The norm comes after the residual, or with `norm_first` before attention and feed-forward. The parts are named
    self_attn, linear1, linear2, norm1 and norm2.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        name: str | None = None,
        dtype: Any = None,
        **options: Unpack[BlockOptions],
    ) -> None:
        super().__init__(
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            norm_first,
            bias,
            name,
            dtype,
            options,
        )
        self.norm2 = self._make_norm("norm2", layer_norm_eps, bias, options)
        self.dropout2 = self._make_dropout(
            "dropout2", feed_forward_rate(options, dropout, "use_ff_layer2_dropout"), options
        )

    def call(
        self,
        src: Any,
        src_mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
        *,
        rotary_position_embedding_helper: RotaryEmbedding | None = None,
        self_attn_position_bias: Any = None,
        position_ids: Any = None,
        training: bool = False,
    ) -> Any:
        """Encodes [batch, sequence, width]; masks are True, or far below 0, for what is hidden."""

        def attend(x: Any) -> Any:
            attended = self.self_attn(
                x,
                attn_mask=src_mask,
                key_padding_mask=src_key_padding_mask,
                need_weights=False,
                is_causal=is_causal,
                rotary_position_embedding_helper=rotary_position_embedding_helper,
                position_bias=self_attn_position_bias,
                position_ids=position_ids,
                training=training,
            )[0]
            return self.dropout1(attended, training=training)

        def feed(x: Any) -> Any:
            return self.dropout2(self._feed(x, training), training=training)

        x = self.to_compute(src)
        if self.norm_first:
            x = x + attend(self.norm1(x))
            return x + feed(self.norm2(x))
        x = self.norm1(x + attend(x))
        return self.norm2(x + feed(x))


class TransformerDecoderLayer(Block):
    """Self attention, attention to a memory and feed-forward; what the encoder layer's docstring says holds here.

    Without `add_cross_attention` there is no memory, no multihead_attn and no norm2.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        add_cross_attention: bool = True,
        name: str | None = None,
        dtype: Any = None,
        **options: Unpack[BlockOptions],
    ) -> None:
        super().__init__(
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            norm_first,
            bias,
            name,
            dtype,
            options,
        )
        self.add_cross_attention = add_cross_attention
        self.norm3 = self._make_norm("norm3", layer_norm_eps, bias, options)
        self.dropout3 = self._make_dropout(
            "dropout3", feed_forward_rate(options, dropout, "use_ff_layer2_dropout"), options
        )
        if add_cross_attention:
            self.multihead_attn = self._make_attention(
                "multihead_attn", d_model, nhead, dropout, bias, options
            )
            self.norm2 = self._make_norm("norm2", layer_norm_eps, bias, options)
            self.dropout2 = self._make_dropout("dropout2", dropout, options)

    def call(
        self,
        tgt: Any,
        memory: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        *,
        rotary_position_embedding_helper: RotaryEmbedding | None = None,
        past_kv: KeyValue | None = None,
        cache_present_kv: bool = False,
        self_attn_position_bias: Any = None,
        cross_attn_position_bias: Any = None,
        position_ids: Any = None,
        training: bool = False,
    ) -> Any:
        """Decodes [batch, sequence, width]; with `cache_present_kv` keys and values to give as `past_kv` come along."""
        if self.add_cross_attention and memory is None:
            raise UserError(
                "The decoder layer attends to a memory and got none.",
                "Give memory, or make the layer with add_cross_attention=False.",
            )
        present: list[KeyValue] = []

        def attend(x: Any) -> Any:
            attended, _, kept = self.self_attn(
                x,
                attn_mask=tgt_mask,
                key_padding_mask=tgt_key_padding_mask,
                need_weights=False,
                is_causal=tgt_is_causal,
                past_kv=past_kv,
                cache_present_kv=True,
                rotary_position_embedding_helper=rotary_position_embedding_helper,
                position_bias=self_attn_position_bias,
                position_ids=position_ids,
                training=training,
            )
            present.append(kept)
            return self.dropout1(attended, training=training)

        def look_at_memory(x: Any) -> Any:
            attended = self.multihead_attn(
                x,
                memory,
                attn_mask=memory_mask,
                key_padding_mask=memory_key_padding_mask,
                need_weights=False,
                position_bias=cross_attn_position_bias,
                training=training,
            )[0]
            return self.dropout2(attended, training=training)

        def feed(x: Any) -> Any:
            return self.dropout3(self._feed(x, training), training=training)

        output = self._run(self.to_compute(tgt), attend, look_at_memory, feed)
        return (output, present[0]) if cache_present_kv else output

    def _run(self, x: Any, attend: Any, look_at_memory: Any, feed: Any) -> Any:
        if self.norm_first:
            x = x + attend(self.norm1(x))
            if self.add_cross_attention:
                x = x + look_at_memory(self.norm2(x))
            return x + feed(self.norm3(x))
        x = self.norm1(x + attend(x))
        if self.add_cross_attention:
            x = self.norm2(x + look_at_memory(x))
        return self.norm3(x + feed(x))


class GPTJDecoderLayer(TransformerDecoderLayer):
    """A decoder layer in which attention and feed-forward both read the normed input and are added to it together.

    With `use_untied_layer_norm` the feed-forward has a norm of its own (GPT-NeoX), else they share norm1 (GPT-J).
    The other arguments are TransformerDecoderLayer's, but the activation is gelu unless given.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        use_untied_layer_norm: bool = False,
        *,
        activation: str | Activation = "gelu",
        **kwargs: Any,
    ) -> None:
        for key in ("add_cross_attention", "norm_first"):
            if key in kwargs and kwargs.pop(key) != (key == "norm_first"):
                raise UserError(
                    f"A GPTJDecoderLayer was asked for with another {key}.",
                    "It norms first and has no memory; use TransformerDecoderLayer for others.",
                )
        super().__init__(
            d_model, nhead, activation=activation, norm_first=True, add_cross_attention=False, **kwargs
        )
        self.use_untied_layer_norm = use_untied_layer_norm

    def _run(self, x: Any, attend: Any, look_at_memory: Any, feed: Any) -> Any:
        normed = self.norm1(x)
        attended = attend(normed)
        return x + feed(self.norm3(x) if self.use_untied_layer_norm else normed) + attended
