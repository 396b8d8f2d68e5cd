"""The masks of encoders and decoders, from attention masks in which 1 is a token and 0 is padding; True is masked."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from portwright.errors import UserError
from portwright.layers.bias import to_bias
from portwright.layers.cache import DecoderLayerCache


def padding_mask(attention_mask: Tensor | None) -> Tensor | None:
    """[batch, keys] as [batch, 1, 1, keys], True for padding."""
    return None if attention_mask is None else (attention_mask == 0)[:, None, None, :]


def causal_mask(
    length: int, num_past: int, attention_mask: Tensor | None, device: torch.device
) -> Tensor | None:
    """Hides later positions and padding from `length` new queries after `num_past`; None where nothing is hidden.

    `attention_mask` is [batch, new] or [batch, past and new].
    """
    mask: Tensor | None = None
    if length > 1:
        # A comparison, not triu: of the two, every target's compiler takes this one.
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
    """How many positions the caches of a decoder hold."""
    return 0 if not past_kv else past_kv[0].self_attn.length


def shared_bias(positions: Tensor, mask: Tensor | None) -> Tensor:
    """Position bias and mask in one, for all layers of a stack, in the type that their scores have.

    Left to the layers, each would keep a copy of its own for backward.
    """
    bias = positions if mask is None else positions + to_bias(mask, positions.dtype)
    device = bias.device.type
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        return bias.to(torch.get_autocast_dtype(device))
    return bias
