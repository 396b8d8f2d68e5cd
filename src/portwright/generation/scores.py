"""From a network's scores to those that tokens are chosen by: penalties, bans, and the filters of sampling.

Every function gives what the processor of the same purpose in transformers gives, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from portwright.errors import NonFiniteError
from portwright.generation.options import GenerationOptions

_NEG_INF = float("-inf")

Processor = Callable[[Tensor, Tensor], Tensor]
"""Takes scores [rows, vocabulary] and the tokens so far [rows, length]."""


def make_processors(options: GenerationOptions, prompt_length: int, device: torch.device) -> list[Processor]:
    """Those that the options ask for, in transformers' order."""
    made: list[Processor] = []
    if options.repetition_penalty != 1.0:
        made.append(lambda scores, ids: penalize_repeated(scores, ids, options.repetition_penalty))
    if options.no_repeat_ngram_size:
        made.append(lambda scores, ids: ban_repeated_ngrams(scores, ids, options.no_repeat_ngram_size))
    if options.min_new_tokens and options.eos_ids:
        first_free = prompt_length + options.min_new_tokens
        eos = torch.tensor(options.eos_ids, device=device)
        made.append(
            lambda scores, ids: scores if ids.shape[1] >= first_free else scores.index_fill(1, eos, _NEG_INF)
        )
    if options.do_sample:
        made.extend(_make_filters(options))
    return made


def _make_filters(options: GenerationOptions) -> list[Processor]:
    made: list[Processor] = []
    if options.temperature != 1.0:
        made.append(lambda scores, _: scores / options.temperature)
    if options.top_k:
        top_k = options.top_k
        made.append(lambda scores, _: keep_top_k(scores, top_k))
    if options.top_p < 1.0:
        made.append(lambda scores, _: keep_top_p(scores, options.top_p))
    if options.min_p is not None:
        min_p = options.min_p
        made.append(lambda scores, _: keep_min_p(scores, min_p))
    return made


def penalize_repeated(scores: Tensor, ids: Tensor, penalty: float) -> Tensor:
    """Divides the positive scores of tokens that occurred, and multiplies the negative ones."""
    seen = scores.gather(1, ids)
    return scores.scatter(1, ids, torch.where(seen < 0, seen * penalty, seen / penalty))


def ban_repeated_ngrams(scores: Tensor, ids: Tensor, size: int) -> Tensor:
    """Bans the tokens that would complete a sequence of `size` tokens which occurred before."""
    num_ngrams = ids.shape[1] - size + 1
    if num_ngrams < 1:
        return scores
    last = ids[:, size - 1 :]  # the last token of every n-gram so far
    begins_same = torch.ones_like(last, dtype=torch.bool)
    for place in range(size - 1):
        # the n-gram to come begins with the last size - 1 tokens
        begins_same &= ids[:, place : place + num_ngrams] == ids[:, num_ngrams + place, None]
    # What is not banned is marked beyond the vocabulary, where it cannot unmark another's mark.
    vocabulary = scores.shape[1]
    banned = scores.new_zeros(scores.shape[0], vocabulary + 1, dtype=torch.bool)
    banned.scatter_(1, torch.where(begins_same, last, vocabulary), True)
    return scores.masked_fill(banned[:, :vocabulary], _NEG_INF)


def keep_top_k(scores: Tensor, top_k: int) -> Tensor:
    """Keeps the k highest scores and those equal to the last of them."""
    lowest_kept = scores.topk(min(top_k, scores.shape[-1])).values[..., -1:]
    return scores.masked_fill(scores < lowest_kept, _NEG_INF)


def keep_top_p(scores: Tensor, top_p: float) -> Tensor:
    """Keeps the likeliest tokens that together reach a share of `top_p`, one at least."""
    ascending, order = scores.sort(descending=False)
    share_up_to = ascending.softmax(dim=-1).cumsum(dim=-1)
    is_tail = share_up_to <= 1 - top_p
    is_tail[..., -1] = False
    return scores.masked_fill(torch.zeros_like(is_tail).scatter_(1, order, is_tail), _NEG_INF)


def keep_min_p(scores: Tensor, min_p: float) -> Tensor:
    """Keeps the tokens at least `min_p` times as likely as the likeliest."""
    shares = scores.softmax(dim=-1)
    top, best = shares.max(dim=-1, keepdim=True)
    return scores.masked_fill((shares < min_p * top).scatter_(-1, best, False), _NEG_INF)


def refuse_nan(scores: Tensor) -> None:
    """Tells of a network whose weights are no numbers; asked of the first scores alone, since asking waits for them."""
    if bool(scores.isnan().any()):
        raise NonFiniteError(
            "The network's scores of the first token are NaN.",
            "Take an earlier checkpoint, or a wider dtype.",
        )
