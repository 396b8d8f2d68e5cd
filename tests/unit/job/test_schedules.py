"""Schedules against torch's own where torch has one, and against their formulas where it has none."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler as torch_schedules

from portwright.errors import UserError
from portwright.job.schedules import SCHEDULES, Schedule, check_schedule, parse_schedule

NUM_STEPS = 300


def torch_rates(make: Callable[[Any], Any], rate: float, num_steps: int = NUM_STEPS) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=rate)
    schedule = make(optimizer)
    rates = []
    for _ in range(num_steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return rates


def rates_of(value: Any, num_steps: int = NUM_STEPS, **options: Any) -> list[float]:
    schedule = parse_schedule(value, **options)
    return [schedule(step) for step in range(num_steps)]


def assert_same(ours: list[float], theirs: list[float]) -> None:
    assert len(ours) == len(theirs)
    scale = max(abs(rate) for rate in theirs)
    worst = max(abs(one - other) for one, other in zip(ours, theirs, strict=True))
    assert worst <= 1e-12 * scale


TWINS: list[tuple[dict[str, Any], float, Callable[[Any], Any]]] = [
    (
        {"scheduler": "Exponential", "initial_learning_rate": 0.3, "decay_rate": 0.99},
        0.3,
        lambda o: torch_schedules.ExponentialLR(o, 0.99),
    ),
    (
        {"scheduler": "Exponential", "initial_learning_rate": 0.3, "decay_rate": 0.5, "total_iters": 40},
        0.3,
        lambda o: torch_schedules.ExponentialLR(o, 0.5 ** (1 / 40)),
    ),
    (
        {
            "scheduler": "Exponential",
            "initial_learning_rate": 0.3,
            "decay_rate": 0.5,
            "decay_steps": 40,
            "staircase": True,
        },
        0.3,
        lambda o: torch_schedules.StepLR(o, 40, 0.5),
    ),
    (
        {"scheduler": "PiecewiseConstant", "values": [0.8, 0.4, 0.2], "boundaries": [10, 111]},
        0.8,
        lambda o: torch_schedules.MultiStepLR(o, [10, 111], 0.5),
    ),
    (
        {"scheduler": "Linear", "initial_learning_rate": 0.5, "end_learning_rate": 0.05, "steps": 200},
        0.5,
        lambda o: torch_schedules.LinearLR(o, start_factor=1.0, end_factor=0.1, total_iters=200),
    ),
    (
        {"scheduler": "Linear", "initial_learning_rate": 0.05, "end_learning_rate": 0.5, "steps": 77},
        0.5,
        lambda o: torch_schedules.LinearLR(o, start_factor=0.1, end_factor=1.0, total_iters=77),
    ),
    (
        {
            "scheduler": "Polynomial",
            "initial_learning_rate": 0.5,
            "end_learning_rate": 0.0,
            "steps": 200,
            "power": 1.7,
        },
        0.5,
        lambda o: torch_schedules.PolynomialLR(o, total_iters=200, power=1.7),
    ),
    (
        {"scheduler": "CosineAnnealing", "learning_rate": 0.7, "t_max": 40, "eta_min": 0.01},
        0.7,
        lambda o: torch_schedules.CosineAnnealingLR(o, 40, 0.01),
    ),
    (
        {
            "scheduler": "CosineAnnealingWarmRestarts",
            "initial_learning_rate": 0.7,
            "T_0": 13,
            "eta_min": 0.01,
        },
        0.7,
        lambda o: torch_schedules.CosineAnnealingWarmRestarts(o, 13, 1, 0.01),
    ),
    (
        {"scheduler": "CosineAnnealingWarmRestarts", "initial_learning_rate": 0.7, "t_0": 10, "t_mult": 3},
        0.7,
        lambda o: torch_schedules.CosineAnnealingWarmRestarts(o, 10, 3),
    ),
    (
        {"scheduler": "Step", "initial_learning_rate": 0.7, "step_size": 30, "gamma": 0.9},
        0.7,
        lambda o: torch_schedules.StepLR(o, 30, 0.9),
    ),
    (
        {
            "scheduler": "MultiStep",
            "initial_learning_rate": 0.7,
            "milestones": [3, 50, 50, 222],
            "gamma": 0.3,
        },
        0.7,
        lambda o: torch_schedules.MultiStepLR(o, [3, 50, 50, 222], 0.3),
    ),
    (
        {"scheduler": "Multiplicative", "initial_learning_rate": 0.7, "coefficient": 0.98},
        0.7,
        lambda o: torch_schedules.MultiplicativeLR(o, lambda _: 0.98),
    ),
    (
        {"scheduler": "Lambda", "initial_learning_rate": 0.7, "lr_lambda": "math:cos"},
        0.7,
        lambda o: torch_schedules.LambdaLR(o, math.cos),
    ),
    *(
        (
            {
                "scheduler": "Cyclic",
                "base_lr": 0.1,
                "max_lr": 0.9,
                "step_size_up": 17,
                "step_size_down": down,
                "mode": mode,
                "gamma": 0.99,
            },
            0.1,
            lambda o, mode=mode, down=down: torch_schedules.CyclicLR(
                o, 0.1, 0.9, 17, down, mode=mode, gamma=0.99, cycle_momentum=False
            ),
        )
        for mode in ("triangular", "triangular2", "exp_range")
        for down in (None, 5)
    ),
    *(
        (
            {
                "scheduler": "OneCycle",
                "initial_learning_rate": 0.04,
                "max_lr": 1.0,
                "total_steps": NUM_STEPS + 1,
                "pct_start": start,
                "three_phase": phases,
                "anneal_strategy": shape,
            },
            0.04,
            lambda o, start=start, phases=phases, shape=shape: torch_schedules.OneCycleLR(
                o,
                1.0,
                NUM_STEPS + 1,
                pct_start=start,
                three_phase=phases,
                anneal_strategy=shape,
                cycle_momentum=False,
            ),
        )
        for start in (0.3, 0.0, 0.5)
        for phases in (False, True)
        for shape in ("cos", "linear")
        if not (phases and start == 0.0)  # torch divides by zero there
    ),
]


@pytest.mark.parametrize(
    ("value", "rate", "make"), TWINS, ids=lambda value: str(value)[:60] if isinstance(value, dict) else ""
)
def test_equals_its_twin_in_torch(value: dict[str, Any], rate: float, make: Callable[[Any], Any]) -> None:
    assert_same(rates_of(value), torch_rates(make, rate))


def test_every_kind_is_compared_with_something() -> None:
    elsewhere = {"Constant", "CosineDecay", "InverseExponentialTimeDecay", "InverseSquareRootDecay"}
    assert {value["scheduler"] for value, _, _ in TWINS} | elsewhere == set(SCHEDULES)


def test_cosine_decay_is_torchs_first_descent_and_then_holds() -> None:
    ours = rates_of(
        {
            "scheduler": "CosineDecay",
            "initial_learning_rate": 0.7,
            "end_learning_rate": 0.01,
            "decay_steps": 90,
        }
    )
    theirs = torch_rates(lambda o: torch_schedules.CosineAnnealingLR(o, 90, 0.01), 0.7, 91)
    assert_same(ours, theirs + [0.01] * (NUM_STEPS - 91))


def test_inverse_square_root_holds_in_its_warmup() -> None:
    schedule = parse_schedule({"scheduler": "InverseSquareRootDecay", "scale": 2.0, "warmup_steps": 100})
    assert schedule(0) == schedule(100) == pytest.approx(0.2, rel=1e-15)
    assert schedule(400) == pytest.approx(0.1, rel=1e-15)


def test_inverse_exponential_time_decay() -> None:
    keys = {
        "scheduler": "InverseExponentialTimeDecay",
        "initial_learning_rate": 3.0,
        "step_exponent": 2,
        "decay_steps": 8,
        "decay_rate": 0.5,
    }
    smooth, stairs = parse_schedule(keys), parse_schedule({**keys, "staircase": True})
    assert [smooth(step) for step in (0, 2, 4)] == [3.0, 3.0 / 1.25, 3.0 / 2.0]
    assert [stairs(step) for step in (0, 2, 3, 4)] == [3.0, 3.0, 3.0 / 1.5, 3.0 / 2.0]


def test_polynomial_that_cycles_stretches_to_the_next_multiple() -> None:
    schedule = parse_schedule(
        {
            "scheduler": "Polynomial",
            "initial_learning_rate": 1.0,
            "end_learning_rate": 0.0,
            "steps": 10,
            "cycle": True,
        }
    )
    assert [schedule(step) for step in (0, 5, 10, 11, 15, 20, 25)] == pytest.approx(
        [1.0, 0.5, 0.0, 9 / 20, 5 / 20, 0.0, 5 / 30]
    )


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # torch 2.4 warns of itself
def test_a_list_is_torchs_sequential() -> None:
    ours = rates_of(
        [
            {"scheduler": "Linear", "initial_learning_rate": 0.05, "end_learning_rate": 0.5, "steps": 30},
            {"scheduler": "Step", "learning_rate": 0.5, "step_size": 7, "gamma": 0.9, "total_iters": 50},
            {"scheduler": "CosineAnnealing", "learning_rate": 0.5, "T_max": 100},
        ]
    )
    theirs = torch_rates(
        lambda o: torch_schedules.SequentialLR(
            o,
            [
                torch_schedules.LinearLR(o, 0.1, 1.0, 30),
                torch_schedules.StepLR(o, 7, 0.9),
                torch_schedules.CosineAnnealingLR(o, 100),
            ],
            [30, 80],
        ),
        0.5,
    )
    assert_same(ours, theirs)


def test_a_list_can_count_from_the_start_of_the_run() -> None:
    value = [
        {"scheduler": "Constant", "learning_rate": 1.0, "steps": 10},
        {"scheduler": "Linear", "initial_learning_rate": 1.0, "end_learning_rate": 0.0, "steps": 20},
    ]
    assert rates_of(value, 12)[-1] == pytest.approx(1 - 1 / 20)
    assert rates_of(value, 12, disable_lr_steps_reset=True)[-1] == pytest.approx(1 - 11 / 20)


def test_the_last_of_a_list_goes_on_for_ever() -> None:
    schedule = parse_schedule(
        [
            {"scheduler": "Constant", "learning_rate": 1.0, "steps": 10},
            {"scheduler": "Constant", "learning_rate": 0.5, "steps": 10},
        ]
    )
    assert [schedule(step) for step in (9, 10, 10**9)] == [1.0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.1, True),
        (1, True),
        ({"scheduler": "constant", "learning_rate": 0.1}, True),
        ([{"scheduler": "constantLR", "learning_rate": 0.1}], True),
        (
            [
                {"scheduler": "Constant", "learning_rate": 0.1, "steps": 5},
                {"scheduler": "Constant", "learning_rate": 0.1},
            ],
            True,
        ),
        (
            [
                {"scheduler": "Constant", "learning_rate": 0.1, "steps": 5},
                {"scheduler": "Constant", "learning_rate": 0.2},
            ],
            False,
        ),
        ({"scheduler": "Step", "learning_rate": 0.1, "step_size": 5, "gamma": 0.5}, False),
    ],
)
def test_is_constant(value: Any, expected: bool) -> None:
    assert parse_schedule(value).is_constant is expected


@pytest.mark.parametrize(
    "name", ["CosineDecay", "cosinedecay", "COSINEDECAYLR", "cosinedecaylr", "CosineDecayLR"]
)
def test_names_in_any_case_with_and_without_lr(name: str) -> None:
    value = {"scheduler": name, "initial_learning_rate": 1.0, "end_learning_rate": 0.0, "total_iters": 2}
    assert rates_of(value, 3) == pytest.approx([1.0, 0.5, 0.0])


def test_steps_far_beyond_the_end_stay_finite() -> None:
    for value, _, _ in TWINS:
        if value["scheduler"] != "Lambda":
            assert math.isfinite(parse_schedule(value)(10**9)), value


def test_a_factor_above_one_ends_in_infinity_not_in_a_crash() -> None:
    schedule = parse_schedule(
        {"scheduler": "Multiplicative", "initial_learning_rate": 1.0, "coefficient": 2.0}
    )
    assert schedule(10**6) == math.inf


def test_onecycle_holds_its_last_rate() -> None:
    schedule = parse_schedule(
        {"scheduler": "OneCycle", "initial_learning_rate": 0.1, "max_lr": 1.0, "total_steps": 10}
    )
    assert schedule(9) == schedule(10) == schedule(10**6) == pytest.approx(1e-5)


@pytest.mark.parametrize("total", [1, 2, 3, 4])
@pytest.mark.parametrize("three_phase", [False, True])
def test_onecycle_of_a_few_steps(total: int, three_phase: bool) -> None:
    value = {
        "scheduler": "OneCycle",
        "initial_learning_rate": 0.1,
        "max_lr": 1.0,
        "total_steps": total,
        "three_phase": three_phase,
        "pct_start": 0.5,
    }
    assert all(0 <= rate <= 1 for rate in rates_of(value, 10))


@given(
    initial=st.floats(0, 10),
    end=st.floats(0, 10),
    total=st.integers(1, 10**6),
    step=st.integers(0, 10**7),
    kind=st.sampled_from(["Linear", "CosineDecay", "Polynomial"]),
)
def test_a_decay_stays_between_its_ends(initial: float, end: float, total: int, step: int, kind: str) -> None:
    rate = parse_schedule(
        {"scheduler": kind, "initial_learning_rate": initial, "end_learning_rate": end, "total_iters": total}
    )(step)
    slack = 1e-12 * max(initial, end)
    assert min(initial, end) - slack <= rate <= max(initial, end) + slack
    if step >= total:
        assert rate == pytest.approx(end, abs=1e-12 * max(initial, 1e-300))


@given(first=st.integers(1, 50), mult=st.integers(1, 4), step=st.integers(0, 10**6))
def test_warm_restarts_are_where_the_lengths_add_up(first: int, mult: int, step: int) -> None:
    schedule = parse_schedule(
        {
            "scheduler": "CosineAnnealingWarmRestarts",
            "initial_learning_rate": 1.0,
            "T_0": first,
            "T_mult": mult,
        }
    )
    start, length = 0, first
    while start + length <= step:
        start, length = start + length, length * mult
    assert schedule(start) == 1.0
    assert schedule(step) == pytest.approx((1 + math.cos(math.pi * (step - start) / length)) / 2, abs=1e-12)


def message_of(value: Any) -> str:
    with pytest.raises(UserError) as raised:
        parse_schedule(value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (True, ["learning_rate: expected a number", "received True"]),
        (None, ["received None"]),
        ("0.1", ["received '0.1'", "Remove the quotes."]),
        ("fast", ["received 'fast'"]),
        (-0.1, ["received -0.1"]),
        (math.nan, ["received nan"]),
        (math.inf, ["received inf"]),
        (10**400, ["expected a finite number"]),
        ([], ["received []"]),
        ([0.1], ["learning_rate.0: expected a mapping with a 'scheduler', received 0.1"]),
        ({}, ["learning_rate.scheduler: this key is required", "CosineDecay"]),
        ({"schedular": "Linear"}, ["learning_rate.schedular: unknown key", "Did you mean 'scheduler'?"]),
        ({"scheduler": "Linar"}, ["unknown schedule 'Linar'", "Did you mean 'Linear'?"]),
        ({"scheduler": 5}, ["unknown schedule 5"]),
        (
            {"scheduler": "Linear", "initial_learning_rate": 1, "end_learning_rate": 0, "step": 5},
            ["learning_rate.step: unknown key, with the value 5", "Did you mean 'steps'?"],
        ),
        (
            {"scheduler": "Linear", "initial_learning_rate": 1, "end_learning_rate": 0},
            ["learning_rate.total_iters: this key is required"],
        ),
        (
            {
                "scheduler": "Linear",
                "initial_learning_rate": 1,
                "end_learning_rate": 0,
                "steps": 5,
                "total_iters": 6,
            },
            ["'steps' is 5, but 'total_iters', another spelling of it, is 6"],
        ),
        (
            {"scheduler": "Linear", "initial_learning_rate": 1, "end_learning_rate": 0, "steps": True},
            ["learning_rate.steps: expected a whole number, received True"],
        ),
        (
            {"scheduler": "Linear", "initial_learning_rate": 1, "end_learning_rate": 0, "steps": 0},
            ["learning_rate.steps: expected a number greater than 0, received 0"],
        ),
        ({"scheduler": "Constant", "learning_rate": -1}, ["learning_rate.learning_rate", "received -1"]),
        (
            {"scheduler": "PiecewiseConstant", "values": [1, 2], "boundaries": [5, 6]},
            ["2 milestones need 3 learning_rates, received 2"],
        ),
        (
            {"scheduler": "PiecewiseConstant", "values": [1, 2, 3], "boundaries": [6, 6]},
            ["milestones must increase, received [6, 6]"],
        ),
        (
            {
                "scheduler": "PiecewiseConstant",
                "values": [1, 2],
                "boundaries": [6],
                "initial_learning_rate": 3,
            },
            ["initial_learning_rate is 3.0, but learning_rates begins with 1.0"],
        ),
        (
            {"scheduler": "MultiStep", "learning_rate": 1, "gamma": 0.1, "milestones": [5, 4]},
            ["in order", "[5, 4]"],
        ),
        (
            {"scheduler": "Cyclic", "base_lr": 0, "max_lr": 1, "mode": "exp_range", "scale_mode": "cycle"},
            ["mode 'exp_range' scales by iterations, received scale_mode 'cycle'"],
        ),
        (
            {"scheduler": "Cyclic", "base_lr": 0, "max_lr": 1, "mode": "triangle"},
            ["Did you mean 'triangular'?"],
        ),
        (
            {
                "scheduler": "OneCycle",
                "initial_learning_rate": 0,
                "max_lr": 1,
                "three_phase": True,
                "pct_start": 0.6,
            },
            ["more than the whole cycle"],
        ),
        (
            {"scheduler": "Lambda", "initial_learning_rate": 1, "lr_lambda": "rate"},
            ["learning_rate.lr_lambda: expected module:function, received 'rate'"],
        ),
    ],
)
def test_says_what_is_wrong(value: Any, parts: list[str]) -> None:
    message = message_of(value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_all_problems_of_a_list_are_told_with_their_places() -> None:
    value = [
        {"scheduler": "Constant", "learning_rate": 0.1},
        {"scheduler": "Step", "learning_rate": 0.1, "step_size": 0, "gamma": "x", "steps": 5},
        {"scheduler": "Linear"},
    ]
    problems = check_schedule(value, ("optimizer", "learning_rate"))
    assert [problem.path[2:] for problem in problems] == [
        (0,),
        (1, "step_size"),
        (1, "gamma"),
        (2, "total_iters"),
        (2, "initial_learning_rate"),
        (2, "end_learning_rate"),
    ]
    assert "schedule 1 of 3 does not say how long it lasts" in problems[0].message


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_rates.py").write_text(
        "def halve(step):\n    return 0.5 ** step\n\n"
        "def bad(step):\n    return 'fast'\n\n"
        "def nan(step):\n    return float('nan')\n\nnumber = 5\n"
    )
    (tmp_path / "broken_rates.py").write_text("import my_rates\nmy_rates.nothing()\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_rates"
    sys.modules.pop("my_rates", None)


def lambda_schedule(name: str) -> Schedule:
    return parse_schedule({"scheduler": "Lambda", "initial_learning_rate": 2.0, "lr_lambda": name})


def test_lambda_calls_the_users_function(user_module: str) -> None:
    schedule = lambda_schedule(f"{user_module}:halve")
    assert user_module not in sys.modules  # it may not be importable yet where params are only checked
    assert [schedule(step) for step in range(3)] == [2.0, 1.0, 0.5]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("no_such_module:f", "there is no such module"),
        ("my_rates:halv", "Did you mean 'halve'?"),
        ("my_rates:number", "is 5"),
        ("my_rates:bad", "returned 'fast' for step 3"),
        ("my_rates:nan", "returned nan for step 3"),
        ("broken_rates:f", "AttributeError"),
    ],
)
def test_lambda_that_cannot_be_used(user_module: str, name: str, part: str) -> None:
    with pytest.raises(UserError, match=name) as raised:
        lambda_schedule(name)(3)
    assert part in str(raised.value)
