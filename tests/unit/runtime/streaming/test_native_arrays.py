from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from native_cases import bits, load

from portwright.errors import UserError
from portwright.runtime.streaming.native import NativeAdam, measure_bandwidth

HALVES = [torch.bfloat16, torch.float16]
SPECIALS = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1e-40, 6e-8, 3e-8, 2.98e-8, 6.1e-5, 65504.0, 65519.9, 65520.0, 3.4e38, -3.4e38]  # fmt: skip


@pytest.fixture(scope="module")
def native() -> NativeAdam:
    return load()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_half_widens_to_its_value(native: NativeAdam, dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    out = torch.empty(2**16)
    native.widen(out, every, num_threads=2)
    expected = every.float()
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(bits(out)[~out.isnan()], bits(expected)[~out.isnan()])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_narrowing_rounds_to_nearest_even(native: NativeAdam, dtype: torch.dtype) -> None:
    made = torch.Generator().manual_seed(0)
    anything = torch.randint(-(2**31), 2**31, (300_000,), generator=made, dtype=torch.int64).to(torch.int32)
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).float()
    ties = bits(halves.clone()) + (0x8000 if dtype == torch.bfloat16 else 0x1000)
    source = torch.cat(
        [anything.view(torch.float32), torch.tensor(SPECIALS), halves, ties.view(torch.float32)]
    )
    out = torch.empty(len(source), dtype=dtype)
    native.narrow(out, source, num_threads=3)
    expected = source.to(dtype)
    assert torch.equal(out.isnan(), source.isnan())
    assert torch.equal(bits(out)[~source.isnan()], bits(expected)[~source.isnan()])


@hypothesis_settings(max_examples=50, deadline=None)
@given(
    source=arrays(np.float32, st.integers(0, 1100), elements=st.floats(width=32)),
    dtype=st.sampled_from(HALVES),
)
def test_any_floats_narrow_and_widen_as_in_torch(source: np.ndarray, dtype: torch.dtype) -> None:
    native, tensor = load(), torch.from_numpy(source)
    half, wide = torch.empty(len(source), dtype=dtype), torch.empty(len(source))
    native.narrow(half, tensor)
    native.widen(wide, half)
    torch.testing.assert_close(wide, tensor.to(dtype).float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 512, 16385, 100_003])
def test_squares_are_summed_in_double_whatever_the_threads(
    native: NativeAdam, dtype: torch.dtype, n: int
) -> None:
    grad = (torch.randn(n, generator=torch.Generator().manual_seed(n)) * 100).to(dtype)
    total = native.sum_squares(grad, num_threads=1)
    exact = math.fsum((grad.double() ** 2).tolist())
    assert total == pytest.approx(exact, rel=1e-14, abs=0)
    assert {native.sum_squares(grad, num_threads=k) for k in (2, 3, 5, 9)} == {total}


def test_squares_neither_overflow_nor_hide_what_is_not_finite(native: NativeAdam) -> None:
    assert native.sum_squares(torch.full((10,), 3e38)) == pytest.approx(10 * 9e76, rel=1e-6)
    assert native.sum_squares(torch.full((10,), 1e-40)) > 0
    for place, value in itertools.product((0, 40, 99), (math.inf, -math.inf, math.nan)):
        grad = torch.zeros(100)
        grad[place] = value
        assert not math.isfinite(native.sum_squares(grad))


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("n", [0, 1, 513, 33_333])
def test_gradients_are_added_in_fp32(native: NativeAdam, dtype: torch.dtype, n: int) -> None:
    total, grad = torch.randn(n), torch.randn(n).to(dtype)
    expected = total + grad.float()
    native.add(total, grad, num_threads=2)
    assert torch.equal(total, expected)


def test_touching_zeroes_every_byte(native: NativeAdam) -> None:
    for array in (torch.full((100_003,), 255, dtype=torch.uint8), torch.ones(3, 50_000), torch.ones(0)):
        native.touch(array, num_threads=3)
        assert not array.any()


def test_bandwidth_is_a_positive_number_of_bytes(native: NativeAdam) -> None:
    found = measure_bandwidth(native, num_bytes=4 << 20, num_threads=2)
    assert 1e6 < found.copy < 1e14
    assert 1e6 < found.update < 1e14
    with pytest.raises(UserError, match="num_bytes=0"):
        measure_bandwidth(native, num_bytes=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda n: n.add(torch.zeros(3), torch.zeros(4)), "Lengths differ: accumulator 3, grad 4"),
        (lambda n: n.add(torch.zeros(3).bfloat16(), torch.zeros(3)), "accumulator is bfloat16"),
        (lambda n: n.widen(torch.zeros(3).half(), torch.zeros(3).half()), "out is float16. Pass float32"),
        (lambda n: n.narrow(torch.zeros(3).half(), torch.zeros(3).double()), "source is float64"),
        (lambda n: n.narrow(torch.zeros(3).long(), torch.zeros(3)), "out is int64"),
        (lambda n: n.sum_squares(torch.zeros(3, 4).t()), "grad has gaps"),
        (lambda n: n.sum_squares(torch.zeros(3).long()), "grad is int64"),
        (lambda n: n.touch(torch.zeros(3, device="meta")), "array is on meta"),
    ],
)  # fmt: skip
def test_bad_arrays_are_named(native: NativeAdam, call: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call(native)


def test_conversions_within_one_memory_are_refused(native: NativeAdam) -> None:
    memory = torch.zeros(10)
    with pytest.raises(UserError, match="out overlaps source"):
        native.widen(memory, memory.view(torch.bfloat16)[:10])
    with pytest.raises(UserError, match="out overlaps source"):
        native.narrow(memory.view(torch.bfloat16)[5:15], memory)
    with pytest.raises(UserError, match="accumulator overlaps grad"):
        native.add(memory[1:], memory[:9])
