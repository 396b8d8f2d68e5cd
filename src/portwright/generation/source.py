"""Where a search gets its scores from: the two kinds of network behind one protocol, with cached keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from portwright.errors import UserError
from portwright.layers.cache import DecoderLayerCache

_OF_DECODER = ("hidden", "head_weight", "make_cache")
_OF_ENCODER_DECODER = ("encode", "decode", "make_cache", "decoder_start_token_id")


class TokenSource(Protocol):
    """Scores of the next token for rows that grow by a token a step.

    `prompt` [batch, length] is what the sequences begin with. After `start` there is a row for each prompt; `expand`
    makes several of each, one after the other; `reorder` makes row i continue what was row rows[i], of the same prompt.
    """

    prompt: Tensor

    def start(self) -> Tensor: ...

    def expand(self, times: int) -> None: ...

    def step(self, tokens: Tensor) -> Tensor: ...

    def reorder(self, rows: Tensor) -> None: ...


class DecoderSource:
    """A decoder that goes on with its prompts, which are padded on the left."""

    def __init__(
        self, network: Any, input_ids: Tensor, attention_mask: Tensor | None, max_new_tokens: int
    ) -> None:
        self.prompt = input_ids
        self._network = network
        self._num_cached = input_ids.shape[1]
        last = input_ids.shape[1] + max_new_tokens - 1  # the last new token is not fed again
        self._mask: Tensor | None = None
        self._positions: Tensor | None = None
        if attention_mask is not None:
            self._mask = F.pad(attention_mask, (0, last - input_ids.shape[1]), value=1)
            self._positions = (attention_mask.long().cumsum(dim=1) - 1).clamp_(min=0)
        self._caches: list[DecoderLayerCache] = network.make_cache(last)

    def start(self) -> Tensor:
        length = self.prompt.shape[1]
        mask = None if self._mask is None else self._mask[:, :length]
        hidden = self._network.hidden(
            self.prompt, attention_mask=mask, position_ids=self._positions, past_kv=self._caches
        )
        if self._positions is not None:
            self._positions = self._positions[:, -1:]
        # Only the last position's scores are wanted: those of all would be as large as prompt times vocabulary.
        weight, bias = self._network.head_weight()
        return F.linear(hidden[:, -1], weight, bias)

    def expand(self, times: int) -> None:
        _expand(self._caches, times)
        if self._mask is not None and self._positions is not None:
            self._mask = self._mask.repeat_interleave(times, dim=0)
            self._positions = self._positions.repeat_interleave(times, dim=0)

    def step(self, tokens: Tensor) -> Tensor:
        self._num_cached += 1
        mask = None if self._mask is None else self._mask[:, : self._num_cached]
        if self._positions is not None:
            self._positions = self._positions + 1
        logits: Tensor = self._network(
            tokens[:, None], attention_mask=mask, position_ids=self._positions, past_kv=self._caches
        )
        return logits[:, -1]

    def reorder(self, rows: Tensor) -> None:
        for cache in self._caches:
            cache.self_attn.reorder(rows, start=self.prompt.shape[1])


class EncoderDecoderSource:
    """A decoder that begins with its start token and looks at what an encoder made of the inputs."""

    def __init__(
        self, network: Any, input_ids: Tensor, attention_mask: Tensor | None, max_new_tokens: int
    ) -> None:
        self._network = network
        self._mask = attention_mask
        self._memory: Tensor = network.encode(input_ids, attention_mask)
        self.prompt = input_ids.new_full((input_ids.shape[0], 1), network.decoder_start_token_id)
        self._caches: list[DecoderLayerCache] = network.make_cache(max_new_tokens)

    def start(self) -> Tensor:
        return self._decode(self.prompt)

    def expand(self, times: int) -> None:
        _expand(self._caches, times)
        self._memory = self._memory.repeat_interleave(times, dim=0)
        if self._mask is not None:
            self._mask = self._mask.repeat_interleave(times, dim=0)

    def step(self, tokens: Tensor) -> Tensor:
        return self._decode(tokens[:, None])

    def reorder(self, rows: Tensor) -> None:
        # Rows of one prompt have one memory, so that its keys and values stay where they are.
        for cache in self._caches:
            cache.self_attn.reorder(rows, start=1)

    def _decode(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self._network.decode(tokens, self._memory, self._mask, past_kv=self._caches)
        return logits[:, -1]


def make_source(
    network: nn.Module, input_ids: Tensor, attention_mask: Tensor | None, max_new_tokens: int
) -> TokenSource:
    """The source over a network, by what the network can do."""
    if _can(network, _OF_ENCODER_DECODER):
        return EncoderDecoderSource(network, input_ids, attention_mask, max_new_tokens)
    if _can(network, _OF_DECODER):
        return DecoderSource(network, input_ids, attention_mask, max_new_tokens)
    raise _cannot_generate(network)


def require_generating(network: nn.Module) -> None:
    """Refuses a network that no source is made over."""
    if not (_can(network, _OF_ENCODER_DECODER) or _can(network, _OF_DECODER)):
        raise _cannot_generate(network)


def _cannot_generate(network: nn.Module) -> UserError:
    return UserError(
        f"{type(network).__name__} cannot generate: it has neither hidden, head_weight and make_cache (a decoder) nor "
        "encode, decode, make_cache and decoder_start_token_id (an encoder-decoder).",
        "Give a Gpt, T5 or Seq2Seq of portwright.networks, or a network with these methods.",
    )


def is_encoder_decoder(network: nn.Module) -> bool:
    return _can(network, ("encode", "decode"))


def _can(network: nn.Module, names: Sequence[str]) -> bool:
    return all(hasattr(network, name) for name in names)


def _expand(caches: Sequence[DecoderLayerCache], times: int) -> None:
    if times == 1:
        return
    held = caches[0].self_attn.key if caches else None
    if held is None:
        return
    rows = torch.arange(held.shape[0], device=held.device).repeat_interleave(times)
    for cache in caches:
        cache.self_attn.reorder(rows)
        cache.cross_attn.reorder(rows)
