"""Keys and values kept between the steps of a generation, so that each step computes only its own."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from portwright.errors import UserError

KeyValue = tuple[Tensor, Tensor]


class KVCache:
    """The keys and values of one attention layer, in buffers that grow by doubling or to a fixed length.

    Its tensors have shape [batch, heads, length, head width]. What was appended without gradients is written in
    place; with gradients the tensors are concatenated, so that a backward pass still works.
    """

    def __init__(self, max_length: int | None = None) -> None:
        if max_length is not None and max_length < 1:
            raise UserError(
                f"max_length={max_length} leaves no room for a key.", "Give at least 1, or None to grow."
            )
        self.max_length = max_length
        self.length = 0
        self._key: Tensor | None = None
        self._value: Tensor | None = None
        self._has_room = True

    @staticmethod
    def of(pair: KeyValue | None) -> KVCache:
        """A cache around keys and values that are not written to: it concatenates instead of keeping room."""
        cache = KVCache()
        cache._has_room = False
        if pair is not None:
            cache._key, cache._value = pair
            cache.length = pair[0].shape[2]
        return cache

    @property
    def key(self) -> Tensor | None:
        return None if self._key is None else self._key[:, :, : self.length]

    @property
    def value(self) -> Tensor | None:
        return None if self._value is None else self._value[:, :, : self.length]

    def append(self, key: Tensor, value: Tensor) -> KeyValue:
        """Adds the keys and values of new positions and returns those of all."""
        new_length = self.length + key.shape[2]
        if self.max_length is not None and new_length > self.max_length:
            raise UserError(
                f"The cache holds {self.length} of at most {self.max_length} positions and got {key.shape[2]} more.",
                "Make it with a larger max_length, or with None to let it grow.",
            )
        if self._key is not None and self._key.shape[0] != key.shape[0]:
            raise UserError(
                f"The cache holds a batch of {self._key.shape[0]} and got one of {key.shape[0]}.",
                "Clear it between generations, or reorder it to the new batch.",
            )
        self._key = self._extended(self._key, key, new_length)
        self._value = self._extended(self._value, value, new_length)
        self.length = new_length
        return self._key[:, :, :new_length], self._value[:, :, :new_length]

    def _extended(self, held: Tensor | None, new: Tensor, new_length: int) -> Tensor:
        has_grad = torch.is_grad_enabled() and (
            new.requires_grad or (held is not None and held.requires_grad)
        )
        if has_grad or not self._has_room:
            return new if held is None else torch.cat((held[:, :, : self.length], new), dim=2)
        if held is None or held.shape[2] < new_length:
            room = self.max_length or max(new_length, 2 * (0 if held is None else held.shape[2]))
            grown = new.new_empty(new.shape[0], new.shape[1], room, new.shape[3])
            if held is not None:
                grown[:, :, : self.length] = held[:, :, : self.length]
            held = grown
        held[:, :, self.length : new_length] = new
        return held

    def reorder(self, batch_indices: Tensor, start: int = 0) -> None:
        """Makes row i continue what was row `batch_indices[i]`, as beam search asks.

        With `start` the caller says that rows which change places are alike before that position, as beams of one
        prompt are: only what comes after is moved, in place.
        """
        if self._key is None or self._value is None:
            return
        has_grad = torch.is_grad_enabled() and (self._key.requires_grad or self._value.requires_grad)
        if start and batch_indices.shape[0] == self._key.shape[0] and self._has_room and not has_grad:
            for held in (self._key, self._value):
                moved = held[:, :, start : self.length]
                moved.copy_(moved.index_select(0, batch_indices))
            return
        self._key = self._reordered(self._key, batch_indices)
        self._value = self._reordered(self._value, batch_indices)

    def _reordered(self, held: Tensor, batch_indices: Tensor) -> Tensor:
        """Rows in another order or number; of the room for more only the size is taken along."""
        kept = held[:, :, : self.length]
        if held.shape[2] == self.length or (torch.is_grad_enabled() and held.requires_grad):
            return kept.index_select(0, batch_indices)
        moved = held.new_empty(batch_indices.shape[0], *held.shape[1:])
        moved[:, :, : self.length] = kept.index_select(0, batch_indices)
        return moved

    def crop(self, length: int) -> None:
        """Forgets the positions from `length` on."""
        if not 0 <= length <= self.length:
            raise UserError(f"A cache of {self.length} positions cannot be cropped to {length}.")
        self.length = length

    def clear(self) -> None:
        """Forgets all; the next keys may have another batch size."""
        self.length = 0
        self._key = self._value = None


class DecoderLayerCache(NamedTuple):
    """The caches of one decoder layer: of what was generated, and of the memory."""

    self_attn: KVCache
    cross_attn: KVCache

    @staticmethod
    def make(max_length: int | None = None) -> DecoderLayerCache:
        return DecoderLayerCache(KVCache(max_length), KVCache())


def past_length(past_kv: KVCache | KeyValue | None) -> int:
    """How many positions a cache, or a pair of keys and values, holds."""
    if past_kv is None:
        return 0
    return past_kv.length if isinstance(past_kv, KVCache) else past_kv[0].shape[-2]


def get_held(past_kv: KVCache | KeyValue) -> KeyValue:
    """The keys and values of a cache, or the pair itself."""
    if not isinstance(past_kv, KVCache):
        return past_kv[0], past_kv[1]
    if past_kv.key is None or past_kv.value is None:
        raise UserError("The cache is empty.", "Fill it with the keys and values of the memory first.")
    return past_kv.key, past_kv.value


def append_to_past(past_kv: KVCache | KeyValue | None, k: Tensor, v: Tensor) -> KeyValue:
    """All keys and values: those of the past, if there is one, and the new."""
    if past_kv is None:
        return k, v
    if isinstance(past_kv, KVCache):
        return past_kv.append(k, v)
    return torch.cat((past_kv[0].to(k.dtype), k), dim=2), torch.cat((past_kv[1].to(v.dtype), v), dim=2)
