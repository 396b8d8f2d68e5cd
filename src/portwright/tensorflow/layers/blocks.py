"""Encoder and decoder layers: torch.nn's arguments, with the model zoo's options as keywords."""

from __future__ import annotations

from typing import Any

from typing_extensions import Unpack

from portwright.errors import UserError
from portwright.tensorflow.layers.activations import Activation
from portwright.tensorflow.layers.attention import KeyValue, RotaryEmbedding
from portwright.tensorflow.layers.base import check_sizes
from portwright.tensorflow.layers.block_parts import Block, BlockOptions, check_options, feed_forward_rate


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
        super().__init__(name=name, dtype=dtype)
        check_options(options)
        check_sizes(d_model=d_model, nhead=nhead, dim_feedforward=dim_feedforward)
        self.norm_first = norm_first
        self.self_attn = self._make_attention("self_attn", d_model, nhead, dropout, bias, options)
        self._make_feed_forward(d_model, dim_feedforward, dropout, activation, bias, options)
        self.norm1 = self._make_norm("norm1", layer_norm_eps, bias, options)
        self.norm2 = self._make_norm("norm2", layer_norm_eps, bias, options)
        self.dropout1 = self._make_dropout("dropout1", dropout, options)
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
        super().__init__(name=name, dtype=dtype)
        check_options(options)
        check_sizes(d_model=d_model, nhead=nhead, dim_feedforward=dim_feedforward)
        self.norm_first, self.add_cross_attention = norm_first, add_cross_attention
        self.self_attn = self._make_attention("self_attn", d_model, nhead, dropout, bias, options)
        self._make_feed_forward(d_model, dim_feedforward, dropout, activation, bias, options)
        self.norm1 = self._make_norm("norm1", layer_norm_eps, bias, options)
        self.norm3 = self._make_norm("norm3", layer_norm_eps, bias, options)
        self.dropout1 = self._make_dropout("dropout1", dropout, options)
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
