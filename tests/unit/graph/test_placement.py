"""Rectangles on a fabric: inside, apart, as large as asked for, the same each time."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portwright.graph.plans.estimate import Rectangle, place, share_cores

WAFER = (757, 996)


def assert_placed(cores: list[int], rectangles: list[Rectangle], fabric: tuple[int, int]) -> None:
    assert len(rectangles) == len(cores)
    for wanted, r in zip(cores, rectangles, strict=True):
        assert r.x >= 0
        assert r.y >= 0
        assert r.width >= 1
        assert r.height >= 1
        assert r.x + r.width <= fabric[0]
        assert r.y + r.height <= fabric[1]
        assert wanted <= r.area < wanted + r.height  # less than one column more
    # No core twice: among those that share rows, each begins where another has ended.
    by_row: dict[tuple[int, int], list[Rectangle]] = {}
    for r in rectangles:
        by_row.setdefault((r.y, r.height), []).append(r)
    strips = sorted(by_row)
    assert all(y + height <= below for (y, height), (below, _) in pairwise(strips))
    for strip in by_row.values():
        ordered = sorted(strip, key=lambda r: r.x)
        assert all(a.x + a.width <= b.x for a, b in pairwise(ordered))


@given(st.lists(st.integers(1, 20_000), max_size=30))
def test_what_leaves_some_room_is_placed(cores: list[int]) -> None:
    placed = place(cores, WAFER)
    assert placed is not None
    assert_placed(cores, placed, WAFER)
    assert placed == place(cores, WAFER)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 40), st.integers(1, 40))
def test_small_fabrics_are_never_overrun(cores: list[int], columns: int, rows: int) -> None:
    placed = place(cores, (columns, rows))
    if sum(cores) > columns * rows:
        assert placed is None
    if placed is not None:
        assert_placed(cores, placed, (columns, rows))


@pytest.mark.parametrize(
    "cores", [[], [1], [757 * 996], [1] * 3000, [700_000, 1, 1, 1], [10, 500_000, 10, 100_000], [7_000] * 96]
)
def test_shapes_that_happen(cores: list[int]) -> None:
    placed = place(cores, WAFER)
    assert placed is not None
    assert_placed(cores, placed, WAFER)


def test_equal_layers_are_readable() -> None:
    placed = place([7_000] * 96, WAFER)
    assert placed is not None
    assert all(1 / 3 < r.width / r.height < 3 for r in placed)


def test_neighbours_in_the_model_are_neighbours_on_the_fabric() -> None:
    placed = place([5_000] * 60, WAFER)
    assert placed is not None
    for a, b in pairwise(placed):
        touch_beside = a.y == b.y and (a.x + a.width == b.x or b.x + b.width == a.x)
        touch_below = a.y + a.height == b.y and a.x < b.x + b.width and b.x < a.x + a.width
        assert touch_beside or touch_below


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.floats(0, 5_000)), min_size=1, max_size=30),
    st.floats(1, 1e7),
)
def test_shares_hold_memory_and_are_proportional_to_work(
    parts: list[tuple[int, float]], wanted: float
) -> None:
    work, least = [float(w) for w, _ in parts], [m for _, m in parts]
    available = float(math.prod(WAFER))
    shares = share_cores(work, least, wanted, available)
    assert shares is not None  # 30 * 5,000 is less than there is
    assert shares.total <= available * (1 + 1e-9) or shares.total <= wanted * (1 + 1e-9) + sum(least)
    assert shares.crowding >= 1 - 1e-9
    assert all(cores >= m for cores, m in zip(shares.cores, least, strict=True))
    by_work = [
        c / w for c, w, m in zip(shares.cores, work, least, strict=True) if w > 1 and c > m * (1 + 1e-6)
    ]
    assert all(rate == pytest.approx(by_work[0], rel=1e-6) for rate in by_work)


def test_memory_that_does_not_fit_has_no_shares() -> None:
    assert share_cores([1.0, 1.0], [600.0, 500.0], 10, 1000) is None


def test_crowding_is_how_much_work_a_core_has_too_much() -> None:
    shares = share_cores([3.0, 1.0], [0.0, 0.0], wanted=4000, available=1000)
    assert shares is not None
    assert shares.cores == pytest.approx((750, 250))
    assert shares.crowding == pytest.approx(4)
