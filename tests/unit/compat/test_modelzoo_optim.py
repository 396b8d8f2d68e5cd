"""Optimizers and schedulers for code that makes its own."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from portwright import optim
from portwright.compat.modelzoo_layers import (
    RotaryPositionEmbeddingHelper,
    get_clones,
    lecun_normal_,
    variance_scaling_,
)
from portwright.layers import RotaryPositionEmbeddingHelper as OurHelper
from portwright.optim import lr_scheduler as schedulers


def step(kind: Any, **options: Any) -> list[float]:
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = kind([weight], lr=0.1, **options)
    for _ in range(3):
        optimizer.zero_grad()
        (weight.square().sum() + weight.sum()).backward()
        optimizer.step()
    return weight.tolist()


@pytest.mark.parametrize(
    ("ours", "torchs", "options"),
    [
        (optim.SGD, torch.optim.SGD, {"momentum": 0.9}),
        (optim.Adam, torch.optim.Adam, {"eps": 1e-6, "weight_decay": 0.1}),
        (optim.AdamW, torch.optim.AdamW, {"eps": 1e-6, "weight_decay": 0.1}),
        (optim.Adamax, torch.optim.Adamax, {"eps": 1e-6}),
        (optim.Adagrad, torch.optim.Adagrad, {"eps": 1e-6}),
        (optim.RAdam, torch.optim.RAdam, {"eps": 1e-6}),
        (optim.Rprop, torch.optim.Rprop, {}),
        (optim.Adadelta, torch.optim.Adadelta, {}),
    ],
)
def test_defaults_are_the_zoos(ours: Any, torchs: Any, options: dict[str, Any]) -> None:
    given = {name: value for name, value in options.items() if name != "eps"}
    assert step(ours, **given) == step(torchs, **options)


def test_arguments_are_the_zoos_in_their_order_and_no_others() -> None:
    class Own(optim.Adam):
        def __init__(self, params: Any) -> None:
            super().__init__(params, 0.1, (0.8, 0.9))

    weights = [torch.nn.Parameter(torch.ones(2))]
    assert Own(weights).defaults["betas"] == (0.8, 0.9)
    assert pickle.loads(pickle.dumps(optim.SGD)) is optim.SGD
    for call in (
        lambda: optim.Adam(weights, 0.1, lr=0.1),
        lambda: optim.Adam(weights, fused=True),
        lambda: optim.SGD(weights),
        lambda: schedulers.Step(Own(weights), 1.0, 2),
    ):
        with pytest.raises(TypeError, match="argument"):
            call()


def test_adamw_without_bias_correction_starts_slowly() -> None:
    corrected, uncorrected = step(optim.AdamW), step(optim.AdamW, correct_bias=False)
    assert corrected != uncorrected


def test_an_optimizer_of_ones_own_makes_its_state_first() -> None:
    class Signs(optim.CSOptimizer):
        def preinitialize(self) -> None:
            for parameter in (p for group in self.param_groups for p in group["params"]):
                self.state[parameter]["seen"] = torch.zeros_like(parameter)

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    assert self._get_global_step(parameter) >= 1
                    self.state[parameter]["seen"] += 1
                    parameter -= group["lr"] * parameter.grad.sign()

    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = Signs([weight], {"lr": 0.5}, enable_global_step=True)
    assert set(optimizer.state[weight]) == {"seen", "step"}
    weight.sum().backward()
    optimizer.step()
    assert weight.tolist() == [0.5, 0.5]


def rates(make: Any, **options: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=123.0)
    scheduler = make(optimizer, **options)
    found = []
    for _ in range(5):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize(
    ("make", "options", "expected"),
    [
        (schedulers.Constant, {"val": 0.5}, [0.5] * 5),
        (schedulers.Polynomial, {"learning_rate": 1.0, "end_learning_rate": 0.0, "decay_steps": 4}, [1, 0.75, 0.5, 0.25, 0]),
        (schedulers.Exponential, {"learning_rate": 1.0, "decay_steps": 1, "decay_rate": 0.5}, [1, 0.5, 0.25, 0.125, 0.0625]),
        (schedulers.Step, {"learning_rate": 1.0, "step_size": 2, "gamma": 0.1}, [1, 1, 0.1, 0.1, 0.01]),
        (schedulers.MultiStep, {"learning_rate": 1.0, "gamma": 0.1, "milestones": [1, 3]}, [1, 0.1, 0.1, 0.01, 0.01]),
        (schedulers.PiecewiseConstant, {"learning_rates": [1.0, 2.0], "milestones": [2]}, [1, 1, 2, 2, 2]),
        (schedulers.CosineDecay, {"learning_rate": 1.0, "end_learning_rate": 0.0, "decay_steps": 2}, [1, 0.5, 0, 0, 0]),
        (schedulers.CosineAnnealing, {"learning_rate": 1.0, "T_max": 2, "eta_min": 0.0}, [1, 0.5, 0, 0.5, 1]),
        (
            schedulers.InverseExponentialTimeDecay,
            {"learning_rate": 1.0, "step_exponent": 1, "decay_steps": 1, "decay_rate": 1.0},
            [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5],
        ),
    ],
)  # fmt: skip
def test_schedules_ignore_what_the_optimizer_was_made_with(
    make: Any, options: Any, expected: list[float]
) -> None:
    assert rates(make, **options) == pytest.approx(expected, abs=1e-12)


def test_a_schedule_of_ones_own_and_its_state() -> None:
    class Halving(schedulers.LRScheduler):
        def _lr_function(self, global_step: torch.Tensor) -> torch.Tensor:
            return 0.5**global_step

    assert rates(Halving) == [1, 0.5, 0.25, 0.125, 0.0625]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = schedulers.Constant(optimizer, 0.1)
    assert "_schedule" not in scheduler.state_dict()
    with pytest.raises(NotImplementedError):
        schedulers.LRScheduler(optimizer)


def test_small_parts() -> None:
    first, second = get_clones(torch.nn.Linear(2, 2), 2)
    assert first.weight is not second.weight
    for fill in (lecun_normal_, variance_scaling_):
        assert fill(torch.zeros(30, 30)).std() > 0
    x = torch.randn(1, 2, 5, 8)
    theirs, ours = RotaryPositionEmbeddingHelper(16, 8), OurHelper(16, 8)
    assert torch.equal(theirs.rotate_tensor(x, 8, offset=3), ours.rotate_tensor(x, offset=3))
