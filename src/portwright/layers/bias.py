"""Turns masks into a bias of the scores, and computes attention with it.

Masks are True (bool) where nothing may be attended to, or are added to the scores (float). They become one tensor of
the scores' type, [batch, heads, queries, keys] with 1 where it repeats, in which -inf means masked. A query to which
every key is masked gets zeros, in every release of torch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from portwright.errors import UserError
from portwright.layers.masks import is_known_causal

_NEG_INF = float("-inf")
_VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
# From 2.5 on torch's attention kernels themselves give zeros where every key is masked; they gave NaN before. Seen with
# flash and math on a CPU and with cuDNN and memory-efficient attention on an H200. The same release taught them to share
# keys and values between heads.
_ZEROING_DEVICES = ("cpu", "cuda") if _VERSION >= (2, 5) else ()
_KERNEL_SHARES_HEADS = _VERSION >= (2, 5)


def to_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The bias to add to scores of a type: -inf where the mask is -inf, a type's minimum or True."""
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, _NEG_INF)
    check_mask_dtype("mask", mask)
    # A mask made in float32 keeps its minimum when it is widened.
    lowest = max(torch.finfo(mask.dtype).min, torch.finfo(torch.float32).min)
    return F.threshold(mask, lowest, _NEG_INF).to(dtype)


def combine_masks(first: Tensor, second: Tensor) -> Tensor:
    """Joins two masks of broadcastable shapes; the result is bool only if both are."""
    if first.dtype == torch.bool and second.dtype == torch.bool:
        return first | second
    floats = [mask.dtype for mask in (first, second) if mask.dtype != torch.bool]
    dtype = torch.promote_types(floats[0], floats[-1])
    return to_bias(first, dtype) + to_bias(second, dtype)


def check_mask_dtype(name: str, mask: Tensor) -> None:
    """Refuses integer masks, whose 1 means masked in some libraries and attended in others."""
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise UserError(
            f"{name} has type {mask.dtype}.",
            "Give bool (True is masked) or a floating-point type that is added to the scores.",
        )


def attn_mask_to_4d(mask: Tensor, batch: int, heads: int) -> Tensor:
    """A mask [queries, keys], [batch or batch * heads, queries, keys] or of four dimensions, in four."""
    check_mask_dtype("attn_mask", mask)
    if mask.dim() == 2:
        return mask[None, None]
    if mask.dim() == 3:
        if mask.shape[0] == batch * heads:
            return mask.reshape(batch, heads, mask.shape[1], mask.shape[2])
        return mask[:, None]
    if mask.dim() == 4:
        return mask
    raise UserError(
        f"attn_mask has shape {tuple(mask.shape)}.",
        "Give it [queries, keys], [batch * heads, queries, keys] or [batch, heads, queries, keys].",
    )


def key_padding_mask_to_4d(mask: Tensor) -> Tensor:
    """A mask [batch, keys] as [batch, 1, 1, keys]."""
    check_mask_dtype("key_padding_mask", mask)
    if mask.dim() != 2:
        raise UserError(
            f"key_padding_mask has shape {tuple(mask.shape)}.",
            "Give it [batch, keys], or [keys] where the input has no batch.",
        )
    return mask[:, None, None, :]


def merge_for_layers(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    is_causal: bool,
    *,
    x: Tensor,
    batch: int,
    heads: int,
) -> tuple[Tensor | None, Tensor | None, bool]:
    """Merges masks once for a stack of layers, instead of in each layer; a single mask is unchanged.

    `x` has as many positions in its second to last dimension as there are queries and keys.
    """
    if key_padding_mask is None or (attn_mask is None and not is_causal):
        return attn_mask, key_padding_mask, is_causal
    if attn_mask is None:
        length = x.shape[-2]
        attn_mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
    padding = key_padding_mask if key_padding_mask.dim() == 2 else key_padding_mask[None]
    # Masks may be made on the host, outside of the step; they are moved to the input's device.
    attn_mask, padding = attn_mask.to(x.device), padding.to(x.device)
    merged = combine_masks(attn_mask_to_4d(attn_mask, batch, heads), key_padding_mask_to_4d(padding))
    return merged, None, False


def make_attention_bias(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    position_bias: Tensor | None,
    is_causal: bool,
    *,
    q: Tensor,
    num_keys: int,
    num_past: int,
    num_appended: int,
    need_tensor: bool,
) -> tuple[Tensor | None, bool]:
    """The bias to add to the scores, and whether the kernel must hide later positions by itself.

    Of the `num_keys` keys the first `num_past` come from a cache and the last `num_appended` from the layer itself;
    masks cover the keys between, or those and the cached ones. With `need_tensor` the kernel hides nothing.
    """
    batch, heads, num_queries = q.shape[0], q.shape[1], q.shape[2]
    num_masked = num_keys - num_appended
    hinted = is_causal and attn_mask is not None
    if attn_mask is not None and not is_causal and is_known_causal(attn_mask):
        is_causal = attn_mask.shape == (num_queries, num_masked - num_past)
    # torch.nn hides appended keys where `is_causal` comes with a mask, and so do we; without a mask they are visible.
    kernel_can = num_past == 0 and not need_tensor and (num_appended == 0 or hinted)
    if is_causal and kernel_can and key_padding_mask is None and position_bias is None:
        return None, True
    mask: Tensor | None = None
    if attn_mask is not None:
        given = attn_mask_to_4d(attn_mask.to(q.device), batch, heads)
        mask = _cover(given, "attn_mask", num_masked, num_past, num_appended)
    elif is_causal and not (num_queries == 1 and num_past > 0):
        later = torch.ones(num_queries, num_masked, dtype=torch.bool, device=q.device).triu(1 + num_past)
        mask = _cover(later[None, None], "attn_mask", num_masked, num_past, num_appended)
    if key_padding_mask is not None:
        given = key_padding_mask_to_4d(key_padding_mask.to(q.device))
        padding = _cover(given, "key_padding_mask", num_masked, num_past, num_appended)
        _check_shape("key_padding_mask", padding, (batch, 1, 1, num_keys))
        mask = padding if mask is None else combine_masks(mask, padding)
    bias = None if mask is None else to_bias(mask, q.dtype)
    if position_bias is not None:
        positions = position_bias if position_bias.dim() == 4 else position_bias[None]
        positions = _cover(positions, "position_bias", num_masked, num_past, num_appended).to(q.dtype)
        bias = positions if bias is None else bias + positions
    if bias is not None:
        _check_shape("The mask", bias, (batch, heads, num_queries, num_keys))
    return bias, False


def _cover(mask: Tensor, name: str, num_masked: int, num_past: int, num_appended: int) -> Tensor:
    """Extends a mask so that cached keys which it does not cover, and appended keys, may be attended to."""
    num_given = mask.shape[-1]
    if num_given not in (1, num_masked, num_masked - num_past):
        wanted = (
            f"{num_masked}" if num_past == 0 else f"{num_masked} (or {num_masked - num_past}, the new ones)"
        )
        raise UserError(f"{name} covers {num_given} keys.", f"There are {wanted}.")
    before = num_past if num_past and num_given == num_masked - num_past else 0
    if num_given == 1 and num_masked != 1 and (before or num_appended):
        mask = mask.expand(*mask.shape[:-1], num_masked - before)
    return F.pad(mask, (before, num_appended)) if before or num_appended else mask


def _check_shape(name: str, mask: Tensor, shape: tuple[int, ...]) -> None:
    for size, wanted in zip(mask.shape, shape, strict=True):
        if size not in (1, wanted):
            raise UserError(f"{name} has shape {tuple(mask.shape)} here.", f"It must broadcast to {shape}.")


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    *,
    is_causal: bool,
    dropout: float,
    scale: float | None,
) -> Tensor:
    """Attention of queries [batch, heads, queries, width]; several heads may share keys and values."""
    options: dict[str, Any] = {}
    if k.shape[1] != q.shape[1]:
        # Fast kernels that take a bias cannot share heads: torch would take the slow one.
        if bias is None and _KERNEL_SHARES_HEADS:
            options["enable_gqa"] = True
        else:
            k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
    if bias is None:
        return F.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=is_causal, scale=scale, **options
        )
    if q.device.type in _ZEROING_DEVICES:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale)
    # Zeroing the result is not enough: the gradient of a row of NaN is NaN even if it is multiplied by 0.
    is_empty = _masks_everything(bias)
    bias = bias.masked_fill(is_empty, 0.0)
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale)
    return attended.masked_fill(is_empty, 0.0)


def attend_with_weights(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *, dropout: float, scale: float | None
) -> tuple[Tensor, Tensor]:
    """As `attend`, but gives the weights after dropout too, which no fused kernel does."""
    k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-2, -1)
    if bias is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        is_empty = _masks_everything(bias)
        weights = torch.softmax(scores + bias.masked_fill(is_empty, 0.0), dim=-1).masked_fill(is_empty, 0.0)
    if dropout > 0.0:
        weights = F.dropout(weights, dropout)
    return weights @ v, weights


def share_heads(x: Tensor, heads: int) -> Tensor:
    """Gives each of `heads` query heads the keys or values of its group."""
    groups = x.shape[1]
    if groups == heads:
        return x
    if groups == 1:
        return x.expand(-1, heads, -1, -1)
    return x[:, :, None].expand(-1, -1, heads // groups, -1, -1).flatten(1, 2)


def _masks_everything(bias: Tensor) -> Tensor:
    # Not isneginf, which Cerebras's front end lacks.
    return (bias == float("-inf")).all(dim=-1, keepdim=True)
