"""Makes masks (True is masked) for encoders and decoders from attention masks (1 is a token, 0 is padding)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from portwright.errors import UserError
from portwright.layers.bias import to_bias
from portwright.layers.cache import DecoderLayerCache


def padding_mask(attention_mask: Tensor | None) -> Tensor | None:
    """The mask [batch, 1, 1, keys] of padding, from [batch, keys]."""
    return None if attention_mask is None else (attention_mask == 0)[:, None, None, :]


def causal_mask(
    length: int, num_past: int, attention_mask: Tensor | None, device: torch.device
) -> Tensor | None:
    """The mask of later positions and padding for `length` new queries after `num_past`; None where nothing is masked.

    `attention_mask` is [batch, new] or [batch, past and new].
    """
    mask: Tensor | None = None
    if length > 1:
        # A comparison, not triu, which some targets' compilers refuse.
        keys, queries = torch.arange(num_past + length, device=device), torch.arange(length, device=device)
        mask = (keys[None, :] > queries[:, None] + num_past)[None, None]
    if attention_mask is None:
        return mask
    if attention_mask.shape[1] not in (length, num_past + length):
        raise UserError(
            f"decoder_attention_mask has shape {tuple(attention_mask.shape)} for {length} tokens after {num_past}.",
            "Let it cover the new tokens, or all of them.",
        )
    if attention_mask.shape[1] != num_past + length:
        attention_mask = torch.nn.functional.pad(attention_mask, (num_past, 0), value=1)
    padding = (attention_mask == 0)[:, None, None, :]
    return padding if mask is None else mask | padding


def past_of(past_kv: Sequence[DecoderLayerCache] | None) -> int:
    """The number of positions in a decoder's caches."""
    return 0 if not past_kv else past_kv[0].self_attn.length


def shared_bias(positions: Tensor, mask: Tensor | None) -> Tensor:
    """Adds position bias and mask once for all layers of a stack, in the type of their scores.

    If each layer did so, each would keep a copy for backward.
    """
    bias = positions if mask is None else positions + to_bias(mask, positions.dtype)
    device = bias.device.type
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        return bias.to(torch.get_autocast_dtype(device))
    return bias
