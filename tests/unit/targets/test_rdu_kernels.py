"""The RDU's table: only what is public, and every refusal says that it is conservative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from portwright.discover import get_target
from portwright.errors import UnsupportedError
from portwright.graph.capturing.capture import capture
from portwright.graph.graph import Graph, Node
from portwright.graph.match import MatchReport, match
from portwright.targets.rdu.kernels import table

pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of torch, when mkldnn is switched off

IMAGE, CLASSES = torch.rand(2, 1, 28, 28), torch.zeros(2, dtype=torch.long)


class Convolutional(nn.Module):
    """The shape of the vendor's own LeNet example: convolutions, max pools, linear layers, cross entropy."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5, padding=2, **settings)
        self.last = nn.Linear(16 * 7 * 7, 10)

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, classes = batch
        x = F.max_pool2d(self.first(images).relu(), 2)
        x = F.max_pool2d(self.second(x).relu(), 2)
        return F.cross_entropy(self.last(torch.reshape(x, [x.shape[0], -1])), classes)


class Normed(Convolutional):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(self.first, nn.BatchNorm2d(6))  # type: ignore[assignment]


def ask(make: Callable[[], nn.Module], *batch: Tensor) -> MatchReport:
    return match(capture(make, batch), table(), "RDU")


def test_the_vendors_example_is_accepted() -> None:
    report = ask(Convolutional, IMAGE, CLASSES)
    assert report.supported, report.refused
    assert "conservative" in report.label


@pytest.mark.parametrize(
    ("make", "op"),
    [
        (lambda: Convolutional(groups=2), "aten.convolution.default"),
        (Normed, "aten.native_batch_norm.default"),
    ],
)
def test_a_refusal_says_that_it_is_conservative(make: Callable[[], nn.Module], op: str) -> None:
    report = ask(make, IMAGE, CLASSES)
    assert op in [refusal.op for refusal in report.refused]
    for refusal in report.refused:
        assert "conservative" in refusal.reason
        assert refusal.cure


def test_what_is_not_public_is_refused_as_such() -> None:
    verdict = table().explain("aten.flip.default")
    assert verdict.how == "refused"
    assert "not in the public list" in verdict.reason
    assert "conservative" in verdict.reason


def test_every_row_names_a_public_source() -> None:
    for row in table().rows():
        assert any(
            part in row.source for part in ("SambaFlow", "github.com/sambanova", "computes nothing")
        ), row


@pytest.mark.parametrize(("alpha", "how"), [(1, "native"), (2, "refused")])
def test_alpha_is_for_the_cpu(alpha: int, how: str) -> None:
    node = Node(0, "aten.add.Tensor", "forward", (), {"alpha": alpha}, (), ())
    assert table().judge(Graph((node,), (), (), (), 1, False), node).how == how


@pytest.mark.parametrize(("optimizer", "how"), [("SGD", "native"), ("AdamW", "native"), ("Adam", "refused")])
def test_the_optimizer_is_one_of_sambaflows(optimizer: str, how: str) -> None:
    node = Node(0, "aten.add.Tensor", "optimizer", (), {}, (), ())
    assert table().judge(Graph((node,), (), (), (), 1, True, optimizer=optimizer), node).how == how


def test_every_figure_of_the_machine_has_a_source() -> None:
    target = get_target("rdu")
    assert target.hardware is not None
    machine = target.hardware()
    assert {"memory_bytes", "num_cores", "streaming_bytes", "flops_per_second"} <= set(machine.sources)


def test_it_cannot_run_here_and_says_what_can_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "portwright.targets.emulated.is_installed", lambda package: False
    )  # nor lent by another test
    target = get_target("RDU")
    with pytest.raises(UnsupportedError, match="plan --target rdu"):
        target.make_backend({}, print)
    assert "plan --target rdu" in str(target.why_not())
    assert "--emulate" in str(target.why_not())
