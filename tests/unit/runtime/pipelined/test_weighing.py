"""What a loss divides by decides how micro-batches count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from portwright.base_model import LossModule
from portwright.errors import UserError
from portwright.runtime.pipelined.weighing import Probe, Weighing, judge


@pytest.mark.parametrize(
    ("probe", "is_exact", "verdict"),
    [
        ((1.0, 3.0, 1.0, 2.0), True, "mean"),
        ((1.0, 3.0, 1.0, 4.0), True, "sum"),
        ((1.0, 3.0, 1.0, 2.4), True, "uneven"),
        ((3.0, 0.0, 3.0, 3.0), True, "uneven"),  # no label in the second
        ((1.0, 3.0, 1.0, 4.6), True, "grows"),
        ((-1.0, -3.0, -1.0, -4.0), True, "sum"),
        ((1.0, 3.0, 1.1, 2.2), True, None),  # random draws
        ((1.0, 3.0, 1.0, 2.2), False, None),  # batch statistics
        ((2.0, 2.1, 2.2, 4.0), True, "grows"),
        ((1.0, float("nan"), 1.0, 2.0), True, None),
        ((0.0, 0.0, 0.0, 0.0), True, "mean"),
    ],
)
def test_what_two_micro_batches_tell(probe: Any, is_exact: bool, verdict: str | None) -> None:
    assert judge(Probe(*probe), 1e-4, is_exact=is_exact) == verdict


class OneWorld:
    def gather(self, value: Any) -> list[Any]:
        return [value]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.teacher, self.num_calls = nn.Parameter(torch.ones(()), requires_grad=False), 0


def settle(reduction: str, labels: list[int]) -> tuple[Weighing, Net, list[str]]:
    net, notes = Net(), list[str]()
    weighing = Weighing(LossModule(net), torch.device("cpu"), "fp32")
    x, y = torch.randn(4, 3), torch.tensor(labels)

    def forward(items: Any) -> list[torch.Tensor]:
        if reduction == "sum":
            net.seen += len(items)
            net.num_calls += 1
            net.teacher.mul_(0.9)
        return [F.cross_entropy(net.layer(x[i]), y[i], reduction=reduction) for i in items]

    micro = [slice(0, 2), slice(2, 4)]
    weighing.settle(micro, slice(0, 4), forward, OneWorld(), notes.append, is_full=True)  # type: ignore[arg-type]
    return weighing, net, notes


def test_a_sum_is_added_up_and_a_mean_is_averaged() -> None:
    weighing, net, notes = settle("sum", [0, 1, 2, 0])
    assert weighing.is_settled
    assert weighing.share(2, 4, 8) == 0.5  # of the other half another process speaks
    assert any("added up" in note for note in notes)
    assert (net.seen, net.num_calls, net.teacher.item()) == (0, 0, 1)
    assert "self.num_calls, 'seen', 'teacher' changes in a step" in notes[0]
    weighing, _, notes = settle("mean", [0, 1, 2, 0])
    assert not weighing.is_settled  # by chance two micro-batches may have as many labels
    assert weighing.share(2, 4, 8) == 0.25
    assert notes == []


def test_a_mean_over_something_else_is_told_of() -> None:
    weighing, _, notes = settle("mean", [0, -100, 2, 0])
    assert weighing.is_settled
    assert weighing.share(2, 4, 4) == 0.5
    assert "the loss is no mean over samples (two micro-batches give" in notes[0]


def test_what_grows_without_being_a_sum_is_refused() -> None:
    net = Net()
    weighing = Weighing(LossModule(net), torch.device("cpu"), "fp32")
    losses = [torch.tensor(value) for value in (1.0, 1.0, 1.0, 1.9)]
    with pytest.raises(UserError, match="the loss grows with the number of samples"):
        weighing.settle([0, 1], 2, lambda items: losses, OneWorld(), print, is_full=True)  # type: ignore[arg-type]
