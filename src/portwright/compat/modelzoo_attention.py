"""The model zoo's attention: ours with the zoo's defaults, argument order and results, and its masks."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor

from portwright import layers
from portwright.layers.attention import RotaryEmbedding
from portwright.layers.bias import attn_mask_to_4d, combine_masks
from portwright.layers.block_parts import Device
from portwright.layers.initializers import InitializerSpec
from portwright.layers.multi_query import check_kv_groups

XAVIER = "xavier_uniform"


def _as_mask(mask: Tensor | None) -> Tensor | None:
    """The zoo takes integers for masks in which what is not 0 is masked."""
    return mask if mask is None or mask.is_floating_point() else mask.bool()


def merge_padding(attn_mask: Tensor | None, padding: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The zoo's padding masks may have three or four dimensions; ours that do are attention masks."""
    attn_mask, padding = _as_mask(attn_mask), _as_mask(padding)
    if padding is None or padding.dim() < 3:
        return attn_mask, padding
    padding = padding[:, None] if padding.dim() == 3 else padding
    if attn_mask is None:
        return padding, None
    return combine_masks(attn_mask_to_4d(attn_mask, padding.shape[0], 1), padding), None


class MultiheadAttention(layers.MultiheadAttention):
    """The zoo's attention: `forward` gives a tensor, or with weights or keys to cache a pair."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        batch_first: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        use_projection_bias: bool | None = None,
        use_ffn_bias: bool = False,
        attention_initializer: InitializerSpec = XAVIER,
        output_layer_initializer: InitializerSpec | None = None,
        attention_type: str = "scaled_dot_product",
        device: Device = None,
        **options: Any,
    ) -> None:
        super().__init__(
            embed_dim,
            num_heads,
            dropout,
            False,
            add_bias_kv,
            add_zero_attn,
            kdim,
            vdim,
            batch_first,
            device,
            use_projection_bias=bool(use_projection_bias),
            use_ffn_bias=use_ffn_bias,
            attention_initializer=attention_initializer,
            output_layer_initializer=output_layer_initializer,
            attention_type=attention_type,
            **options,
        )

    def forward(  # type: ignore[override]
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        average_attn_weights: bool = True,
        past_kv: Any = None,
        cache_present_kv: bool = False,
        past_kv_self_attn: bool = True,
        position_bias: Tensor | None = None,
        rotary_position_embedding_helper: RotaryEmbedding | None = None,
        layer_idx: int | None = None,
        position_ids: Tensor | None = None,
    ) -> Any:
        attn_mask, key_padding_mask = merge_padding(attn_mask, key_padding_mask)
        output, weights, present = super().forward(
            q,
            k,
            v,
            key_padding_mask,
            need_weights,
            attn_mask,
            average_attn_weights,
            past_kv=past_kv,
            cache_present_kv=True,
            past_kv_self_attn=past_kv_self_attn,
            position_bias=position_bias,
            rotary_position_embedding_helper=rotary_position_embedding_helper,
            position_ids=position_ids,
        )
        if cache_present_kv:
            return output, present
        return (output, weights) if need_weights else output

    def _load_from_state_dict(self, state_dict: MutableMapping[str, Any], prefix: str, *args: Any) -> None:
        rename_attention(state_dict, prefix, self)
        super()._load_from_state_dict(state_dict, prefix, *args)


class MultiQueryAttention(MultiheadAttention):
    """The zoo's attention with keys and values shared by groups of heads."""

    def __init__(
        self, embed_dim: int, num_heads: int, *args: Any, num_kv_groups: int = 1, **kwargs: Any
    ) -> None:
        self.num_kv_groups = check_kv_groups(num_heads, num_kv_groups)
        super().__init__(embed_dim, num_heads, *args, **kwargs)


def rename_attention(
    state_dict: MutableMapping[str, Any], prefix: str, attention: layers.MultiheadAttention
) -> None:
    """Puts the zoo's three matrices into our one, and gives the output projection our name."""
    for kind in ("weight", "bias"):
        names = [f"{prefix}proj_{part}_dense_layer.{kind}" for part in "qkv"]
        if all(name in state_dict for name in names):
            parts = [state_dict.pop(name) for name in names]
            if kind == "bias" or attention.in_proj_weight is not None:
                state_dict[f"{prefix}in_proj_{kind}"] = torch.cat(parts)
            else:
                for part, tensor in zip("qkv", parts, strict=True):
                    state_dict[f"{prefix}{part}_proj_weight"] = tensor
        output = state_dict.pop(f"{prefix}proj_output_dense_layer.{kind}", None)
        if output is not None:
            state_dict[f"{prefix}out_proj.{kind}"] = output
