"""The model zoo's encoder and decoder layers: ours with the zoo's defaults, argument order and masks."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from portwright import layers
from portwright.compat.modelzoo_attention import XAVIER, merge_padding, rename_attention
from portwright.layers.activations import Activation
from portwright.layers.attention import RotaryEmbedding
from portwright.layers.block_parts import Device
from portwright.layers.blocks import LayerPast
from portwright.layers.initializers import InitializerSpec


class _ZooBlock(nn.Module):
    """What the zoo's layers have in common: how they read checkpoints."""

    def _load_from_state_dict(self, state_dict: MutableMapping[str, Any], prefix: str, *args: Any) -> None:
        for name in ("self_attn", "multihead_attn"):
            attention = getattr(self, name, None)
            if isinstance(attention, layers.MultiheadAttention):
                rename_attention(state_dict, f"{prefix}{name}.", attention)
        for place, name in enumerate(("linear1", "linear2")):
            for kind in ("weight", "bias"):
                parts = [
                    state_dict.pop(f"{prefix}ffn.ffn.{place}.{linear}.{kind}", None)
                    for linear in ("linear_layer", "linear_layer_for_glu")
                ]
                found = [part for part in parts if part is not None]
                if found:  # value and gate are one product here
                    state_dict[f"{prefix}{name}.{kind}"] = torch.cat(found)
        super()._load_from_state_dict(state_dict, prefix, *args)


class TransformerEncoderLayer(_ZooBlock, layers.TransformerEncoderLayer):
    """The zoo's encoder layer."""

    has_ff_layer1_dropout = False

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "gelu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = True,
        norm_first: bool = False,
        device: Device = None,
        attention_dropout_rate: float | None = None,
        attention_type: str = "scaled_dot_product",
        use_projection_bias_in_attention: bool = False,
        use_ffn_bias_in_attention: bool = False,
        use_ffn_bias: bool = False,
        attention_initializer: InitializerSpec = XAVIER,
        ffn_initializer: InitializerSpec = XAVIER,
        **options: Any,
    ) -> None:
        options.setdefault("use_ff_layer1_dropout", self.has_ff_layer1_dropout)
        super().__init__(
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            batch_first,
            norm_first,
            True,
            device,
            attention_dropout_rate=attention_dropout_rate,
            attention_type=attention_type,
            use_projection_bias_in_attention=use_projection_bias_in_attention,
            use_ffn_bias_in_attention=use_ffn_bias_in_attention,
            use_ffn_bias=use_ffn_bias,
            attention_initializer=attention_initializer,
            ffn_initializer=ffn_initializer,
            **options,
        )

    def forward(  # type: ignore[override]
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        rotary_position_embedding_helper: RotaryEmbedding | None = None,
        self_attn_position_bias: Tensor | None = None,
        *,
        is_causal: bool = False,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        src_mask, src_key_padding_mask = merge_padding(src_mask, src_key_padding_mask)
        return super().forward(
            src,
            src_mask,
            src_key_padding_mask,
            is_causal,
            rotary_position_embedding_helper=rotary_position_embedding_helper,
            self_attn_position_bias=self_attn_position_bias,
            position_ids=position_ids,
        )


class TransformerDecoderLayer(_ZooBlock, layers.TransformerDecoderLayer):
    """The zoo's decoder layer."""

    has_ff_layer1_dropout = False

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "gelu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = True,
        norm_first: bool = False,
        device: Device = None,
        add_cross_attention: bool = True,
        attention_dropout_rate: float | None = None,
        attention_type: str = "scaled_dot_product",
        use_projection_bias_in_attention: bool = False,
        use_ffn_bias_in_attention: bool = False,
        use_ffn_bias: bool = False,
        attention_initializer: InitializerSpec = XAVIER,
        ffn_initializer: InitializerSpec = XAVIER,
        **options: Any,
    ) -> None:
        options.setdefault("use_ff_layer1_dropout", self.has_ff_layer1_dropout)
        super().__init__(
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            batch_first,
            norm_first,
            True,
            device,
            add_cross_attention=add_cross_attention,
            attention_dropout_rate=attention_dropout_rate,
            attention_type=attention_type,
            use_projection_bias_in_attention=use_projection_bias_in_attention,
            use_ffn_bias_in_attention=use_ffn_bias_in_attention,
            use_ffn_bias=use_ffn_bias,
            attention_initializer=attention_initializer,
            ffn_initializer=ffn_initializer,
            **options,
        )

    def forward(  # type: ignore[override]
        self,
        tgt: Tensor,
        memory: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        rotary_position_embedding_helper: RotaryEmbedding | None = None,
        past_kv: LayerPast | None = None,
        cache_present_kv: bool = False,
        self_attn_position_bias: Tensor | None = None,
        cross_attn_position_bias: Tensor | None = None,
        layer_idx: int | None = None,
        *,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        position_ids: Tensor | None = None,
    ) -> Any:
        tgt_mask, tgt_key_padding_mask = merge_padding(tgt_mask, tgt_key_padding_mask)
        memory_mask, memory_key_padding_mask = merge_padding(memory_mask, memory_key_padding_mask)
        return super().forward(
            tgt,
            memory,
            tgt_mask,
            memory_mask,
            tgt_key_padding_mask,
            memory_key_padding_mask,
            tgt_is_causal,
            memory_is_causal,
            rotary_position_embedding_helper=rotary_position_embedding_helper,
            past_kv=past_kv,
            cache_present_kv=cache_present_kv,
            self_attn_position_bias=self_attn_position_bias,
            cross_attn_position_bias=cross_attn_position_bias,
            position_ids=position_ids,
        )


class GPTJDecoderLayer(layers.GPTJDecoderLayer, TransformerDecoderLayer):
    """The zoo's layer of GPT-J, and with `use_untied_layer_norm` of GPT-NeoX."""
