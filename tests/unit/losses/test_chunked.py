from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from portwright.errors import UnsupportedError, UserError
from portwright.losses import chunked_cross_entropy

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def make_head(num_tokens, width, vocab, dtype=torch.float32, bias=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(num_tokens, width, generator=generator)
    weight = torch.randn(vocab, width, generator=generator) / width**0.5
    offset = torch.randn(vocab, generator=generator) if bias else None
    targets = torch.randint(0, vocab, (num_tokens,), generator=generator)
    parts = [None if t is None else t.to(dtype).requires_grad_() for t in (hidden, weight, offset)]
    return (*parts, targets)


def plain(hidden, weight, targets, bias=None, *, weights=None, reduction="mean", **options):
    """The loss as it is usually written, from all the logits at once, widened."""
    logits = F.linear(hidden, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if weights is None:
        return F.cross_entropy(logits, targets, reduction=reduction, **options)
    losses = F.cross_entropy(logits, targets, reduction="none", **options)
    counted = weights.to(losses.dtype) * (targets != options.get("ignore_index", -100))
    losses = losses * counted
    if reduction == "none":
        return losses
    return losses.sum() / (counted.sum() if reduction == "mean" else 1)


def gradients(loss: Tensor, *inputs):
    wanted = [t for t in inputs if t is not None]
    # Tokens weigh differently in the test of single losses, and the whole is scaled as accumulation would.
    ramp = torch.linspace(0.3, 1.3, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
    return torch.autograd.grad((loss * ramp).sum() / 3, wanted)


def assert_same(ours, theirs, dtype):
    tolerance = TOLERANCES[dtype]
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        # A gradient may be a small rest of large terms that cancel: rounding goes by the terms, not by the rest.
        scale = b.abs().max().clamp(min=0.1) if b.numel() else torch.ones(())
        torch.testing.assert_close(a / scale, b / scale, atol=tolerance, rtol=tolerance)


@settings(max_examples=150, deadline=None)
@given(
    num_tokens=st.integers(1, 23),
    width=st.integers(1, 9),
    vocab=st.integers(1, 33),
    chunk=st.sampled_from([None, 1, 4, 7, 64]),
    dtype=st.sampled_from(list(TOLERANCES)),
    bias=st.booleans(),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    ignored=st.booleans(),
    weighted=st.sampled_from([None, "mask", "bool", "float"]),
    seed=st.integers(0, 1000),
)
def test_equals_cross_entropy_of_linear(
    num_tokens, width, vocab, chunk, dtype, bias, smoothing, reduction, ignored, weighted, seed
):
    hidden, weight, offset, targets = make_head(num_tokens, width, vocab, dtype, bias, seed)
    if ignored:
        targets[1::3] = -100
    weights = None
    if weighted is not None:
        weights = torch.rand(num_tokens, generator=torch.Generator().manual_seed(seed)) + 0.1
        if weighted != "float":
            weights = (weights > 0.5).to(torch.bool if weighted == "bool" else torch.int32)
            weights[0] = 1
    options = {"label_smoothing": smoothing, "weights": weights, "reduction": reduction}
    expected = plain(hidden, weight, targets, offset, **options)
    loss = chunked_cross_entropy(hidden, weight, targets, offset, chunk_tokens=chunk, **options)
    assert_same([loss.detach()], [expected.detach()], dtype)
    if expected.isfinite().all():
        assert_same(
            gradients(loss, hidden, weight, offset), gradients(expected, hidden, weight, offset), dtype
        )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_gradients_are_right_to_the_last_digit_in_double(reduction, smoothing):
    hidden, weight, bias, targets = make_head(7, 3, 5, torch.float64)
    targets[2] = -100
    weights = torch.rand(7, dtype=torch.float64).requires_grad_()

    def loss(h, w, b, token_weights):
        return chunked_cross_entropy(
            h,
            w,
            targets,
            b,
            weights=token_weights,
            reduction=reduction,
            label_smoothing=smoothing,
            chunk_tokens=3,
        )

    assert torch.autograd.gradcheck(loss, (hidden, weight, bias, weights))


def test_takes_any_leading_shape_and_integer_type():
    hidden, weight, bias, targets = make_head(12, 4, 6)
    flat = chunked_cross_entropy(hidden, weight, targets, bias, reduction="none")
    shaped = chunked_cross_entropy(
        hidden.reshape(2, 3, 2, 4), weight, targets.reshape(2, 3, 2).int(), bias, reduction="none"
    )
    assert shaped.shape == (2, 3, 2)
    torch.testing.assert_close(shaped.reshape(-1), flat)


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_gives_no_gradient_to_what_is_frozen(frozen):
    hidden, weight, bias, targets = make_head(6, 4, 5)
    inputs = [hidden, weight, bias]
    inputs[frozen] = inputs[frozen].detach()
    chunked_cross_entropy(inputs[0], inputs[1], targets, inputs[2]).backward()
    expected = plain(
        *[t.detach().requires_grad_(i != frozen) for i, t in enumerate(inputs[:2])], targets, inputs[2]
    )
    assert inputs[frozen].grad is None
    assert all(t.grad is not None and t.grad.isfinite().all() for i, t in enumerate(inputs) if i != frozen)
    assert expected.isfinite()


def test_tokens_that_weigh_nothing_need_no_target():
    hidden, weight, bias, targets = make_head(6, 4, 5)
    weights = torch.tensor([1, 1, 0, 1, 0, 1])
    expected = chunked_cross_entropy(hidden, weight, targets, bias, weights=weights)
    torch.testing.assert_close(expected, plain(hidden, weight, targets, bias, weights=weights))
    targets[weights == 0] = 99
    assert chunked_cross_entropy(hidden, weight, targets, bias, weights=weights) == expected


def test_a_mean_over_no_token_is_nan_and_a_sum_is_zero_as_in_torch():
    hidden, weight, bias, _ = make_head(4, 3, 5)
    targets = torch.full((4,), -100)
    assert chunked_cross_entropy(hidden, weight, targets, bias).isnan()
    total = chunked_cross_entropy(hidden, weight, targets, bias, reduction="sum")
    total.backward()
    assert total == 0
    assert not hidden.grad.any()
    assert not weight.grad.any()
    none = chunked_cross_entropy(hidden[:0], weight, targets[:0], bias, reduction="sum")
    assert none == 0
    assert chunked_cross_entropy(hidden[:0], weight, targets[:0], bias, reduction="none").shape == (0,)


def test_huge_logits_stay_finite():
    hidden = torch.full((2, 1), 100.0, requires_grad=True)
    weight = torch.tensor([[300.0], [-300.0], [0.0]], requires_grad=True)
    targets = torch.tensor([1, 0])
    loss = chunked_cross_entropy(hidden, weight, targets)
    torch.testing.assert_close(loss, plain(hidden, weight, targets))
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss, [hidden, weight]))


def test_small_float16_gradients_survive_when_the_loss_is_scaled():
    hidden, weight, _, targets = make_head(2048, 8, 32, torch.float16, bias=False)
    scale = 2.0**14
    ours = torch.autograd.grad(chunked_cross_entropy(hidden, weight, targets) * scale, [hidden, weight])
    theirs = torch.autograd.grad(plain(hidden, weight, targets) * scale, [hidden, weight])
    assert_same(ours, theirs, torch.float16)


def test_bfloat16_sums_do_not_drift_over_many_chunks():
    hidden, weight, _, targets = make_head(4096, 4, 8, torch.bfloat16, bias=False)
    exact = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    (expected,) = torch.autograd.grad(plain(*exact, targets, reduction="sum"), exact[1:])
    (ours,) = torch.autograd.grad(
        chunked_cross_entropy(hidden, weight, targets, reduction="sum", chunk_tokens=16), [weight]
    )
    error = (ours.double() - expected).abs().max() / expected.abs().max()
    assert error < 8e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_an_output_layer_does(dtype):
    hidden, weight, bias, targets = make_head(20, 8, 16)
    with torch.autocast("cpu", dtype):
        loss = chunked_cross_entropy(hidden, weight, targets, bias, chunk_tokens=8)
        expected = F.cross_entropy(F.linear(hidden, weight, bias).float(), targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    assert_same(gradients(loss, hidden, weight, bias), gradients(expected, hidden, weight, bias), dtype)


def test_autocast_leaves_double_alone():
    hidden, weight, bias, targets = make_head(5, 4, 6, torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        loss = chunked_cross_entropy(hidden, weight, targets, bias)
    torch.testing.assert_close(loss, plain(hidden, weight, targets, bias))


def test_backward_may_run_twice_and_in_no_grad_nothing_is_kept():
    hidden, weight, bias, targets = make_head(6, 4, 5)
    loss = chunked_cross_entropy(hidden, weight, targets, bias)
    first = torch.autograd.grad(loss, [weight], retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(loss, [weight])[0])
    with torch.no_grad():
        quiet = chunked_cross_entropy(hidden, weight, targets, bias)
    assert not quiet.requires_grad
    torch.testing.assert_close(quiet, loss.detach())


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_second_derivative_is_refused_and_not_wrong(reduction):
    hidden, weight, bias, targets = make_head(6, 4, 5)
    loss = chunked_cross_entropy(hidden, weight, targets, bias, reduction=reduction).sum()
    (first,) = torch.autograd.grad(loss, [hidden], create_graph=True)
    with pytest.raises(UnsupportedError, match="twice"):
        first.sum().backward()


class Head(nn.Module):
    def __init__(self, width=8, vocab=16, reduction="mean"):
        super().__init__()
        self.output = nn.Linear(width, vocab)
        self.reduction = reduction

    def forward(self, hidden, targets):
        return chunked_cross_entropy(
            hidden, self.output.weight, targets, self.output.bias, reduction=self.reduction, chunk_tokens=4
        )


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("autocast", [False, True])
def test_compiles_without_graph_breaks(reduction, autocast):
    torch.manual_seed(0)
    head = Head(reduction=reduction)
    hidden, targets = torch.randn(10, 8, requires_grad=True), torch.randint(0, 16, (10,))
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    results = []
    for run in (head, compiled):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = run(hidden, targets).sum()
        results.append((loss.detach(), *torch.autograd.grad(loss, [hidden, *head.parameters()])))
    for eager, traced in zip(*results, strict=True):
        torch.testing.assert_close(eager, traced)


@pytest.mark.filterwarnings("ignore:At pre-dispatch tracing")  # torch 2.4 says so of every custom operator
def test_exports_with_any_number_of_tokens():
    head = Head()
    hidden, targets = torch.randn(10, 8), torch.randint(0, 16, (10,))
    tokens = torch.export.Dim("tokens", min=2, max=4096)
    program = torch.export.export(head, (hidden, targets), dynamic_shapes=({0: tokens}, {0: tokens}))
    longer, more = torch.randn(33, 8), torch.randint(0, 16, (33,))
    torch.testing.assert_close(program.module()(longer, more), head(longer, more))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operators_keep_torchs_rules(dtype):
    hidden, weight, bias, targets = make_head(9, 4, 6, dtype)
    targets[3] = -100
    options = (-100, 0.1, 4)
    torch.library.opcheck(torch.ops.portwright.head_losses, (hidden, weight, bias, targets, *options))
    coefficients = torch.rand(9)
    for needs in ([True, True, True], [True, False, False]):
        torch.library.opcheck(
            torch.ops.portwright.head_loss_and_gradients,
            (coefficients, hidden.detach(), weight.detach(), bias.detach(), targets, *options, needs),
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reduction": "avg"}, "avg"),
        ({"label_smoothing": 1.5}, "1.5"),
        ({"chunk_tokens": 0}, "chunk_tokens is 0"),
        ({"weights": torch.ones(3)}, r"\(3,\)"),
        ({"targets": torch.zeros(6)}, "float32"),
        ({"targets": torch.zeros(5, dtype=torch.long)}, r"\(5,\)"),
        ({"targets": torch.tensor([0, 1, 2, 3, 4, 5])}, "Target 5 is outside a vocabulary of 5"),
        ({"targets": torch.tensor([0, 1, 2, 3, 4, -1])}, "Target -1"),
        ({"bias": torch.zeros(4)}, r"\(4,\)"),
        ({"weight": torch.zeros(5, 3)}, r"\(5, 3\)"),
        ({"weight": torch.zeros(5, 4, dtype=torch.bfloat16)}, "bfloat16, torch.float32"),
    ],
)
def test_bad_input_is_named(change, message):
    hidden, weight, bias, targets = make_head(6, 4, 5)
    arguments = {"hidden": hidden, "weight": weight, "targets": targets, "bias": bias, **change}
    with pytest.raises(UserError, match=message):
        chunked_cross_entropy(**arguments)


MEASURE = """
import sys, torch, torch.nn.functional as F
from pathlib import Path
from portwright.losses import chunked_cross_entropy
torch.set_num_threads(1)
hidden = torch.randn(4096, 16, requires_grad=True)
weight = torch.randn(8192, 16, requires_grad=True)
targets = torch.randint(0, 8192, (4096,))
def peak():  # not getrusage: that counts what the parent held when it forked
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("VmHWM"))
chunked_cross_entropy(hidden[:8], weight, targets[:8]).backward()
F.cross_entropy(F.linear(hidden[:8], weight), targets[:8]).backward()
before = peak()
if sys.argv[1] == "chunked":
    chunked_cross_entropy(hidden, weight, targets, chunk_tokens=256).backward()
else:
    F.cross_entropy(F.linear(hidden, weight), targets).backward()
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's peak of a process")
def test_extra_memory_is_under_a_quarter_of_the_plain_losss():
    extra = {
        kind: int(
            subprocess.run([sys.executable, "-c", MEASURE, kind], check=True, capture_output=True).stdout
        )
        for kind in ("chunked", "plain")
    }
    assert extra["plain"] > 200_000  # KiB; the logits alone are 128 MiB
    assert extra["chunked"] < extra["plain"] / 4
