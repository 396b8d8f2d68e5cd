"""The kernel table of the Cerebras front end, without the SDK: its kept verdicts, and the rules one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from vendor import refused_models, verdicts
from vendor.case import Calls, Case, floats, function, ints, layer
from vendor.cases import all_cases
from vendor.fidelity import ask_match, score
from vendor.refused_models import REFUSED, marked_line

from portwright.graph.capturing.capture import capture
from portwright.graph.inputs import TensorSpec
from portwright.graph.match import MatchReport, match
from portwright.targets.csx import decompositions
from portwright.targets.csx.casts import mixed_precision
from portwright.targets.csx.kernels import table


def test_match_says_what_the_front_end_said() -> None:
    result = score(all_cases(), verdicts.read(verdicts.path_of("csx")))
    assert result.meets_the_bars, str(result)


def test_every_row_has_a_source_and_a_name_that_torch_knows() -> None:
    rows = list(table().rows())
    assert len(rows) > 300
    for row in rows:
        assert row.source
        assert hasattr(torch.ops.aten, row.op.split(".")[1]), row.op


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_users_line_once(name: str) -> None:
    (refusal,) = ask_match(REFUSED[name]).refused
    assert refusal.op.split(".")[1] == name
    assert (refusal.file, refusal.line) == (refused_models.__file__, marked_line(name))


def refusals(case: Case) -> str:
    report: MatchReport = ask_match(case)
    return "; ".join(refusal.reason for refusal in report.refused)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (layer("conv1d", lambda: nn.Conv1d(3, 3, 1), floats(3, 5)), "1D backward"),
        (layer("groups", lambda: nn.Conv2d(4, 4, 1, groups=4), floats(4, 5, 5)), "groups != 1"),
        (function("double", lambda x: x.double()), "no float64"),
        (function("int64 and", lambda i: i & i, ints(3)), "i64"),
        (function("in place on half", lambda x: F.linear(x, x).exp_()), "Cannot call in-place"),
        (
            function("bce", lambda x: F.binary_cross_entropy(F.linear(x, x).sigmoid(), x[:, :4])),
            "half precision",
        ),
        (function("flip", lambda x: x.flip(1)), "only the first"),
        (function("svd", lambda x: torch.linalg.svdvals(x)), "does not yet support"),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else "",
)
def test_a_refusal_says_why(case: Case, words: str) -> None:
    assert words in refusals(case)


def test_the_same_op_is_accepted_where_its_rule_holds() -> None:
    assert not refusals(layer("forward only", lambda: nn.Conv1d(3, 3, 1), floats(3, 5), train=False))
    assert not refusals(layer("one group", lambda: nn.Conv2d(4, 4, 1), floats(4, 5, 5)))
    assert not refusals(function("int32 and", lambda i: i.int() & i.int(), ints(3)))
    assert not refusals(function("in place on float", lambda x: (x * 2).exp_()))
    assert not refusals(
        function("float64 constant", lambda x: x + x.new_ones(8, dtype=torch.float64).float())
    )


def test_what_nothing_uses_is_not_lowered_but_must_be_traced() -> None:
    def drop(op: object) -> Case:
        return function("dropped", lambda x: (op(x.detach()), x)[1])  # type: ignore[operator]

    assert not refusals(drop(lambda x: torch.mv(x, x[0])))
    assert refusals(drop(lambda x: torch.fft.rfft(x)))


def test_casts_follow_the_sdk_and_leave_torch_as_it_was() -> None:
    before = {name: getattr(torch.Tensor, name) for name in ("sum", "__add__", "__matmul__", "exp_")}
    x = torch.rand(4, 4)
    with mixed_precision():
        half = F.linear(x, x)
        assert half.dtype == torch.float16
        assert half.sum().dtype == torch.float32
        assert (half + x).dtype == torch.float32
        assert (half @ half).dtype == torch.float16
        assert torch.cat((half, x)).dtype == torch.float32
        assert F.layer_norm(x, (4,)).dtype == torch.float16
        assert half.mean().dtype == torch.float16
        assert F.cross_entropy(half, torch.zeros(4, dtype=torch.long)).dtype == torch.float32
    assert {name: getattr(torch.Tensor, name) for name in before} == before
    assert "sum" not in vars(torch.Tensor)


def test_casts_are_undone_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), mixed_precision():
        raise ZeroDivisionError
    assert F.linear(torch.rand(2, 2), torch.rand(2, 2)).dtype == torch.float32


SAME = {
    "acos": 1e-3, "asin": 1e-3, "atan": 0, "cosh": 0, "sinh": 0, "tan": 0, "expm1": 0, "log1p": 0, "log10": 0, "log2": 0,
    "hardswish": 0, "angle": 0,
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_decompositions_compute_what_torch_does(name: str) -> None:
    x = torch.rand(5, 6) * 0.8 + 0.1
    torch_own = getattr(F, name) if name == "hardswish" else getattr(torch, name)
    tolerance = 2e-2 if SAME[name] else 1e-5  # the arc functions are the SDK's polynomial, here to two digits
    torch.testing.assert_close(
        decompositions.DECOMPOSED[name](x), torch_own(x), atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.flip(0, 1),
        lambda x: x.roll((1, 2), (0, 1)),
        lambda x: x.roll(3),
        lambda x: F.pad(x.unsqueeze(0), (2, 1), mode="reflect"),
        lambda x: x.var(1),
        lambda x: x.std((0, 1), correction=0, keepdim=True),
        lambda x: torch.cdist(x, x + 1, p=1.0),
        lambda x: torch.logsumexp(x, 1),
        lambda x: F.glu(x),
        lambda x: torch.dot(x[0], x[1]),
        lambda x: x.unbind(1)[2],
        lambda x: x.triu(1),
        lambda x: torch.zeros(5, 6).index_add(1, torch.tensor([0, 0, 2, 3, 4, 5]), x, alpha=2),
        lambda x: F.one_hot((x * 5).long(), 5).float(),
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
        lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=torch.eye(5).bool()),
    ],
)
def test_decompositions_with_arguments_compute_what_torch_does(call: object) -> None:
    x = torch.rand(5, 6)
    expected = call(x)  # type: ignore[operator]
    with decompositions.decompositions():
        found = call(x)  # type: ignore[operator]
    torch.testing.assert_close(found, expected)


def test_decompositions_end() -> None:
    with decompositions.decompositions():
        pass
    x = torch.rand(3, requires_grad=True)
    assert "Flip" in str(x.flip(0).grad_fn)


def test_an_op_of_the_optimizer_is_the_sdks_own_matter() -> None:
    report = ask_match(Case("sgd", lambda: Calls(lambda x: x), (floats(8),)))
    assert report.supported
    assert set(report.counts) <= {"native", "decomposed", "free"}


class _Tagger(nn.Module):
    def __init__(self, kind: type[nn.Module] = nn.LSTM) -> None:
        super().__init__()
        self.embed, self.memory, self.head = nn.Embedding(50, 16), kind(16, 16), nn.Linear(16, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.memory(self.embed(x))[0]).square().mean()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_layer_in_half_precision_is_one_refusal_with_its_cure_and_the_step_goes_on(
    kind: type[nn.Module],
) -> None:
    graph = capture(lambda: _Tagger(kind), TensorSpec((8, 4), "int64"), casts=table().casts())
    report = match(graph, table(), "CSX")
    assert not graph.stops
    (refusal,) = report.refused
    assert refusal.op.startswith(f"aten.{kind.__name__.lower()}")
    assert f"legal.{kind.__name__}" in refusal.cure
    assert any(node.module == "head" for node in graph.nodes)


def test_a_layer_that_fails_by_its_precision_is_told_with_its_legal_form() -> None:
    graph = capture(lambda: _Tagger(nn.RNN), TensorSpec((8, 4), "int64"), casts=table().casts())
    (refusal,) = match(graph, table(), "CSX").refused
    assert refusal.op == "RNN"
    assert "legal.RNN" in refusal.cure


def test_autocast_of_the_batch_s_device_is_refused_as_by_the_sdk() -> None:
    class Net(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast(device_type=x.device.type, enabled=False):
                x = x.cos()
            return super().forward(x).square().mean()

    graph = capture(lambda: Net(8, 8), TensorSpec((4, 8), "float32"), casts=table().casts())
    (refusal,) = match(graph, table(), "CSX").refused
    assert "autocast" in refusal.reason
    assert refusal.line is not None
    with torch.autocast("cpu", enabled=False):
        pass  # afterwards it is torch's own again


@pytest.mark.parametrize(
    ("loss", "is_refused"),
    [
        (lambda x, y: F.nll_loss(F.log_softmax(x, 2).reshape(-1, 8), y.reshape(-1)), True),
        (lambda x, y: F.nll_loss(F.log_softmax(x.reshape(-1, 8), 1), y.reshape(-1)), False),
        (lambda x, y: F.nll_loss(F.log_softmax(x, -1).transpose(1, 2), y), False),
        (lambda x, y: F.nll_loss(F.log_softmax(x.transpose(1, 2), -2), y), True),
    ],
)
def test_a_log_softmax_that_is_reshaped_before_its_loss_stops_the_compiler(
    loss: Any, is_refused: bool
) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return loss(self.linear(x), y)

    batch = (TensorSpec((2, 4, 8), "float32"), TensorSpec((2, 4), "int64"))
    graph = capture(Net, batch, casts=table().casts())
    assert bool(match(graph, table(), "CSX").refused) == is_refused


@pytest.mark.parametrize("diagonal", [0, 1])
def test_a_square_mask_cut_on_the_device_is_refused_with_its_legal_form(diagonal: int) -> None:
    class Net(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.triu(torch.ones(8, 8, dtype=torch.bool, device=x.device), diagonal)
            return super().forward(x).masked_fill(mask, 0).square().mean()

    graph = capture(lambda: Net(8, 8), TensorSpec((8, 8), "float32"), casts=table().casts())
    (refusal,) = match(graph, table(), "CSX").refused
    assert "bool" in refusal.reason
    assert "legal.triu" in refusal.cure
