"""Layers in stages, one chip each."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from portwright.graph.plans.load import Stage, can_split, split_stages


def split(
    work: list[float],
    count: int,
    fixed: list[int] | None = None,
    saved: list[int] | None = None,
    chip: int = 10**9,
) -> list[Stage] | None:
    zeros = [0] * len(work)
    return split_stages(work, fixed or zeros, saved or zeros, count, chip, 1472, True, sum(fixed or zeros))


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=9), st.integers(1, 4))
def test_no_other_split_has_a_less_busy_stage(work: list[float], count: int) -> None:
    stages = split(work, count)
    if count > len(work):
        assert stages is None
        return
    assert stages is not None
    assert [i for stage in stages for i in stage.layers] == list(range(len(work)))
    busiest = max(sum(work[i] for i in stage.layers) for stage in stages)
    best = min(
        max(sum(work[a:b]) for a, b in zip((0, *cuts), (*cuts, len(work)), strict=True))
        for cuts in combinations(range(1, len(work)), count - 1)
    )
    assert busiest <= best * (1 + 1e-6)


@given(
    # Operations are counted, so work is a whole number.
    st.lists(st.tuples(st.integers(0, 100).map(float), st.integers(0, 50), st.integers(0, 50)), max_size=8),
    st.integers(1, 4),
    st.integers(0, 300),
)
def test_a_split_can_be_made_where_one_is(
    layers: list[tuple[float, int, int]], count: int, chip: int
) -> None:
    work, fixed, saved = ([layer[i] for layer in layers] for i in range(3))
    peak = sum(fixed) + sum(saved)
    stages = split_stages(work, fixed, saved, count, chip, 1472, True, peak)
    assert can_split(work, fixed, saved, count, chip, True, peak) == (stages is not None)
    assert all(stage.memory_bytes <= chip for stage in stages or ())


def test_the_first_stage_holds_the_most_batches() -> None:
    stages = split([1.0] * 8, 4, fixed=[10] * 8, saved=[1] * 8)
    assert stages is not None
    assert [stage.in_flight for stage in stages] == [7, 5, 3, 1]
    assert [stage.memory_bytes for stage in stages] == [34, 30, 26, 22]


def test_memory_moves_layers_to_later_stages() -> None:
    balanced = split([1.0] * 4, 2, fixed=[1] * 4, saved=[10] * 4, chip=1000)
    tight = split([1.0] * 4, 2, fixed=[1] * 4, saved=[10] * 4, chip=40)
    assert [len(stage.layers) for stage in balanced or ()] == [2, 2]
    assert [len(stage.layers) for stage in tight or ()] == [1, 3]
    assert split([1.0] * 4, 2, fixed=[1] * 4, saved=[10] * 4, chip=30) is None
    assert all(sum(stage.cores_of) <= 1472 for stage in balanced or ())
