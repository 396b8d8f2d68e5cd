"""Products of half tensors: added up in half they lose what long sums lose on an IPU; in float32 they are rounded once."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from unit.emulate.program_models import Scored, Step, trace, weights_of

from portwright.emulate.poptorch._partials import PRODUCTS_A_ROUND, choose_target

aten = torch.ops.aten
HALF, FLOAT = torch.float16, torch.float32


def error(result: Tensor, truth: Tensor) -> float:
    return float((result.double() - truth).abs().mean() / truth.abs().mean())


def in_half(op: Any, *args: Any, **kwargs: Any) -> Any:
    return choose_target(op, HALF)(*args, **kwargs)


def in_float(op: Any, *args: Any, **kwargs: Any) -> Any:
    return choose_target(op, FLOAT)(*args, **kwargs)


def rounded(truth: Tensor) -> Tensor:
    return truth.half()


@pytest.mark.parametrize("length", [1, 5, PRODUCTS_A_ROUND])
def test_short_sums_are_the_same(length: int) -> None:
    torch.manual_seed(length)
    a, b = torch.randn(7, length).half(), torch.randn(length, 3).half()
    assert torch.equal(in_half(aten.mm.default, a, b), in_float(aten.mm.default, a, b))


@pytest.mark.parametrize("length", [512, 4096])
def test_long_sums_lose_in_half(length: int) -> None:
    torch.manual_seed(length)
    a, b = (
        torch.rand(6, length).half(),
        torch.rand(length, 5).half(),
    )  # all positive: the sum grows and its steps with it
    truth = a.double() @ b.double()
    once, often = error(in_float(aten.mm.default, a, b), truth), error(in_half(aten.mm.default, a, b), truth)
    assert once < 4e-4  # half a step of a half number
    assert often > 2 * once


def test_a_sum_stops_growing_where_half_has_no_smaller_step() -> None:
    ones, small = (
        torch.ones(1, 64 * PRODUCTS_A_ROUND).half(),
        torch.full((64 * PRODUCTS_A_ROUND, 1), 2.0**-6).half(),
    )
    start = torch.full((1, 1), 2048.0).half()
    biased = torch.cat([start, ones], 1), torch.cat([torch.ones(1, 1).half(), small])
    # 2048 has neighbours 2 apart: groups of 0.25 are lost one by one, and 16 in all are not.
    assert in_half(aten.mm.default, *biased).item() == 2048
    assert in_float(aten.mm.default, *biased).item() == 2064


def test_an_overflow_on_the_way_stays() -> None:
    a = torch.tensor([[256.0] * PRODUCTS_A_ROUND * 2 + [-256.0] * PRODUCTS_A_ROUND * 2]).half()
    b = torch.full((4 * PRODUCTS_A_ROUND, 1), 16.0).half()
    assert in_float(aten.mm.default, a, b).item() == 0
    assert in_half(aten.mm.default, a, b).item() != 0


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 5), st.integers(0, 40), st.integers(0, 5), st.integers(0, 9))
def test_float_partials_round_once(rows: int, length: int, columns: int, seed: int) -> None:
    torch.manual_seed(seed)
    a, b = torch.randn(rows, length).half(), torch.randn(length, columns).half()
    result = in_float(aten.mm.default, a, b)
    assert (result.shape, result.dtype) == ((rows, columns), HALF)
    assert torch.equal(result, (a.float() @ b.float()).half())
    assert in_half(aten.mm.default, a, b).shape == (rows, columns)


@pytest.mark.parametrize("partials", [HALF, FLOAT])
@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0.5, 2), (0, 1)])
def test_each_product_is_the_op_it_stands_for(partials: torch.dtype, beta: float, alpha: float) -> None:
    torch.manual_seed(1)
    a, b, c = torch.randn(3, 40).half(), torch.randn(40, 4).half(), torch.randn(3, 4).half()
    scale = {"beta": beta, "alpha": alpha}
    cases: list[tuple[Any, tuple[Tensor, ...], dict[str, Any]]] = [
        (aten.addmm.default, (c, a, b), scale),
        (aten.addmm.default, (c[0], a, b), scale),
        (aten.baddbmm.default, (c.expand(2, 3, 4), a.expand(2, 3, 40), b.expand(2, 40, 4)), scale),
        (aten.addmv.default, (c[:, 0], a, b[:, 0]), scale),
        (aten.mm.default, (a, b), {}),
        (aten.bmm.default, (a.expand(2, 3, 40), b.expand(2, 40, 4)), {}),
        (aten.mv.default, (a, b[:, 0]), {}),
        (aten.dot.default, (a[0], b[:, 0]), {}),
    ]
    for op, args, kwargs in cases:
        truth = op(*(tensor.double() for tensor in args), **kwargs)
        result = choose_target(op, partials)(*args, **kwargs)
        assert (result.shape, result.dtype) == (truth.shape, HALF)
        torch.testing.assert_close(result.double(), truth, rtol=2e-2, atol=2e-2)


def test_a_bias_that_does_not_count_may_be_anything() -> None:
    a, b = torch.ones(2, 20).half(), torch.ones(20, 2).half()
    spoilt = torch.full((2, 2), float("nan")).half()
    assert in_half(aten.addmm.default, spoilt, a, b, beta=0).tolist() == [[20, 20], [20, 20]]


CONVOLUTIONS = [
    (dims, groups, transposed, stride, padding, dilation, extra)
    for dims, groups, transposed, stride, padding, dilation, extra in itertools.product(
        (1, 2, 3), (1, 2), (False, True), (1, 2), (0, 1), (1, 2), (0, 1)
    )
    if not extra or (transposed and stride > 1)
]


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolutions_and_their_gradients(dims: int) -> None:
    for _, groups, transposed, stride, padding, dilation, extra in (c for c in CONVOLUTIONS if c[0] == dims):
        torch.manual_seed(groups + stride)
        sizes = [7, 8, 6][:dims]
        shape = (4, 6 // groups) if transposed else (6, 4 // groups)
        x, w, b = (
            torch.randn(2, 4, *sizes).half(),
            torch.randn(*shape, *[3] * dims).half(),
            torch.randn(6).half(),
        )
        each = ([stride] * dims, [padding] * dims, [dilation] * dims, transposed, [extra] * dims, groups)
        truth = aten.convolution.default(x.double(), w.double(), b.double(), *each)
        g = torch.randn(truth.shape).half()
        backward = aten.convolution_backward.default
        gradients = backward(g.double(), x.double(), w.double(), [6], *each, [True] * 3)
        for partials in (HALF, FLOAT):
            result = choose_target(aten.convolution.default, partials)(x, w, b, *each)
            torch.testing.assert_close(result.double(), truth, rtol=3e-2, atol=3e-2)
            found = choose_target(backward, partials)(g, x, w, [6], *each, [True] * 3)
            for mine, right in zip(found, gradients, strict=True):
                assert mine.dtype == HALF
                torch.testing.assert_close(mine.double(), right, rtol=5e-2, atol=0.1)


def test_unwanted_gradients_of_a_convolution_are_left_out() -> None:
    x, w = torch.randn(1, 4, 5).half(), torch.randn(2, 4, 3).half()
    g, each = torch.randn(1, 2, 3).half(), ([1], [0], [1], False, [0], 1)
    for partials in (HALF, FLOAT):
        found = choose_target(aten.convolution_backward.default, partials)(
            g, x, w, None, *each, [False, True, False]
        )
        assert [item is None for item in found] == [True, False, True]


def test_a_convolution_over_many_channels_loses_in_half() -> None:
    torch.manual_seed(2)
    x, w = torch.rand(1, 256, 6, 6).half(), torch.rand(4, 256, 3, 3).half()
    each = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    truth = aten.convolution.default(x.double(), w.double(), None, *each)
    once = error(in_float(aten.convolution.default, x, w, None, *each), truth)
    often = error(in_half(aten.convolution.default, x, w, None, *each), truth)
    assert once < 4e-4
    assert often > 2 * once


def test_torchs_default_type_has_no_part_in_it() -> None:
    torch.manual_seed(8)
    a, b, w = torch.rand(2, 600).half(), torch.rand(600, 2).half(), torch.rand(2, 3, 5).half()
    x, each = torch.rand(1, 3, 9).half(), ([1], [0], [1], False, [0], 1)
    expected = in_half(aten.mm.default, a, b), in_half(aten.convolution.default, x, w, None, *each)
    torch.set_default_dtype(torch.float64)
    try:
        found = in_half(aten.mm.default, a, b), in_half(aten.convolution.default, x, w, None, *each)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_other_types_are_left_to_torch(dtype: torch.dtype) -> None:
    a, b = torch.randn(3, 40, dtype=dtype), torch.randn(40, 3, dtype=dtype)
    assert torch.equal(in_half(aten.mm.default, a, b), a @ b)
    assert torch.equal(in_float(aten.mm.default, a, b), a @ b)


def test_other_ops_and_no_partials_are_torchs_own() -> None:
    assert choose_target(aten.add.Tensor, HALF) is aten.add.Tensor
    assert choose_target(aten.mm.default, None) is aten.mm.default


@pytest.mark.parametrize("partials", [torch.float64, torch.bfloat16, torch.int32])
def test_partials_of_another_type_are_refused(partials: torch.dtype) -> None:
    with pytest.raises(ValueError, match=str(partials)):
        choose_target(aten.mm.default, partials)


# In a program


def results(model: nn.Module, inputs: list[Tensor], training: bool, partials: Any) -> tuple[Any, Any]:
    return trace(model, inputs, training=training, partials=partials).run(weights_of(model), inputs)


def test_a_program_computes_with_its_partials() -> None:
    torch.manual_seed(3)
    model = Scored(nn.Linear(2048, 4), lambda o, y: F.mse_loss(o.float(), y)).half()
    with torch.no_grad():
        model.body.weight.abs_()
    inputs = [torch.rand(3, 2048).half(), torch.zeros(3, 4)]
    truth = F.linear(*(t.double() for t in (inputs[0], model.body.weight.detach(), model.body.bias.detach())))
    half, once = (results(model, inputs, True, partials)[0][0] for partials in (HALF, FLOAT))
    assert error(once, truth) < 4e-4
    assert error(half, truth) > 2 * error(once, truth)


def test_gradients_have_partials_too() -> None:
    torch.manual_seed(4)
    model = Step(lambda m, x: m.linear(x).float().sum()).half()
    inputs = [torch.rand(3000, 6).half()]
    truth = inputs[0].double().sum(0).expand(4, 6)
    half, once = (results(model, inputs, True, partials)[1]["linear.weight"] for partials in (HALF, FLOAT))
    assert error(once, truth) < 4e-4
    assert error(half, truth) > 2 * error(once, truth)


def test_attention_has_partials_too() -> None:
    torch.manual_seed(5)

    def attend(m: nn.Module, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)

    inputs = [torch.rand(1, 2, 12, 512).half()]
    model = Step(attend).half()
    nodes = [node.name for node in trace(model, inputs, training=False, partials=HALF).nodes()]
    assert not any("flash" in name for name in nodes)
    truth = attend(model, inputs[0].double())
    half, once = (results(model, inputs, False, partials)[0][0] for partials in (HALF, FLOAT))
    assert error(half, truth) > error(once, truth)


def test_float_models_are_untouched_by_partials() -> None:
    torch.manual_seed(6)
    model, inputs = Scored(nn.Linear(64, 4)), [torch.rand(3, 64), torch.rand(3, 4)]
    plain, in_halves = results(model, inputs, True, None), results(model, inputs, True, HALF)
    assert all(torch.equal(a, b) for a, b in zip(plain[0], in_halves[0], strict=True))
    assert all(torch.equal(plain[1][name], in_halves[1][name]) for name in plain[1])
