"""Random numbers by sample: the same for any batch, rank, worker and resume."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from portwright.data import Draws
from portwright.errors import UserError


def test_a_sample_draws_the_same_in_any_batch() -> None:
    whole = Draws(3, 1, np.arange(100))
    shuffled = np.random.default_rng(0).permutation(100)
    for name, shape in (("mask", (17,)), ("swap", ()), ("deep", (3, 4))):
        expected = whole.uniform(name, *shape)
        assert expected.shape == (100, *shape)
        np.testing.assert_array_equal(Draws(3, 1, shuffled).uniform(name, *shape), expected[shuffled])
        np.testing.assert_array_equal(Draws(3, 1, [41]).uniform(name, *shape), expected[[41]])


@pytest.mark.parametrize("other", [Draws(4, 1, [5]), Draws(3, 2, [5]), Draws(3, 1, [6])])
def test_seed_epoch_and_sample_all_matter(other: Draws) -> None:
    ours = Draws(3, 1, [5])
    assert not np.isin(ours.bits("mask", 64), other.bits("mask", 64)).any()
    assert not np.isin(ours.bits("mask", 64), ours.bits("other", 64)).any()


def test_longer_draws_begin_with_shorter_ones() -> None:
    draws = Draws(0, 0, np.arange(4))
    np.testing.assert_array_equal(draws.uniform("x", 10)[:, :3], draws.uniform("x", 3))


def test_uniform_looks_uniform() -> None:
    drawn = Draws(1, 0, np.arange(4000)).uniform("x", 50)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = np.histogram(drawn, bins=20, range=(0, 1))[0]
    chi_square = ((counts - 10_000) ** 2 / 10_000).sum()
    assert chi_square < 55  # 19 degrees of freedom; one in 30,000 is above
    along, across = (
        np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1],
        np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1],
    )
    assert abs(along) < 0.07
    assert abs(across) < 0.07


@given(high=st.integers(1, 2**53), seed=st.integers(0, 2**63 - 1))
def test_integers_stay_below_their_bound(high: int, seed: int) -> None:
    drawn = Draws(seed, 0, np.arange(20)).integers("x", high, 5)
    assert drawn.dtype == np.int64
    assert drawn.min() >= 0
    assert drawn.max() < high


def test_bounds_may_differ_by_sample() -> None:
    bounds = np.arange(1, 101)[:, None]
    drawn = Draws(0, 0, np.arange(100)).integers("x", bounds, 30)
    assert (drawn < bounds).all()
    assert (drawn[99] > 50).any()


@pytest.mark.parametrize("high", [0, -3, 2**54, [1, 0]])
def test_an_empty_range_is_refused(high: object) -> None:
    with pytest.raises(UserError, match=r"integers\('x'\)"):
        Draws(0, 0, [1, 2]).integers("x", high)


def test_permutations_are_permutations_of_their_own() -> None:
    drawn = Draws(0, 0, np.arange(50)).permutations("x", 8)
    assert (np.sort(drawn, axis=1) == np.arange(8)).all()
    assert len({tuple(row) for row in drawn.tolist()}) > 45


def test_a_batch_of_no_samples() -> None:
    assert Draws(0, 0, []).uniform("x", 3).shape == (0, 3)


def test_known_values_never_change() -> None:
    """A checkpoint of today must be resumed with the same masks by tomorrow's release."""
    assert Draws(7, 2, [0, 123456789]).bits("mask", 2).tolist() == KNOWN


KNOWN = [[6276552551226576983, 10713220903142457144], [8204657273590619560, 15146211681162578950]]


def test_stores_and_draws_need_no_torch() -> None:
    code = (
        "import sys; from portwright.data import Draws, Store, StoreWriter, Field;"
        "sys.exit('torch' in sys.modules or 'tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
