from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from portwright.data.draws import Draws
from portwright.text.spans import corrupt_spans, lengths_after, noise_mask, noise_of, raw_length_for

EOS, PAD = 1, 0
SENTINELS = np.arange(1000, 900, -1)


def corrupt(
    lengths: list[int], seed: int, density: float = 0.15, mean: float = 3.0
) -> tuple[np.ndarray, ...]:
    width = max(lengths)
    tokens = np.random.default_rng(seed).integers(2, 900, (len(lengths), width))
    draws = Draws(seed, 0, np.arange(len(lengths)))
    mask = noise_mask(np.asarray(lengths), width, draws, density, mean)
    return tokens, mask, *corrupt_spans(tokens, np.asarray(lengths), mask, SENTINELS, EOS, PAD)


def restore(source: list[int], target: list[int]) -> list[int]:
    """The text again: each sentinel of the input gives way to what follows it in the target."""
    assert source.pop() == EOS
    assert target.pop() == EOS
    told: dict[int, list[int]] = {}
    for token in target:
        if token > 900:
            told[token] = current = []
        else:
            current.append(token)
    assert all(told.values())  # no span is empty
    return [token for each in source for token in (told[each] if each > 900 else [each])]


@given(
    st.lists(st.integers(1, 120), min_size=1, max_size=6),
    st.integers(0, 10**6),
    st.floats(0.01, 0.6),
    st.floats(1, 6),
)
def test_the_text_can_be_told_from_input_and_target(
    lengths: list[int], seed: int, density: float, mean: float
) -> None:
    tokens, mask, inputs, input_lengths, targets, target_lengths = corrupt(lengths, seed, density, mean)
    noise, spans = noise_of(lengths, density, mean)
    assert mask.sum(axis=1).tolist() == noise.tolist()
    for row, length in enumerate(lengths):
        source = inputs[row, : input_lengths[row]].tolist()
        target = targets[row, : target_lengths[row]].tolist()
        assert (inputs[row, input_lengths[row] :] == PAD).all()
        assert len(source) == length - noise[row] + spans[row] + 1
        assert len(target) == noise[row] + spans[row] + 1
        sentinels = [token for token in source if token > 900]
        assert sentinels == SENTINELS[: spans[row]].tolist()
        assert [token for token in target if token > 900] == sentinels
        if length > 1:
            assert not mask[row, 0]
            assert mask[row, length - 1]
        assert restore(source, target) == tokens[row, :length].tolist()


def test_lengths_are_those_of_the_paper() -> None:
    # T5's 512 and 114: random_spans_helper of text-to-text-transfer-transformer says 568 tokens of text.
    assert raw_length_for(512) == 568
    assert lengths_after(568) == (512, 114)


@given(st.integers(4, 600))
def test_no_longer_text_would_fit(length: int) -> None:
    raw = raw_length_for(length)
    assert lengths_after(raw)[0] <= length < lengths_after(raw + 1)[0]


def test_a_sample_has_the_same_spans_in_any_batch_and_others_in_the_next_epoch() -> None:
    lengths = np.asarray([90, 70, 90, 31])
    whole = noise_mask(lengths, 90, Draws(5, 2, [3, 9, 4, 8]))
    alone = noise_mask(lengths[[3, 1]], 90, Draws(5, 2, [8, 9]))
    assert (whole[[3, 1]] == alone).all()
    later = noise_mask(lengths, 90, Draws(5, 3, [3, 9, 4, 8]))
    assert (whole != later).any(axis=1).all()


def test_every_way_of_cutting_is_as_likely() -> None:
    # Three tokens kept and three taken, in two spans each: 2 x 2 ways.
    mask = noise_mask(np.full(4000, 6), 6, Draws(1, 0, np.arange(4000)), 0.5, 1.5)
    ways, counts = np.unique(mask, axis=0, return_counts=True)
    assert len(ways) == 4
    assert counts.min() > 900


def test_too_few_sentinels_are_no_silent_wrong_text() -> None:
    tokens = np.full((1, 60), 7)
    mask = noise_mask(np.asarray([60]), 60, Draws(1, 0, [0]))
    with pytest.raises(ValueError, match="3 spans and 2 sentinels"):
        corrupt_spans(tokens, np.asarray([60]), mask, SENTINELS[:2], EOS, PAD)
