"""BERT's masking, for all rows of a batch at once: chosen tokens become [MASK] (80%), another token (10%) or stay (10%)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from portwright.data.draws import Draws

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int32]

MASKED, REPLACED = 0.8, 0.1  # shares of the chosen tokens; the rest stay


@dataclass(frozen=True)
class MaskRules:
    """How many tokens are chosen, and properties of the vocabulary's tokens, as arrays by id."""

    mask_id: int
    is_special: Bools
    ordinary_ids: Ids
    begins_inside: Bools  # whether a token continues a word
    ends_inside: Bools
    probability: float
    max_predictions: int
    whole_word: bool = False


def mask_tokens(
    tokens: Array, lengths: Array, draws: Draws, rules: MaskRules
) -> tuple[Ids, Ids, npt.NDArray[np.float32], Ids]:
    """Gives input_ids [rows, width]; positions, weights and labels [rows, max_predictions], by ascending position.

    Special tokens and padding are never chosen. Of a row's other tokens the asked share is chosen, at least one (with
    whole words: if one is short enough). Unused predictions have weight 0.
    """
    tokens = tokens.astype(np.int32)
    width = tokens.shape[1]
    candidates = (np.arange(width) < np.asarray(lengths)[:, None]) & ~rules.is_special[tokens]
    wanted = np.rint(candidates.sum(axis=1) * rules.probability).astype(np.int64)
    wanted = np.minimum(np.maximum(wanted, 1), np.minimum(rules.max_predictions, candidates.sum(axis=1)))
    choose = _choose_words if rules.whole_word else _choose_tokens
    chosen = choose(tokens, candidates, wanted, draws, rules)

    positions, weights = _positions_of(chosen, rules.max_predictions)
    labels = np.take_along_axis(tokens, positions, axis=1) * (weights > 0)
    fate = draws.uniform("fate of a chosen token", width)
    others = rules.ordinary_ids[draws.integers("replacement", max(len(rules.ordinary_ids), 1), width)]
    input_ids = np.where(chosen & (fate < MASKED), np.int32(rules.mask_id), tokens)
    replaced = chosen & (fate >= MASKED) & (fate < MASKED + REPLACED)
    return np.where(replaced, others, input_ids), positions, weights, labels.astype(np.int32)


def _positions_of(chosen: Bools, max_predictions: int) -> tuple[Ids, npt.NDArray[np.float32]]:
    counts = chosen.sum(axis=1)
    positions = np.zeros((len(chosen), max_predictions), np.int32)
    rows, places = np.nonzero(chosen)
    positions[rows, (np.cumsum(chosen, axis=1) - 1)[chosen]] = places
    weights = (np.arange(max_predictions) < counts[:, None]).astype(np.float32)
    return positions, weights


def _choose_tokens(
    tokens: Ids, candidates: Bools, wanted: npt.NDArray[np.int64], draws: Draws, rules: MaskRules
) -> Bools:
    """Chooses the `wanted` candidates of each row with the smallest random keys."""
    width = tokens.shape[1]
    most = int(wanted.max(initial=0))
    chosen = np.zeros(tokens.shape, np.bool_)
    if most == 0:
        return chosen
    keys = np.where(candidates, draws.uniform("choice of tokens", width), 2.0)
    smallest = np.argpartition(keys, min(most, width) - 1, axis=1)[:, :most]
    order = np.argsort(np.take_along_axis(keys, smallest, axis=1), axis=1, kind="stable")
    smallest = np.take_along_axis(smallest, order, axis=1)
    np.put_along_axis(chosen, smallest, np.arange(most) < wanted[:, None], axis=1)
    return chosen


def _choose_words(
    tokens: Ids, candidates: Bools, wanted: npt.NDArray[np.int64], draws: Draws, rules: MaskRules
) -> Bools:
    """Chooses whole words in random order while they fit into `wanted` tokens; a longer one is skipped."""
    num_rows, width = tokens.shape
    goes_on = np.zeros(tokens.shape, np.bool_)
    goes_on[:, 1:] = rules.begins_inside[tokens[:, 1:]] & rules.ends_inside[tokens[:, :-1]]
    goes_on[:, 1:] &= candidates[:, 1:] & candidates[:, :-1]
    word = np.cumsum(~goes_on, axis=1) - 1
    rows = np.broadcast_to(np.arange(num_rows)[:, None], tokens.shape)
    sizes = np.zeros((num_rows, width), np.int64)
    np.add.at(sizes, (rows[candidates], word[candidates]), 1)
    keys = np.where(sizes > 0, draws.uniform("choice of words", width), 2.0)
    order = np.argsort(keys, axis=1, kind="stable")
    sorted_sizes = np.take_along_axis(sizes, order, axis=1)
    taken = np.zeros((num_rows, width), np.bool_)
    room = wanted.copy()
    for place in range(int((sizes > 0).sum(axis=1).max(initial=0))):
        size = sorted_sizes[:, place]
        fits = (size > 0) & (size <= room)
        taken[:, place] = fits
        room -= size * fits
        if not room.any():
            break
    chosen_words = np.zeros((num_rows, width), np.bool_)
    np.put_along_axis(chosen_words, order, taken, axis=1)
    return candidates & np.take_along_axis(chosen_words, word, axis=1)
