"""Torch's multi-head attention under a mask, written out so that the mask may be of another precision than the scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["TransformerDecoder", "TransformerEncoder", "multi_head_attention_forward"]


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """F.multi_head_attention_forward without extra keys: bias_k, bias_v, static_k, static_v and add_zero_attn."""
    if add_zero_attn or any(extra is not None for extra in (bias_k, bias_v, static_k, static_v)):
        raise NotImplementedError("attention with keys added has no equal form")
    if query.shape[-1] != embed_dim_to_check or embed_dim_to_check % num_heads:
        raise AssertionError(
            f"{num_heads} heads of {embed_dim_to_check} features do not fit {query.shape[-1]}"
        )
    if is_causal and attn_mask is None:
        raise RuntimeError("is_causal is a hint about attn_mask, which must be given too")
    batched = query.dim() == 3
    if not batched:
        query, key, value = (part.unsqueeze(1) for part in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    if use_separate_proj_weight:
        weights = [q_proj_weight, k_proj_weight, v_proj_weight]
    else:
        weights = [None] * 3 if in_proj_weight is None else list(in_proj_weight.chunk(3))
    biases = [None] * 3 if in_proj_bias is None else list(in_proj_bias.chunk(3))
    heads_NHLD = []
    for part, weight, bias in zip((query, key, value), weights, biases, strict=True):
        if weight is None:
            raise AssertionError("attention needs weights for query, key and value")
        projected = F.linear(part, weight, bias)
        split = projected.reshape(*projected.shape[:2], num_heads, embed_dim_to_check // num_heads)
        heads_NHLD.append(split.permute(1, 2, 0, 3))
    q, k, v = heads_NHLD
    scores = torch.matmul(q * math.sqrt(1.0 / q.shape[-1]), k.transpose(-2, -1))
    scores = _masked(scores, attn_mask, num_heads)
    if key_padding_mask is not None:
        scores = _masked(scores, key_padding_mask.unsqueeze(1).unsqueeze(2), num_heads)
    attention = torch.softmax(scores, -1)
    if dropout_p > 0.0 and training:
        attention = F.dropout(attention, dropout_p)
    mixed = torch.matmul(attention, v).permute(2, 0, 1, 3)
    output = F.linear(mixed.reshape(query.shape), out_proj_weight, out_proj_bias)
    if not need_weights:
        return (output if batched else output.squeeze(1)), None
    seen = attention.mean(1) if average_attn_weights else attention
    return (output, seen) if batched else (output.squeeze(1), seen.squeeze(0))


def _masked(scores: Tensor, mask: Tensor | None, num_heads: int) -> Tensor:
    """A mask (queries, keys), (batch x heads, queries, keys) or already of four dimensions: true means hidden, numbers are added."""
    if mask is None:
        return scores
    if mask.dim() == 3:
        mask = mask.reshape(-1, num_heads, *mask.shape[1:])
    return scores.masked_fill(mask, -math.inf) if mask.dtype == torch.bool else scores + mask


class TransformerEncoder(nn.TransformerEncoder):
    """nn.TransformerEncoder; a mask of which nothing is said is taken as it is, not tested for being causal."""

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        return super().forward(src, _beside(mask, src), src_key_padding_mask, bool(is_causal))


class TransformerDecoder(nn.TransformerDecoder):
    """nn.TransformerDecoder; a mask of which nothing is said is taken as it is, not tested for being causal."""

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        return super().forward(
            tgt, memory, _beside(tgt_mask, tgt), _beside(memory_mask, tgt), tgt_key_padding_mask, memory_key_padding_mask,
            bool(tgt_is_causal), memory_is_causal,
        )  # fmt: skip


def _beside(mask: Tensor | None, x: Tensor) -> Tensor | None:
    """Moves a mask to the device of `x`: torch ignores a causal mask on the host, but here it is used."""
    return None if mask is None else mask.to(x.device)
