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
from native_cases import USUAL, Case, State, bits, load

from portwright.errors import UserError
from portwright.runtime.streaming.native import adam
from portwright.runtime.streaming.native.adam import NativeAdam

LENGTHS = (0, 1, 7, 15, 16, 17, 511, 512, 513, 16383, 16384, 16385, 50007)
HAS_TORCH_ORDER = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


@pytest.fixture(scope="module")
def native() -> NativeAdam:
    return load()


def assert_same_bits(a: State, b: State) -> None:
    for ours, theirs in zip(a.tensors(), b.tensors(), strict=True):
        assert torch.equal(bits(ours), bits(theirs)), (ours, theirs)


def assert_as_torch(ours: State, theirs: State) -> None:
    """Bit for bit where torch's kernel rounds in the order that ours takes over; NaN need not have the same payload."""
    tolerance = 0.0 if HAS_TORCH_ORDER else 5e-7
    for a, b in zip((ours.weight, ours.exp_avg, ours.exp_avg_sq), theirs.tensors(), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("decoupled", [False, True])
def test_it_gives_the_bits_of_torchs_fused_kernel(native: NativeAdam, n: int, decoupled: bool) -> None:
    for weight_decay, beta1, step in itertools.product((0.0, 0.1), (0.9, 0.3), (1, 1000)):
        options = {"decoupled": decoupled, "weight_decay": weight_decay, "beta1": beta1, "step": step}
        case = Case(n, seed=step)
        theirs = case.by_torch(**options)
        assert_as_torch(case.in_place(native, **options), theirs)
        assert_as_torch(case.apart(native, num_threads=2, **options), theirs)


@pytest.mark.parametrize(
    "options",
    [
        {"beta1": 0.0},
        {"beta1": 0.5},
        {"beta2": 0.0},
        {"beta1": 0.0, "beta2": 0.0, "eps": 0.0},
        {"lr": 0.0},
        {"lr": 1e3, "weight_decay": 0.0},
        {"eps": 1.0},
        {"step": 1},
        {"step": 10**7},
        {"weight_decay": -0.5, "decoupled": False},
        {"beta1": 0.999999, "beta2": 0.9999999},
    ],
    ids=str,
)
def test_hyperparameters_at_their_edges(native: NativeAdam, options: dict[str, Any]) -> None:
    case = Case(1003)
    case.weight[:3], case.grad[1:4] = 0.0, 0.0
    case.exp_avg[:2], case.exp_avg_sq[:2] = 0.0, 0.0
    if options.get("weight_decay", 0.0) < 0:  # which torch refuses to be made with
        expected = [torch.from_numpy(t) for t in case.in_double(**options)]
        for a, b in zip(case.in_place(native, **options).tensors(), expected, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-6)
        return
    assert_as_torch(case.in_place(native, **options), case.by_torch(**options))


@hypothesis_settings(max_examples=40, deadline=None)
@given(
    n=st.integers(0, 2000),
    seed=st.integers(0, 1000),
    lr=st.floats(1e-8, 1.0),
    beta1=st.floats(0.0, 0.9999),
    beta2=st.floats(0.0, 0.99999),
    eps=st.floats(1e-12, 1e-2),
    weight_decay=st.floats(0.0, 1.0),
    decoupled=st.booleans(),
    step=st.integers(1, 100_000),
)
def test_any_hyperparameters_give_torchs_bits(n: int, seed: int, **options: Any) -> None:
    native, case = load(), Case(n, seed)
    assert_as_torch(case.in_place(native, **options), case.by_torch(**options))


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("grad_factor", [1.0, 0.125, 0.3])
def test_it_is_right_to_the_last_places(native: NativeAdam, decoupled: bool, grad_factor: float) -> None:
    case = Case(20011)
    options = {"decoupled": decoupled, "grad_factor": grad_factor}
    result, exact = case.in_place(native, **options), case.in_double(**options)
    for ours, true in zip(result.tensors(), exact, strict=True):
        # Sums of both signs lose places: errors are measured in the last place of the largest term.
        error = np.abs(ours.double().numpy() - true)
        assert error.max() <= 2 * 2.0**-24 * max(1.0, np.abs(true).max())


def test_it_is_close_to_torchs_plain_loop(native: NativeAdam) -> None:
    case = Case(5000)
    for a, b in zip(case.in_place(native).tensors(), case.by_torch(fused=False).tensors(), strict=True):
        torch.testing.assert_close(a, b, rtol=2.5e-7, atol=1e-8)


def test_many_steps_stay_with_torch(native: NativeAdam) -> None:
    ours, theirs = Case(333), Case(333)
    for step in range(1, 60):
        grad = torch.randn(333, generator=torch.Generator().manual_seed(step))
        ours.grad, theirs.grad = grad, grad
        a, b = ours.apart(native, step=step), theirs.by_torch(step=step)
        ours.weight, ours.exp_avg, ours.exp_avg_sq = a.tensors()
        theirs.weight, theirs.exp_avg, theirs.exp_avg_sq = b.tensors()
    assert_as_torch(a, b)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("moments", [torch.float32, torch.bfloat16], ids=["moments-fp32", "moments-bf16"])
@pytest.mark.parametrize("grad_dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_way_it_is_taken_does_not_show(
    native: NativeAdam,
    n: int,
    moments: torch.dtype,
    grad_dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(n, moments=moments, grad_dtype=grad_dtype)
    for half in (None, torch.bfloat16, torch.float16, torch.float32):
        monkeypatch.setattr(adam, "_STREAM_FROM_BYTES", math.inf)
        first = case.in_place(native, half, num_threads=1)
        if half is not None:
            assert torch.equal(first.half, first.weight.to(half))  # type: ignore[arg-type]
        assert_same_bits(first, case.apart(native, half, num_threads=1))
        monkeypatch.setattr(adam, "_STREAM_FROM_BYTES", 0)  # past the caches
        assert_same_bits(first, case.in_place(native, half, num_threads=3))
        assert_same_bits(first, case.apart(native, half, num_threads=2))


@pytest.mark.parametrize("grad_dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_half_gradient_counts_as_its_value(native: NativeAdam, grad_dtype: torch.dtype) -> None:
    half = Case(3001, grad_dtype=grad_dtype)
    whole = Case(3001)
    whole.grad = half.grad.float()
    assert_same_bits(half.in_place(native), whole.in_place(native))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_half_gradient_counts_as_its_value(native: NativeAdam, dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    half, whole = Case(2**16), Case(2**16)
    half.grad, whole.grad = every, every.float()
    for a, b in zip(half.in_place(native).tensors(), whole.in_place(native).tensors(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_half_weight_is_rounded_to_nearest_even(native: NativeAdam, dtype: torch.dtype) -> None:
    made = torch.Generator().manual_seed(0)
    anything = torch.randint(-(2**31), 2**31, (300_000,), generator=made, dtype=torch.int64).to(torch.int32)
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).float()
    ties = bits(halves.clone()) + (0x8000 if dtype == torch.bfloat16 else 0x1000)
    specials = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, 1e-40, 6e-8, 3e-8, 2.98e-8, 65504.0, 65519.9, 65520.0, 3.4e38]  # fmt: skip
    weight = torch.cat(
        [anything.view(torch.float32), halves, ties.view(torch.float32), torch.tensor(specials)]
    )
    case = Case(len(weight))
    case.weight = weight
    taken = case.in_place(native, dtype, lr=0.0, num_threads=3)  # which leaves the weight as it is
    assert taken.half is not None
    torch.testing.assert_close(taken.weight, weight, rtol=0, atol=0, equal_nan=True)
    is_number = ~weight.isnan()
    assert torch.equal(taken.half.isnan(), weight.isnan())
    assert torch.equal(bits(taken.half)[is_number], bits(taken.weight.to(dtype))[is_number])


@pytest.mark.parametrize("num_threads", [2, 3, 7, 16, 100_000])
def test_the_number_of_threads_does_not_show(native: NativeAdam, num_threads: int) -> None:
    case = Case(300_001, grad_dtype=torch.bfloat16)
    alone = case.in_place(native, torch.bfloat16, num_threads=1)
    assert_same_bits(alone, case.in_place(native, torch.bfloat16, num_threads=num_threads))


@pytest.mark.parametrize("offset", [1, 3, 8, 15, 17])
@pytest.mark.parametrize("stream_from_bytes", [math.inf, 0])
def test_arrays_may_begin_anywhere_and_nothing_beside_them_is_written(
    native: NativeAdam, offset: int, stream_from_bytes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adam, "_STREAM_FROM_BYTES", stream_from_bytes)
    n, room = 3001, 3200
    case = Case(n, grad_dtype=torch.bfloat16)
    expected = case.apart(native, torch.bfloat16)
    places = {
        name: torch.full((room,), 7.0, dtype=dtype)
        for name, dtype in (
            ("weight_out", torch.float32), ("exp_avg_out", torch.float32),
            ("exp_avg_sq_out", torch.float32), ("half_out", torch.bfloat16),
        )
    }  # fmt: skip
    inputs = {}
    for name in ("weight", "exp_avg", "exp_avg_sq", "grad"):
        source = getattr(case, name)
        inputs[name] = torch.zeros(room, dtype=source.dtype)[offset : offset + n].copy_(source)
    outputs = {name: place[offset + 1 :][:n] for name, place in places.items()}
    native.step(**inputs, **outputs, **USUAL, num_threads=2)
    assert_same_bits(State(*outputs.values()), expected)
    for place in places.values():
        assert (place[: offset + 1] == 7.0).all()
        assert (place[offset + 1 + n :] == 7.0).all()


def test_special_values_go_through_as_in_torch(native: NativeAdam) -> None:
    specials = torch.tensor(
        [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-40, 1e-38, 3e38, -3e38, 1e-20, 1e20, 1.0]
    )
    rows = list(itertools.product(specials.tolist(), repeat=2))
    case = Case(len(rows))
    case.grad = torch.tensor([g for g, _ in rows])
    case.weight = torch.tensor([w for _, w in rows])
    for options in ({}, {"decoupled": False}, {"weight_decay": 0.0}, {"grad_factor": 1.0, "beta1": 0.2}):
        assert_as_torch(
            case.in_place(native, **options),
            case.by_torch(**{k: v for k, v in options.items() if k != "grad_factor"}),
        )
    tiny = Case(4000)
    for name in ("weight", "grad", "exp_avg", "exp_avg_sq"):
        setattr(tiny, name, getattr(tiny, name) * 1e-39)
    assert_as_torch(tiny.in_place(native), tiny.by_torch())
    assert (tiny.in_place(native).exp_avg != 0).any()  # kept, not flushed


def test_moments_in_bf16_are_rounded_to_a_neighbour_and_right_on_average(native: NativeAdam) -> None:
    case = Case(200_000, moments=torch.bfloat16)
    wide = Case(200_000)
    wide.exp_avg, wide.exp_avg_sq = case.exp_avg.float(), case.exp_avg_sq.float()
    exact, rounded = wide.in_place(native), case.in_place(native)
    assert torch.equal(exact.weight, rounded.weight)
    for true, got in ((exact.exp_avg, rounded.exp_avg), (exact.exp_avg_sq, rounded.exp_avg_sq)):
        below = (bits(true) & ~0xFFFF).view(torch.float32)
        above = ((bits(true) & ~0xFFFF) + 0x10000).view(torch.float32)
        is_up = got.float() == above
        assert (is_up | (got.float() == below)).all()
        share = (true - below) / (above - below)
        assert abs((is_up.double() - share.double()).mean().item()) < 5e-3
        assert abs(np.corrcoef(is_up[:-1], is_up[1:])[0, 1]) < 0.02


def test_a_moment_in_bf16_decays(native: NativeAdam) -> None:
    """Nearest would leave it where it is: a thousandth of it is less than half a place."""
    case = Case(20_000, moments=torch.bfloat16)
    case.grad.zero_()
    case.exp_avg_sq.fill_(1.0)
    assert torch.equal((case.exp_avg_sq.float() * 0.999).bfloat16(), case.exp_avg_sq)
    for step in range(1, 301):
        case.exp_avg_sq = case.apart(native, step=step, lr=0.0).exp_avg_sq
    assert case.exp_avg_sq.float().mean().item() == pytest.approx(0.999**300, rel=2e-3)


def test_bf16_rounding_depends_on_the_element_alone(native: NativeAdam) -> None:
    case = Case(40_000, moments=torch.bfloat16, grad_dtype=torch.bfloat16)
    whole = case.in_place(native, num_threads=3)
    part = Case(40_000, moments=torch.bfloat16, grad_dtype=torch.bfloat16)
    part.n = 776
    for name in ("weight", "grad", "exp_avg", "exp_avg_sq"):
        setattr(part, name, getattr(part, name)[12344 : 12344 + 776])
    for a, b in zip(part.in_place(native).tensors(), whole.tensors(), strict=True):
        assert torch.equal(a, b[12344 : 12344 + 776])
    assert not torch.equal(whole.exp_avg_sq, case.in_place(native, step=6, beta2=0.999).exp_avg_sq)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lr": math.nan}, "lr=nan"),
        ({"eps": math.inf}, "eps=inf"),
        ({"grad_factor": math.nan}, "grad_factor=nan: not a finite number"),
    ],
    ids=str,
)
def test_bad_hyperparameters_are_named(native: NativeAdam, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Case(10).in_place(native, **changed)


def test_neighbours_in_one_array_do_not_overlap(native: NativeAdam) -> None:
    memory = torch.zeros(80)
    names = ("weight", "exp_avg", "exp_avg_sq", "weight_out", "exp_avg_out", "exp_avg_sq_out", "grad")
    arrays = {name: memory[10 * i : 10 * i + 10] for i, name in enumerate(names)}
    native.step(**arrays, half_out=None, **USUAL)  # type: ignore[arg-type]
