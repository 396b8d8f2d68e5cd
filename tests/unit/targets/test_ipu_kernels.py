"""The IPU's table: every name that PopTorch documents, and each limit, asked of captured steps."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from portwright.discover import get_target
from portwright.errors import UnsupportedError
from portwright.graph.capturing.capture import capture
from portwright.graph.graph import Graph, Node, Ref, Value
from portwright.graph.match import MatchReport, match
from portwright.targets.ipu.kernels import CONSTRAINTS, CURES, table

pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of torch, when mkldnn is switched off

TOOLS = Path(__file__).parents[3] / "tools"
DOCUMENTED = [
    line.strip()
    for line in (TOOLS / "ipu/supported_ops.txt").read_text().split("## Documented caveats")[0].splitlines()
    if line.strip() and not line.startswith("#")
]


@pytest.fixture(scope="module")
def generator() -> Any:
    sys.path.insert(0, str(TOOLS))
    try:
        import make_ipu_table
    finally:
        sys.path.remove(str(TOOLS))
    return make_ipu_table


@pytest.fixture(scope="module")
def recorded(generator: Any) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    found: tuple[dict[str, list[str]], dict[str, list[str]]] = generator.record()
    return found


class Step(nn.Module):
    """A module under test as a step: its outputs, summed to a loss."""

    def __init__(self, module: nn.Module, call: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.module, self.call = module, call or (lambda module, *batch: module(*batch))
        self.scale = nn.Parameter(torch.ones(()))  # so that every step has something to train

    def forward(self, batch: tuple[Tensor, ...]) -> Tensor:
        result = self.call(self.module, *(x * self.scale if x.is_floating_point() else x for x in batch))
        result = result[0] if isinstance(result, tuple) else result
        loss: Tensor = result.sum() * self.scale
        return loss


def ask(
    make: Callable[[], nn.Module],
    *batch: Tensor,
    call: Callable[..., Any] | None = None,
    optimizer: str = "",
) -> MatchReport:
    graph = capture(lambda: Step(make(), call), batch, optimizer=optimizer)
    return match(graph, table(), "IPU")


def test_the_list_has_all_its_names() -> None:
    assert len(DOCUMENTED) == len(set(DOCUMENTED)) == 225


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_documented_name_has_a_row_that_runs(name: str) -> None:
    rows = [row for row in table().rows() if name in row.api]
    assert any(row.how != "refused" for row in rows), name


def is_recorded_on_this_torch(generator: Any) -> bool:
    found = re.search(r"# recorded on torch (\S+)", generator.TABLE.read_text())
    assert found is not None
    return found[1] == torch.__version__.partition("+")[0]


def test_every_op_that_a_documented_name_runs_is_accepted(
    generator: Any, recorded: tuple[dict[str, list[str]], dict[str, list[str]]]
) -> None:
    forward, backward = recorded
    assert len(forward) >= 218  # all but torch_scatter and torch_spline_conv, which are other packages
    read_by_one_hot = {
        "aten._local_scalar_dense",
        "aten.aminmax",
    }  # torch checks the classes; PopTorch does not
    # Gradients go by other names in other releases of torch; in a graph the forward op decides.
    ran = [*forward.items(), *(backward.items() if is_recorded_on_this_torch(generator) else ())]
    for api, ops in ran:
        for op in ops:
            if api != "torch.nn.functional.one_hot" or op not in read_by_one_hot:
                assert table().explain(op).how != "refused", (api, op)


def test_the_committed_table_is_what_the_generator_makes(generator: Any) -> None:
    if not is_recorded_on_this_torch(generator):
        pytest.skip("the table was recorded on another torch")
    assert generator.table() == generator.TABLE.read_text()


def test_every_constraint_is_used_and_has_a_cure() -> None:
    assert set(CURES) == set(CONSTRAINTS)
    text = Path(sys.modules[table.__module__].__file__ or "").with_name("kernels.tsv").read_text()
    used = {
        name for line in text.splitlines() if not line.startswith("#") for name in line.split("\t")[4].split()
    }
    assert used - {"constraints"} == set(CONSTRAINTS)


X, IMAGE, IDS = torch.rand(4, 6), torch.rand(2, 4, 8, 8), torch.zeros(4, 5, dtype=torch.long)
CLASSES, SERIES = torch.zeros(4, dtype=torch.long), torch.rand(5, 2, 6)


@pytest.mark.parametrize(
    ("make", "batch", "text"),
    [
        (lambda: nn.LSTM(6, 3), (SERIES,), ""),
        (lambda: nn.LSTM(6, 3, num_layers=2), (SERIES,), "several layers"),
        (lambda: nn.GRU(6, 3, bidirectional=True), (SERIES,), "both directions"),
        (lambda: nn.GRU(6, 3, bias=False), (SERIES,), ""),
        (lambda: nn.RNN(6, 3, bias=False), (SERIES,), "without biases"),
        (lambda: nn.LSTM(6, 3, bias=False), (SERIES,), "without biases"),
        (lambda: nn.ConvTranspose2d(4, 3, 3), (IMAGE,), ""),
        (lambda: nn.ConvTranspose2d(4, 3, 3, dilation=2), (IMAGE,), "dilation=(2, 2)"),
        (lambda: nn.Conv2d(4, 4, 3, dilation=2, groups=2), (IMAGE,), ""),
        (lambda: nn.MaxPool2d(2), (IMAGE,), ""),
        (lambda: nn.BatchNorm2d(4), (IMAGE,), ""),
        (lambda: nn.BatchNorm2d(4, affine=False), (IMAGE,), "affine=False"),
        (lambda: nn.LayerNorm(8), (IMAGE,), ""),
        (lambda: nn.LayerNorm(8, elementwise_affine=False), (IMAGE,), "affine=False"),
        (lambda: nn.GroupNorm(2, 4, affine=False), (IMAGE,), "affine=False"),
        (lambda: nn.InstanceNorm2d(4), (IMAGE,), "affine=False"),
        (lambda: nn.InstanceNorm2d(4, affine=True), (IMAGE,), ""),
        (lambda: nn.Embedding(9, 3), (IDS,), ""),
        (lambda: nn.Embedding(9, 3, padding_idx=0), (IDS,), "padding_idx=0"),
        (lambda: nn.EmbeddingBag(9, 3), (IDS,), ""),
        (lambda: nn.EmbeddingBag(9, 3, padding_idx=2), (IDS,), "padding_idx=2"),
        (lambda: nn.CrossEntropyLoss(), (X, CLASSES), ""),
        (lambda: nn.CrossEntropyLoss(weight=torch.ones(6)), (X, CLASSES), "weight for each class"),
        (lambda: nn.Upsample(scale_factor=2), (IMAGE,), ""),
        (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (IMAGE,), ""),
        (lambda: nn.Upsample(size=(12, 12), mode="bilinear"), (IMAGE,), ""),
        (lambda: nn.Upsample(size=(11, 11), mode="bilinear"), (IMAGE[..., :3, :3],), ""),
        (lambda: nn.Upsample(size=(7, 7), mode="bilinear"), (IMAGE[..., :3, :3],), "bilinear upsampling"),
        (lambda: nn.Upsample(scale_factor=1.5, mode="bilinear"), (IMAGE,), "bilinear upsampling"),
        (lambda: nn.Upsample(scale_factor=(2, 3), mode="bilinear"), (IMAGE,), "bilinear upsampling"),
        (lambda: nn.Upsample(scale_factor=0.4357, mode="bicubic"), (IMAGE,), ""),
        (lambda: nn.Upsample(size=(12, 16), mode="bilinear"), (IMAGE,), "bilinear upsampling"),
        (lambda: nn.Upsample(size=(16, 24), mode="bilinear"), (IMAGE,), "bilinear upsampling"),
        (lambda: nn.Upsample(size=(4, 4), mode="bilinear"), (IMAGE,), "bilinear upsampling"),
        (lambda: nn.Upsample(scale_factor=2, mode="bicubic"), (IMAGE,), ""),
        (lambda: nn.Upsample(scale_factor=2, mode="bicubic", align_corners=True), (IMAGE,), "align_corners"),
        (lambda: nn.Upsample(scale_factor=2, mode="linear"), (IMAGE[0],), "only nearest"),
        (lambda: nn.MultiheadAttention(6, 2), (SERIES, SERIES, SERIES), ""),
        (lambda: nn.TransformerEncoderLayer(6, 2, 12), (SERIES,), ""),
        (lambda: nn.AdaptiveMaxPool2d(2), (IMAGE,), "adaptive_max_pool2d"),
        (lambda: nn.HuberLoss(), (X, X), "huber_loss"),
    ],
)  # fmt: skip
def test_a_module_is_judged_by_its_settings(
    make: Callable[[], nn.Module], batch: tuple[Tensor, ...], text: str
) -> None:
    report = ask(make, *batch)
    reasons = [refusal.reason for refusal in report.refused]
    if text:
        assert reasons
        assert all(text in reason for reason in reasons)
        assert all(refusal.cure for refusal in report.refused)
    else:
        assert report.supported, reasons


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m, x: m(x).topk(2)[0], ""),
        (lambda m, x: m(x).topk(2, sorted=False)[0], "sorted=False"),
        (lambda m, x: m(x).flip(0), ""),
        (lambda m, x: torch.linalg.matrix_norm(m(x)), ""),
        (lambda m, x: torch.linalg.matrix_norm(m(x), 2), "aten._linalg_svd"),
        (lambda m, x: m(x).tril(), "aten.tril"),
        (lambda m, x: m(x).triu(), "not a constant"),
        (lambda m, x: m(x) * x.new_ones(6, 6).triu()[:4], ""),
        (lambda m, x: F.max_pool1d(m(x), 2), ""),
        (lambda m, x: F.max_pool1d(m(x), 2, return_indices=True)[1] + m(x).sum(), "indices are used"),
        (lambda m, x: m(x).bfloat16(), "bfloat16"),
        (lambda m, x: m(x).half().double(), ""),
        (lambda m, x: torch.fft.rfft(m(x)).abs(), "_fft_r2c"),
        (lambda m, x: m(x).add_(1).relu_(), ""),
        (lambda m, x: (m(x).to(torch.uint8) & 1) + m(x), "uint8"),
        (lambda m, x: F.one_hot(m(x).argmax(1), 6), ""),
        (lambda m, x: F.scaled_dot_product_attention(m(x)[None], x[None], x[None]), ""),
    ],
)
def test_a_function_is_judged_by_its_arguments(call: Callable[..., Any], text: str) -> None:
    report = ask(lambda: nn.Linear(6, 6), X, call=call)
    reasons = [f"{refusal.op} {refusal.reason}" for refusal in report.refused]
    if text:
        assert any(text in reason for reason in reasons), reasons
    else:
        assert report.supported, reasons


def test_a_gradient_is_judged_by_what_it_is_the_gradient_of() -> None:
    values = tuple(Value(i, (2, 2), "float32", "activation") for i in range(3))
    good = Node(0, "aten.relu.default", "forward", (Ref(0),), {}, (0,), (1,))
    bad = Node(1, "aten.erfinv.default", "forward", (Ref(0),), {}, (0,), (1,))
    nodes = (
        good,
        bad,
        Node(2, "aten.strange.default", "backward", (Ref(1),), {}, (1,), (2,), forward=0),
        Node(3, "aten.mul.Tensor", "backward", (Ref(1),), {}, (1,), (2,), forward=1),
        Node(4, "aten.strange.default", "backward", (Ref(1),), {}, (1,), (2,)),
    )
    graph = Graph(nodes, values, (), (), 2, True)
    assert [table().judge(graph, node).how for node in nodes] == [
        "native",
        "refused",
        "native",
        "refused",
        "native",
    ]


@pytest.mark.parametrize(("optimizer", "runs"), [("AdamW", True), ("sgd", True), ("", True), ("Lion", False)])
def test_the_optimizer_is_one_of_poptorchs(optimizer: str, runs: bool) -> None:
    node = Node(0, "aten._foreach_add.List", "optimizer", (), {}, (), ())
    verdict = table().judge(Graph((node,), (), (), (), 1, True, optimizer=optimizer), node)
    assert (verdict.how == "native") is runs
    assert runs or "LAMB" in verdict.cure


def test_two_graphs_are_not_mixed_up() -> None:
    good, bad = (ask(lambda n=n: nn.GRU(6, 3, num_layers=n), SERIES).graph for n in (1, 2))
    verdicts = [match(graph, table(), "IPU").supported for graph in (good, bad, good, bad)]
    assert verdicts == [True, False, True, False]


def test_the_machine_adds_up() -> None:
    target = get_target("ipu")
    assert target.hardware is not None
    machine = target.hardware()
    assert machine.num_cores == 1_472 * machine.num_chips
    assert machine.memory_bytes == 900_000_000 * machine.num_chips
    figures = {
        "memory_bytes",
        "num_cores",
        "core_memory_bytes",
        "streaming_bytes",
        "flops_per_second",
        "num_chips",
    }
    assert figures <= set(machine.sources)


def test_it_cannot_run_here_and_says_what_can_be_done() -> None:
    target = get_target("IPU")
    reason = target.why_not()
    assert reason is not None
    assert "portwright plan --target ipu" in reason
    with pytest.raises(UnsupportedError, match="plan --target ipu"):
        target.make_backend({}, print)
