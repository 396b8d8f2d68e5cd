"""Our schedules against those of the real Cerebras SDK, which computes them in float32."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest

from portwright.job.schedules import SCHEDULES, parse_schedule

# The SDK's import and its dependencies warn in their own ways.
pytestmark = [pytest.mark.vendor, pytest.mark.filterwarnings("default")]

NUM_STEPS = 200
FLOAT32_ERROR = 2e-6  # of the highest rate: a few roundings


@functools.cache
def load_sdk() -> Any:
    try:
        import cerebras.pytorch as sdk
    except ImportError as error:
        pytest.skip(f"the Cerebras SDK cannot be imported here: {error}")
    return sdk


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)  # the SDK writes its logs where it stands
    loaded = load_sdk()
    from cerebras.pytorch.backend import current_backend_impl

    if current_backend_impl(raise_exception=False) is None:  # a process may have only one
        loaded.backend("CPU")
    return loaded


def vendor_rates(sdk: Any, make: Any, num_steps: int = NUM_STEPS) -> list[float]:
    import torch

    optimizer = sdk.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    schedule = make(optimizer)
    rates = []
    for _ in range(num_steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        schedule.step()
    return rates


def our_rates(value: Any, num_steps: int = NUM_STEPS) -> list[float]:
    schedule = parse_schedule(value)
    return [schedule(step) for step in range(num_steps)]


def assert_same(ours: list[float], theirs: list[float]) -> None:
    worst = max(abs(one - other) for one, other in zip(ours, theirs, strict=True))
    assert worst <= FLOAT32_ERROR * max(map(abs, theirs))


def vendor_class(sdk: Any, name: str) -> Any:
    module = sdk.optim.lr_scheduler
    return getattr(module, f"{name}LR", None) or getattr(module, name)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("Constant", {"learning_rate": 0.3}),
    (
        "Polynomial",
        {"initial_learning_rate": 0.5, "end_learning_rate": 0.05, "total_iters": 120, "power": 1.5},
    ),
    ("Linear", {"initial_learning_rate": 0.5, "end_learning_rate": 0.05, "total_iters": 120}),
    ("Linear", {"initial_learning_rate": 0.0, "end_learning_rate": 0.5, "total_iters": 33}),
    ("Exponential", {"initial_learning_rate": 0.5, "total_iters": 30, "decay_rate": 0.7}),
    ("Exponential", {"initial_learning_rate": 0.5, "total_iters": 30, "decay_rate": 0.7, "staircase": True}),
    (
        "InverseExponentialTimeDecay",
        {"initial_learning_rate": 0.5, "step_exponent": 2, "total_iters": 30, "decay_rate": 0.7},
    ),
    (
        "InverseExponentialTimeDecay",
        {
            "initial_learning_rate": 0.5,
            "step_exponent": 1,
            "total_iters": 30,
            "decay_rate": 2.0,
            "staircase": True,
        },
    ),
    ("InverseSquareRootDecay", {}),
    ("InverseSquareRootDecay", {"initial_learning_rate": 0.5, "scale": 3.0, "warmup_steps": 50}),
    ("CosineDecay", {"initial_learning_rate": 0.5, "end_learning_rate": 0.05, "total_iters": 120}),
    ("PiecewiseConstant", {"learning_rates": [0.5, 0.3, 0.7], "milestones": [20, 130]}),
    ("MultiStep", {"initial_learning_rate": 0.5, "gamma": 0.3, "milestones": [20, 130]}),
    ("Step", {"initial_learning_rate": 0.5, "gamma": 0.8, "step_size": 30}),
    ("CosineAnnealing", {"initial_learning_rate": 0.5, "T_max": 40, "eta_min": 0.01}),
    ("Multiplicative", {"initial_learning_rate": 0.5, "coefficient": 0.97}),
    ("Cyclic", {"base_lr": 0.1, "max_lr": 0.9, "step_size_up": 16}),
    (
        "Cyclic",
        {"base_lr": 0.1, "max_lr": 0.9, "step_size_up": 16, "step_size_down": 48, "mode": "triangular2"},
    ),
    ("Cyclic", {"base_lr": 0.1, "max_lr": 0.9, "step_size_up": 16, "mode": "exp_range", "gamma": 0.99}),
    ("OneCycle", {"initial_learning_rate": 0.04, "max_lr": 1.0, "total_steps": NUM_STEPS}),
    (
        "OneCycle",
        {
            "initial_learning_rate": 0.04,
            "max_lr": 1.0,
            "total_steps": NUM_STEPS,
            "three_phase": True,
            "pct_start": 0.25,
        },
    ),
    (
        "OneCycle",
        {"initial_learning_rate": 0.04, "max_lr": 1.0, "total_steps": NUM_STEPS, "anneal_strategy": "linear"},
    ),
]


@pytest.mark.parametrize(("name", "keys"), CASES)
def test_equals_the_sdk(sdk: Any, name: str, keys: dict[str, Any]) -> None:
    theirs = vendor_rates(sdk, lambda optimizer: vendor_class(sdk, name)(optimizer, **keys))
    assert_same(our_rates({"scheduler": name, **keys}), theirs)


def test_every_kind_is_compared(sdk: Any) -> None:
    apart = {"Lambda", "CosineAnnealingWarmRestarts"}
    assert {name for name, _ in CASES} | apart == set(SCHEDULES)
    for name in SCHEDULES:
        assert vendor_class(sdk, name)


def test_lambda_is_the_initial_rate_times_the_function(sdk: Any) -> None:
    import torch

    class Cosine(sdk.optim.lr_scheduler.LambdaLR):
        def set_value_lambda(self) -> list[Any]:
            return [lambda step: torch.cos(step.float())]

    theirs = vendor_rates(sdk, lambda optimizer: Cosine(optimizer, initial_learning_rate=0.5))
    assert_same(
        our_rates({"scheduler": "Lambda", "initial_learning_rate": 0.5, "lr_lambda": "math:cos"}), theirs
    )


def test_a_list_is_the_sdks_sequence(sdk: Any) -> None:
    module = sdk.optim.lr_scheduler
    theirs = vendor_rates(
        sdk,
        lambda optimizer: module.SequentialLR(
            optimizer,
            [
                module.LinearLR(optimizer, initial_learning_rate=0.0, end_learning_rate=0.5, total_iters=30),
                module.CosineDecayLR(
                    optimizer, initial_learning_rate=0.5, end_learning_rate=0.1, total_iters=70
                ),
                module.ConstantLR(optimizer, learning_rate=0.02),
            ],
            [30, 100],
        ),
    )
    ours = our_rates(
        [
            {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 0.5, "steps": 30},
            {
                "scheduler": "CosineDecay",
                "initial_learning_rate": 0.5,
                "end_learning_rate": 0.1,
                "total_iters": 70,
            },
            {"scheduler": "Constant", "learning_rate": 0.02},
        ]
    )
    assert_same(ours, theirs)


def test_warm_restarts_agree_until_the_first_restart_only(sdk: Any) -> None:
    # SDK 2.10.0 takes the steps before the last restart for those since it; ours is torch's, and this test is
    # to fail when the SDK's changes.
    keys = {"initial_learning_rate": 0.5, "T_0": 50, "eta_min": 0.01}
    name = "CosineAnnealingWarmRestarts"
    theirs = vendor_rates(sdk, lambda optimizer: vendor_class(sdk, name)(optimizer, **keys))
    ours = our_rates({"scheduler": name, **keys})
    assert_same(ours[:50], theirs[:50])
    assert max(abs(one - other) for one, other in zip(ours[50:], theirs[50:], strict=True)) > 0.1


def test_a_cycling_polynomial_holds_in_the_sdk(sdk: Any) -> None:
    # The key `cycle` is documented there, and has no effect after total_iters; ours is TensorFlow's.
    keys = {"initial_learning_rate": 0.5, "end_learning_rate": 0.05, "total_iters": 50, "cycle": True}
    theirs = vendor_rates(sdk, lambda optimizer: vendor_class(sdk, "Polynomial")(optimizer, **keys))
    ours = our_rates({"scheduler": "Polynomial", **keys})
    assert_same(ours[:51], theirs[:51])
    assert all(math.isclose(rate, 0.05, rel_tol=1e-6) for rate in theirs[51:])
    assert ours[75] == pytest.approx(0.05 + 0.45 * (1 - 75 / 100))


def test_onecycle_holds_where_the_sdk_goes_on(sdk: Any) -> None:
    keys = {"initial_learning_rate": 0.04, "max_lr": 1.0, "total_steps": 100, "anneal_strategy": "linear"}
    theirs = vendor_rates(sdk, lambda optimizer: vendor_class(sdk, "OneCycle")(optimizer, **keys))
    ours = our_rates({"scheduler": "OneCycle", **keys})
    assert_same(ours[:100], theirs[:100])
    assert min(theirs[100:]) < 0 < min(ours[100:])
