"""T5's denoising: spans of a text are replaced by sentinels, and the target tells what stood there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

NOISE_FRACTION = 0.15
MEAN_SPAN_LENGTH = 3


def lengths_after(raw_length: int) -> tuple[int, int]:
    """Tokens of the input and of the target, end token included, that `raw_length` tokens become."""
    num_noise, num_spans = noise_of(raw_length)
    return raw_length - num_noise + num_spans + 1, num_noise + num_spans + 1


def raw_length_for(input_length: int) -> int:
    """The longest text whose corrupted form has no more than `input_length` tokens."""
    raw_length = input_length
    while lengths_after(raw_length + 1)[0] <= input_length:
        raw_length += 1
    while raw_length > 1 and lengths_after(raw_length)[0] > input_length:
        raw_length -= 1
    return raw_length


def corrupt(
    tokens: Sequence[int], sentinels: Sequence[int], end_id: int, random: Random
) -> tuple[list[int], list[int]]:
    """The text with its spans replaced, and the spans, each after its sentinel; both end in `end_id`."""
    num_noise, num_spans = noise_of(len(tokens))
    if len(sentinels) < num_spans:
        raise ValueError(f"{num_spans} spans and {len(sentinels)} sentinels")
    kept = _random_parts(len(tokens) - num_noise, num_spans, random)
    noise = _random_parts(num_noise, num_spans, random)
    source: list[int] = []
    target: list[int] = []
    place = 0
    for sentinel, num_kept, num_gone in zip(sentinels, kept, noise, strict=False):
        source += [*tokens[place : place + num_kept], sentinel]
        target += [sentinel, *tokens[place + num_kept : place + num_kept + num_gone]]
        place += num_kept + num_gone
    return [*source, end_id], [*target, end_id]


def noise_of(length: int) -> tuple[int, int]:
    """Tokens that are taken out of a text of `length`, and the spans that they make up."""
    num_noise = min(max(1, round(length * NOISE_FRACTION)), max(1, length - 1))
    num_spans = max(1, min(round(num_noise / MEAN_SPAN_LENGTH), length - num_noise))
    return num_noise, num_spans


def _random_parts(total: int, num_parts: int, random: Random) -> list[int]:
    """`num_parts` sizes of at least 1 that add up to `total`."""
    cuts = [0, *sorted(random.sample(range(1, total), num_parts - 1)), total]
    return [after - before for before, after in pairwise(cuts)]
