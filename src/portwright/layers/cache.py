"""Caches of keys and values, so that each step of a generation computes only those of new tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from portwright.errors import UserError

KeyValue = tuple[Tensor, Tensor]


class KVCache:
    """One attention layer's keys and values, [batch, heads, length, head width]; `append` adds new ones at the end."""

    def __init__(self, held: tuple[Tensor, ...] = ()) -> None:
        self.held = held  # a key and a value, or nothing yet

    @property
    def length(self) -> int:
        return self.held[0].shape[2] if self.held else 0

    def append(self, key: Tensor, value: Tensor) -> KeyValue:
        """Adds the keys and values of new positions and returns those of all."""
        if self.held:
            held_key, held_value = self.held
            if held_key.shape[0] != key.shape[0]:
                raise UserError(
                    f"The cache holds a batch of {held_key.shape[0]} and got one of {key.shape[0]}.",
                    "Make a new one for each generation, or reorder it to the new batch.",
                )
            key = torch.cat((held_key.to(key.dtype), key), dim=2)
            value = torch.cat((held_value.to(value.dtype), value), dim=2)
        self.held = key, value
        return key, value

    def reorder(self, batch_indices: Tensor) -> None:
        """Makes row i continue what was row `batch_indices[i]`, as beam search asks."""
        if self.held:
            key, value = self.held
            self.held = key.index_select(0, batch_indices), value.index_select(0, batch_indices)


class DecoderLayerCache(NamedTuple):
    """The caches of one decoder layer: of self-attention and of attention to the memory."""

    self_attn: KVCache
    cross_attn: KVCache


def as_cache(past_kv: KVCache | KeyValue) -> KVCache:
    """A KVCache: the given one, or a new one with the given keys and values."""
    return past_kv if isinstance(past_kv, KVCache) else KVCache((past_kv[0], past_kv[1]))
