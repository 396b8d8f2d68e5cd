"""The first tensor that is not finite is named: batch, weight, layer or loss."""

from __future__ import annotations

import torch
from torch import nn

from portwright.base_model import LossModule
from portwright.errors import ExitStatus
from portwright.runtime.non_finite import explain_non_finite

CPU = torch.device("cpu")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 1)
        self.log_of_zero = False

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        out = self.second(self.first(batch["x"])).mean()
        return torch.log(out * 0) if self.log_of_zero else out


def explain(module: Model, x: torch.Tensor, step: int = 9) -> tuple[str, ExitStatus]:
    error = explain_non_finite(
        LossModule(module), {"x": x}, step=step, batch_name="batch 9", loss=float("nan"), device=CPU
    )
    return str(error), error.status


def test_a_bad_sample() -> None:
    x = torch.zeros(4, 3)
    x[2, 1] = float("inf")
    text, status = explain(Model(), x)
    assert "batch['x'] holds 1 non-finite" in text
    assert "sample 2" in text
    assert status == ExitStatus.NON_FINITE
    assert explain(Model(), x, step=1)[1] == ExitStatus.USAGE, "nothing was trained yet: bad input"


def test_a_bad_weight() -> None:
    model = Model()
    with torch.no_grad():
        model.second.weight[0, 0] = float("nan")
    assert "weight 'second.weight'" in explain(model, torch.ones(2, 3))[0]


def test_a_layer_that_overflows() -> None:
    model = Model()
    with torch.no_grad():
        model.first.weight.fill_(3e38)
    text, _ = explain(model, torch.full((2, 3), 9.0))
    assert "'first' (Linear)" in text


def test_the_loss_itself() -> None:
    model = Model()
    model.log_of_zero = True
    assert (
        "loss function itself" in explain(model, torch.ones(2, 3))[0]
        or "'model' (Model)" in explain(model, torch.ones(2, 3))[0]
    )


def test_nothing_is_left_behind() -> None:
    model = Model()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    explain(model, torch.ones(2, 3))
    assert torch.equal(before, torch.get_rng_state())
    assert not model.first._forward_hooks
