"""T5's denoising: sentinels replace spans of a text, and the target has the replaced spans (Raffel 2020, 3.1.4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from portwright.data.draws import Draws

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int32]

NOISE_DENSITY = 0.15
MEAN_SPAN_LENGTH = 3.0


def noise_of(
    lengths: npt.ArrayLike, density: float = NOISE_DENSITY, mean_span: float = MEAN_SPAN_LENGTH
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The number of tokens to take out of texts of these lengths, and the number of spans.

    A text of one token keeps it; any other loses at least one token and keeps at least one.
    """
    length = np.asarray(lengths, np.int64)
    noise = np.minimum(np.maximum(np.rint(length * density).astype(np.int64), 1), np.maximum(length - 1, 0))
    spans = np.maximum(np.rint(noise / mean_span).astype(np.int64), 1)
    return noise, np.minimum(np.minimum(spans, noise), length - noise)


def lengths_after(
    raw_length: int, density: float = NOISE_DENSITY, mean_span: float = MEAN_SPAN_LENGTH
) -> tuple[int, int]:
    """The lengths of the input and of the target, with end tokens, that `raw_length` tokens become."""
    noise, spans = noise_of(raw_length, density, mean_span)
    return int(raw_length - noise + spans + 1), int(noise + spans + 1)


def raw_length_for(
    input_length: int, density: float = NOISE_DENSITY, mean_span: float = MEAN_SPAN_LENGTH
) -> int:
    """The length of the longest text whose corrupted form has at most `input_length` tokens; 0: there is none."""
    raw_length = 0
    while lengths_after(raw_length + 1, density, mean_span)[0] <= input_length:
        raw_length += 1
    return raw_length


def noise_mask(
    lengths: Array,
    width: int,
    draws: Draws,
    density: float = NOISE_DENSITY,
    mean_span: float = MEAN_SPAN_LENGTH,
) -> npt.NDArray[np.bool_]:
    """True [rows, width] where a token is taken out; each row begins with a span that stays and ends with one taken out.

    As in the paper, noise and the rest are cut at random into equally many spans; all ways of cutting are equally likely.
    """
    noise, spans = noise_of(lengths, density, mean_span)
    most = int(spans.max(initial=0))
    if most == 0:
        return np.zeros((len(lengths), width), np.bool_)
    kept_parts = _random_parts(np.asarray(lengths) - noise, spans, most, draws, "kept spans")
    noise_parts = _random_parts(noise, spans, most, draws, "noise spans")
    parts = np.stack([kept_parts, noise_parts], axis=2).reshape(len(noise), 2 * most)
    ends = np.cumsum(parts, axis=1)
    # The number of span ends at or before each place is even inside spans that stay, odd inside noise.
    rows, _ = np.nonzero(parts)
    passed = np.zeros((len(noise), width + 1), np.int64)
    np.add.at(passed, (rows, ends[parts > 0]), 1)
    inside = np.arange(width) < np.asarray(lengths)[:, None]
    is_noise: npt.NDArray[np.bool_] = inside & ((np.cumsum(passed[:, :width], axis=1) % 2) == 1)
    return is_noise


def corrupt_spans(
    tokens: Array, lengths: Array, mask: npt.NDArray[np.bool_], sentinel_ids: Array, eos_id: int, pad_id: int
) -> tuple[Ids, Ids, Ids, Ids]:
    """Gives inputs, their lengths, targets, their lengths: sentinels replace the spans in `mask`, targets have the spans.

    Both end with `eos_id` and are as wide as their longest row.
    """
    num_rows, width = tokens.shape
    inside = np.arange(width) < np.asarray(lengths)[:, None]
    mask = mask & inside
    first = mask.copy()
    first[:, 1:] &= ~mask[:, :-1]
    span = np.cumsum(first, axis=1) - 1
    sentinels = np.asarray(sentinel_ids, np.int32)
    most = int(span.max(initial=-1)) + 1
    if most > len(sentinels):
        raise ValueError(f"{most} spans and {len(sentinels)} sentinels")
    named = sentinels[np.maximum(span, 0)] if len(sentinels) else np.zeros(tokens.shape, np.int32)

    stays = inside & (~mask | first)
    inputs, input_lengths = _squeeze(np.where(first, named, tokens), stays, eos_id, pad_id)

    # A span's first token has its sentinel before it, so each place has room for two.
    doubled = np.empty((num_rows, width, 2), np.int32)
    doubled[:, :, 0], doubled[:, :, 1] = named, tokens
    told = np.stack([first, mask], axis=2)
    targets, target_lengths = _squeeze(
        doubled.reshape(num_rows, 2 * width), told.reshape(num_rows, 2 * width), eos_id, pad_id
    )
    return inputs, input_lengths, targets, target_lengths


def _squeeze(values: Array, chosen: npt.NDArray[np.bool_], eos_id: int, pad_id: int) -> tuple[Ids, Ids]:
    """The chosen values of each row moved to its beginning, then the end token, then padding."""
    lengths = chosen.sum(axis=1)
    out = np.full((len(values), int(lengths.max(initial=0)) + 1), pad_id, np.int32)
    rows, _ = np.nonzero(chosen)
    places = (np.cumsum(chosen, axis=1) - 1)[chosen]
    out[rows, places] = values[chosen]
    out[np.arange(len(values)), lengths] = eos_id
    return out, (lengths + 1).astype(np.int32)


def _random_parts(
    totals: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], most: int, draws: Draws, name: str
) -> npt.NDArray[np.int64]:
    """Random sizes [rows, most]: in each row `counts` sizes of at least 1 that add up to its total, then zeros."""
    width = int(totals.max(initial=0))
    keys = draws.uniform(name, max(width - 1, 0))
    # A cut may follow token 1 .. total - 1; those with the smallest random keys are taken.
    possible = np.arange(1, width) < totals[:, None]
    keys = np.where(possible, keys, 2.0)
    rank = np.empty(keys.shape, np.int64)
    np.put_along_axis(
        rank, np.argsort(keys, axis=1, kind="stable"), np.arange(keys.shape[1])[None, :], axis=1
    )
    is_cut = possible & (rank < counts[:, None] - 1)
    part = np.zeros((len(totals), width), np.int64)
    part[:, 1:] = np.cumsum(is_cut, axis=1)
    inside = np.arange(width) < totals[:, None]
    sizes = np.zeros((len(totals), most), np.int64)
    rows, _ = np.nonzero(inside)
    np.add.at(sizes, (rows, part[inside]), 1)
    return sizes
