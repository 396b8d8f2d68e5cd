"""Prepares prompts as tensors, with padding, and checks that the network has positions for more tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from portwright.errors import UserError
from portwright.generation.options import GenerationOptions
from portwright.layers.embedding import EmbeddingLayer

Decode = Callable[[list[int]], str]


def is_encoder_decoder(network: nn.Module) -> bool:
    return hasattr(network, "encode") and hasattr(network, "decode")


def require_generating(network: nn.Module) -> None:
    """Refuses a network without the methods that generation needs."""
    of_kind = ("decoder_start_token_id",) if is_encoder_decoder(network) else ("hidden", "head_weight")
    if not all(hasattr(network, name) for name in (*of_kind, "make_cache")):
        raise UserError(
            f"{type(network).__name__} cannot generate: it has neither hidden, head_weight and make_cache (a decoder) nor "
            "encode, decode, make_cache and decoder_start_token_id (an encoder-decoder).",
            "Give a Gpt, T5 or Seq2Seq of portwright.networks, or a network with these methods.",
        )


def left_pad(prompts: Sequence[Sequence[int]], pad_token_id: int = 0) -> tuple[Tensor, Tensor]:
    """Ids and attention mask of prompts, padded on the left for a decoder."""
    return _pad(prompts, pad_token_id, is_left=True)


def right_pad(prompts: Sequence[Sequence[int]], pad_token_id: int = 0) -> tuple[Tensor, Tensor]:
    """Ids and attention mask of prompts, padded on the right for an encoder."""
    return _pad(prompts, pad_token_id, is_left=False)


def _pad(prompts: Sequence[Sequence[int]], pad_token_id: int, *, is_left: bool) -> tuple[Tensor, Tensor]:
    if not prompts or any(len(prompt) == 0 for prompt in prompts):
        raise UserError(
            f"{'An empty prompt' if prompts else 'No prompt'} was given.", "Give each at least one token."
        )
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), pad_token_id, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        place = slice(longest - len(prompt), None) if is_left else slice(0, len(prompt))
        ids[row, place] = torch.as_tensor(prompt, dtype=torch.long)
        mask[row, place] = 1
    return ids, mask


def check_inputs(
    network: nn.Module,
    input_ids: Tensor | Sequence[Sequence[int]],
    attention_mask: Tensor | None,
    options: GenerationOptions,
) -> tuple[Tensor, Tensor | None]:
    """Ids as int64 and their mask (None without padding), both on the network's device."""
    parameter = next(network.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    ids = _to_ids(input_ids).to(device)
    mask = _find_mask(ids, options) if attention_mask is None else _to_mask(attention_mask, ids).to(device)
    is_token = mask != 0
    num_tokens = is_token.sum(dim=1)
    if bool((num_tokens == 0).any()):
        raise UserError(
            f"Prompt {int(torch.nonzero(num_tokens == 0)[0])} is padding from end to end.",
            "Give each at least one token, and in attention_mask 1 for each.",
        )
    # A decoder continues from the last column, where every row needs a token.
    if not is_encoder_decoder(network) and bool((is_token[:, :-1] & ~is_token[:, 1:]).any()):
        raise UserError(
            "A prompt has padding behind a token.",
            "Pad on the left, as portwright.generation.left_pad does.",
        )
    _check_ids(network, ids, options)
    _check_room(network, int(num_tokens.max()), options)
    return ids, None if bool(is_token.all()) else mask


def _to_ids(input_ids: Tensor | Sequence[Sequence[int]]) -> Tensor:
    if not isinstance(input_ids, Tensor):
        try:
            input_ids = torch.tensor(input_ids)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(
                f"input_ids is a {type(input_ids).__name__} that makes no tensor.",
                "Give ids of shape [batch, length]; for prompts of different lengths see left_pad.",
            ) from error
    if input_ids.dim() != 2 or input_ids.numel() == 0 or input_ids.dtype not in _INTEGERS:
        raise UserError(
            f"input_ids has shape {tuple(input_ids.shape)} and dtype {input_ids.dtype}.",
            "Give integer ids of shape [batch, length] with at least one prompt and one token.",
        )
    return input_ids.long()


def _to_mask(attention_mask: Tensor, ids: Tensor) -> Tensor:
    if attention_mask.shape != ids.shape:
        raise UserError(
            f"attention_mask has shape {tuple(attention_mask.shape)} and input_ids {tuple(ids.shape)}.",
            "Give one entry a token: 1, or 0 for padding.",
        )
    return (attention_mask != 0).long()


def _find_mask(ids: Tensor, options: GenerationOptions) -> Tensor:
    pad = options.pad_token_id
    if pad is None or pad in options.eos_ids:  # the prompt may hold end tokens as text
        return torch.ones_like(ids)
    return (ids != pad).long()


def _check_ids(network: nn.Module, ids: Tensor, options: GenerationOptions) -> None:
    read, written = _embeddings_of(network)
    if read is not None:
        size = read.word_embeddings.num_embeddings
        lowest, highest = int(ids.min()), int(ids.max())
        if lowest < 0 or highest >= size:
            raise UserError(
                f"input_ids has the token {lowest if lowest < 0 else highest}, and the network knows {size}.",
                f"Give ids from 0 to {size - 1}; does the tokenizer belong to this network?",
            )
    if written is not None:
        size = written.word_embeddings.num_embeddings
        for name, chosen in (
            ("eos_token_id", options.eos_ids),
            ("pad_token_id", (options.pad_token_id or 0,)),
        ):
            if any(each >= size for each in chosen):
                raise UserError(
                    f"{name}={getattr(options, name)} is outside of the network's vocabulary of {size}.",
                    f"Give ids from 0 to {size - 1}.",
                )
        if options.num_beams > 1 and max(2, 1 + len(options.eos_ids)) > size:
            raise UserError(
                f"A vocabulary of {size} tokens, {len(options.eos_ids)} of which end a sequence, leaves nothing to search.",
                "Name fewer tokens in eos_token_id.",
            )


def room_for_new(network: nn.Module, prompt_length: int) -> int | None:
    """The number of tokens that can follow a prompt; None where the network sets no limit."""
    _, written = _embeddings_of(network)
    if written is None or written.position_embedding_type not in _COUNTED_POSITIONS:
        return None
    begun = 1 if is_encoder_decoder(network) else prompt_length
    room = written.max_position_embeddings
    return None if room is None else room - begun + 1  # the last new token needs no position


def _check_room(network: nn.Module, longest: int, options: GenerationOptions) -> None:
    room = room_for_new(network, longest)
    if room is None or options.max_new_tokens <= room:
        return
    if room < 1:
        raise UserError(
            f"A prompt has {longest} tokens, and the network has {longest + room - 1} positions.",
            "Shorten the prompt.",
        )
    raise UserError(
        f"max_new_tokens={options.max_new_tokens} is more than the network's positions leave after a prompt of {longest}: {room}.",
        f"Set max_new_tokens to {room} at most, or shorten the prompt.",
    )


def _embeddings_of(network: nn.Module) -> tuple[EmbeddingLayer | None, EmbeddingLayer | None]:
    """The input's and the output's embedding layers, where the network has them under our networks' names."""
    read = getattr(network, "embeddings", getattr(network, "encoder_embeddings", None))
    written = getattr(network, "decoder_embeddings", None)
    written = read if written is None else written
    return (
        read if isinstance(read, EmbeddingLayer) else None,
        written if isinstance(written, EmbeddingLayer) else None,
    )


_COUNTED_POSITIONS = ("learned", "fixed", "rotary")
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)
