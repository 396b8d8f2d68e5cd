"""The estimate of a streamed step: limits that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portwright.runtime.speed_model import (
    Rates,
    StreamedLayer,
    expect_pipelining,
    expect_streaming,
    update_on_device,
)

# A layer whose forward takes 1 s, its backward 2 s.
LAYER = StreamedLayer(1.0, 2.0, sent_bytes=1, gradient_bytes=1, update_bytes=10)
FAST = Rates(flops_per_second=1.0, bus_bytes_per_second=1e6, host_bytes_per_second=1e6)


def expect(rates: Rates, num_layers: int = 8, **options: object):  # type: ignore[no-untyped-def]
    return expect_streaming([LAYER] * num_layers, 0.0, rates, **{"slots": 3, "trains": True, **options})


def test_where_everything_else_is_fast_compute_is_the_bound() -> None:
    expected = expect(FAST)
    assert expected.bound == "compute"
    assert expected.step_seconds == pytest.approx(8 * 4, rel=1e-4)  # forward, recomputed, backward
    assert expected.share == pytest.approx(1.0, abs=1e-4)


def test_a_slow_bus_is_the_bound() -> None:
    expected = expect(replace(FAST, bus_bytes_per_second=0.1))  # 10 s a layer, up twice
    assert expected.bound == "bus"
    # The last three layers are still there when the backward pass begins, and the first three when the next step does.
    assert 10 * (8 - 3) * 2 <= expected.step_seconds <= 10 * 8 * 2
    assert expected.share == pytest.approx(32 / expected.step_seconds)


def test_a_slow_cpu_is_the_bound_and_the_next_step_waits_for_it() -> None:
    expected = expect(replace(FAST, host_bytes_per_second=1.0))  # 10 s a layer
    assert expected.bound == "CPU optimizer"
    assert expected.step_seconds == pytest.approx(8 * 10, rel=0.15)


def test_an_update_as_long_as_the_step_costs_a_seam() -> None:
    """The layer whose gradient comes last is the first that the next step needs."""
    expected = expect(replace(FAST, host_bytes_per_second=2.5))
    assert 0.5 < expected.share < 1.0


def test_updates_on_the_device_relieve_the_cpu_and_load_the_bus() -> None:
    layers = [replace(LAYER, update_bytes=1000)] * 8
    shared = update_on_device(layers, 0.25)
    assert [layer.update_bytes for layer in shared].count(0) == 2
    assert update_on_device(layers, 0.0) == layers
    assert all(layer.update_bytes == 0 for layer in update_on_device(layers, 1.0))
    slow_cpu = replace(FAST, host_bytes_per_second=100.0)
    alone = expect_streaming(layers, 0.0, slow_cpu, slots=3, trains=True)
    helped = expect_streaming(shared, 0.0, slow_cpu, slots=3, trains=True)
    assert alone.bound == "CPU optimizer"
    assert helped.step_seconds < alone.step_seconds
    frozen = [replace(LAYER, gradient_bytes=0, update_bytes=0)] * 4
    assert update_on_device(frozen, 1.0) == frozen


def test_a_disk_is_the_bound_where_layers_live_on_it() -> None:
    layers = [replace(LAYER, disk_bytes=100)] * 8
    rates = replace(FAST, disk_bytes_per_second=1.0)
    expected = expect_streaming(layers, 0.0, rates, slots=3, trains=True)
    assert expected.bound == "disk"
    assert expected.step_seconds >= 800


def test_evaluation_sends_weights_once_and_nothing_back() -> None:
    expected = expect(replace(FAST, bus_bytes_per_second=0.1), trains=False)
    assert expected.bound == "bus"
    assert expected.step_seconds <= 80


def test_on_a_cpu_nothing_overlaps_and_recomputing_costs() -> None:
    expected = expect(FAST, shares_cores=True)
    assert expected.share == pytest.approx(3 / 4, rel=1e-3)
    assert expected.bound == "compute"


def test_a_model_without_work_is_no_division_by_zero() -> None:
    assert expect_streaming([], 0.0, FAST, slots=3, trains=True).share == 1.0
    assert expect_streaming([], 0.0, FAST, slots=3, trains=True, shares_cores=True).share == 1.0


def test_the_facts_of_an_h200_come_out() -> None:
    """3.2 billion parameters in 16 blocks, 16k and 64k tokens: performance.md has 0.75 to 0.9 and nearly 1."""
    num = 3.2e9 / 16
    rates = Rates(flops_per_second=565e12, bus_bytes_per_second=55e9, host_bytes_per_second=111e9)
    shares = {}
    for tokens in (16_384, 65_536):
        flops = 2 * num * tokens
        block = StreamedLayer(flops, 2 * flops, int(2 * num), int(2 * num), int(28 * num))
        shares[tokens] = expect_streaming([block] * 16, 6 * 0.27e9 * tokens, rates, slots=3, trains=True)
    assert shares[16_384].bound == "CPU optimizer"
    assert 0.7 < shares[16_384].share < 0.92
    assert shares[65_536].bound == "compute"
    assert shares[65_536].share > 0.97


def test_what_clipping_costs_an_h200() -> None:
    """16k tokens with max_gradient_norm: 1.0 reached 0.654; an estimate without it said 0.95."""
    num = 3.2e9 / 16
    rates = Rates(flops_per_second=565e12, bus_bytes_per_second=55e9, host_bytes_per_second=111e9)
    flops = 2 * num * 16_384
    block = StreamedLayer(flops, 2 * flops, int(2 * num), int(2 * num), int(28 * num))
    rest = 6 * 0.27e9 * 16_384
    never, always, last = (
        expect_streaming([block] * 16, rest, rates, slots=3, trains=True, verdict=verdict).share
        for verdict in ("none", "repeats", "waited for")
    )
    assert always < 0.654 < never
    assert 0.4 < last < never
    on_cpu = expect_streaming([block], rest, rates, slots=3, trains=True, shares_cores=True)
    clipped = expect_streaming(
        [block], rest, rates, slots=3, trains=True, shares_cores=True, verdict="repeats"
    )
    assert clipped.share < on_cpu.share


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=6),
    st.floats(0.01, 100),
    st.floats(0.01, 100),
    st.integers(2, 5),
)
def test_no_estimate_beats_its_slowest_part(work: list[float], bus: float, host: float, slots: int) -> None:
    layers = [StreamedLayer(w, 2 * w, 3, 3, 20) for w in work]
    expected = expect_streaming(layers, 1.0, Rates(1.0, bus, host), slots=slots, trains=True)
    assert 0 < expected.share <= 1 + 1e-9
    assert expected.busy_seconds is not None
    assert expected.step_seconds is not None
    assert expected.step_seconds >= max(expected.busy_seconds.values()) * (1 - 1e-9)
    assert expected.bound == max(expected.busy_seconds, key=lambda part: expected.busy_seconds[part])


@pytest.mark.parametrize(("stages", "micro", "share"), [(1, 1, 1.0), (2, 8, 8 / 9), (4, 16, 16 / 19)])
def test_a_pipeline_is_filled_but_for_its_bubble(stages: int, micro: int, share: float) -> None:
    expected = expect_pipelining(stages, micro)
    assert expected.share == pytest.approx(share)
    assert expected.bound == ("compute" if stages == 1 else "pipeline bubble")
