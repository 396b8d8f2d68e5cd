from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from portwright.data.draws import Draws
from portwright.text.masking import MaskRules, mask_tokens

NUM_SPECIAL, SIZE, MASK = 5, 60, 4
CLS, SEP, PAD = 2, 3, 0


def rules(probability: float = 0.15, most: int = 20, *, whole_word: bool = False) -> MaskRules:
    special = np.arange(SIZE) < NUM_SPECIAL
    later = np.arange(SIZE) >= 40  # these go on a word
    return MaskRules(
        MASK,
        special,
        np.arange(NUM_SPECIAL, SIZE, dtype=np.int32),
        later,
        ~special,
        probability,
        most,
        whole_word,
    )


def rows_of(lengths: list[int], seed: int) -> tuple[np.ndarray, np.ndarray]:
    width = max(lengths) + 2
    tokens = np.random.default_rng(seed).integers(NUM_SPECIAL, SIZE, (len(lengths), width))
    tokens[:, 0] = CLS
    for row, length in enumerate(lengths):
        tokens[row, length + 1] = SEP
        tokens[row, length + 2 :] = PAD
    return tokens, np.asarray(lengths) + 2


LENGTHS = st.lists(st.integers(0, 50), min_size=1, max_size=5)


@given(LENGTHS, st.integers(0, 10**6), st.floats(0.01, 0.9), st.integers(1, 30), st.booleans())
def test_what_is_masked(
    lengths: list[int], seed: int, probability: float, most: int, whole_word: bool
) -> None:
    tokens, with_special = rows_of(lengths, seed)
    draws = Draws(seed, 0, np.arange(len(lengths)))
    chosen_rules = rules(probability, most, whole_word=whole_word)
    input_ids, positions, weights, labels = mask_tokens(tokens, with_special, draws, chosen_rules)
    assert positions.shape == weights.shape == labels.shape == (len(lengths), most)
    for row, length in enumerate(lengths):
        count = int(weights[row].sum())
        wanted = min(max(round(length * probability), 1), most, length)
        assert count <= wanted if whole_word else count == wanted
        assert (weights[row, :count] == 1).all()
        assert not weights[row, count:].any()
        places = positions[row, :count]
        assert (np.diff(places) > 0).all()
        assert ((places >= 1) & (places <= length)).all()  # neither cls, sep nor padding
        assert (labels[row, :count] == tokens[row, places]).all()
        assert not labels[row, count:].any()
        others = np.ones(tokens.shape[1], bool)
        others[places] = False
        assert (input_ids[row, others] == tokens[row, others]).all()
        put = input_ids[row, places]
        assert ((put == MASK) | (put >= NUM_SPECIAL)).all()
        if whole_word:
            goes_on = (tokens[row] >= 40) & (np.roll(tokens[row], 1) >= NUM_SPECIAL)
            for place in range(2, length + 1):
                if goes_on[place]:
                    assert (place in places) == (place - 1 in places)


def test_eighty_ten_ten() -> None:
    tokens, lengths = rows_of([50] * 2000, 1)
    draws = Draws(3, 0, np.arange(2000))
    input_ids, positions, weights, labels = mask_tokens(tokens, lengths, draws, rules(0.3))
    put = np.take_along_axis(input_ids, positions, axis=1)[weights > 0]
    was = labels[weights > 0]
    assert (put == MASK).mean() == pytest.approx(0.8, abs=0.01)
    # One in 55 of the replacements is the token itself.
    assert (put == was).mean() == pytest.approx(0.1 + 0.1 / 55, abs=0.01)
    replaced = put[(put != MASK) & (put != was)]
    assert len(np.unique(replaced)) == SIZE - NUM_SPECIAL
    every_place = np.bincount(positions[weights > 0], minlength=51)[1:51]
    assert every_place.min() > 0.7 * every_place.mean()


def test_masks_belong_to_the_sample_and_change_with_the_epoch() -> None:
    tokens, lengths = rows_of([40, 30, 20], 1)
    whole = mask_tokens(tokens, lengths, Draws(1, 1, [7, 8, 9]), rules())
    alone = mask_tokens(tokens[[2, 0]], lengths[[2, 0]], Draws(1, 1, [9, 7]), rules())
    for one, other in zip(whole, alone, strict=True):
        assert (one[[2, 0]] == other).all()
    later = mask_tokens(tokens, lengths, Draws(1, 2, [7, 8, 9]), rules())
    assert (whole[1] != later[1]).any(axis=1).all()


def test_a_row_of_special_tokens_alone_has_no_prediction() -> None:
    tokens, lengths = rows_of([0, 5], 1)
    for whole_word in (False, True):
        _, _, weights, _ = mask_tokens(tokens, lengths, Draws(1, 0, [0, 1]), rules(whole_word=whole_word))
        assert weights[0].sum() == 0
