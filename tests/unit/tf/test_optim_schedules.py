"""Learning rates of the graph equal those of portwright.job.schedules at every step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from portwright.errors import UserError
from portwright.job.schedules import SCHEDULES, parse_schedule
from portwright.tensorflow.schedules import make_learning_rate

v1 = tf.compat.v1

CASES: dict[str, Any] = {
    "number": 0.1,
    "zero": {"scheduler": "Constant", "learning_rate": 0.0},
    "Constant": {"scheduler": "Constant", "learning_rate": 0.3},
    "Exponential": {
        "scheduler": "Exponential",
        "initial_learning_rate": 0.1,
        "decay_rate": 0.7,
        "total_iters": 6,
    },
    "stairs": {
        "scheduler": "Exponential",
        "initial_learning_rate": 0.1,
        "decay_rate": 0.7,
        "total_iters": 6,
        "staircase": True,
    },
    "PiecewiseConstant": {
        "scheduler": "PiecewiseConstant",
        "learning_rates": [0.1, 0.05, 0.2],
        "milestones": [3, 11],
    },
    "one piece": {"scheduler": "PiecewiseConstant", "learning_rates": [0.1], "milestones": []},
    "Linear": {
        "scheduler": "Linear",
        "initial_learning_rate": 0.1,
        "end_learning_rate": 0.01,
        "total_iters": 7,
    },
    "Linear cycle": {
        "scheduler": "Linear",
        "initial_learning_rate": 0.1,
        "end_learning_rate": 0.01,
        "total_iters": 7,
        "cycle": True,
    },
    "Polynomial": {
        "scheduler": "Polynomial",
        "initial_learning_rate": 0.1,
        "end_learning_rate": 0.01,
        "total_iters": 7,
        "power": 0.5,
    },
    "Polynomial cycle": {
        "scheduler": "PolynomialLR",
        "initial_learning_rate": 0.1,
        "end_learning_rate": 0.0,
        "total_iters": 7,
        "power": 2.0,
        "cycle": True,
    },
    "InverseExponentialTimeDecay": {
        "scheduler": "InverseExponentialTimeDecay",
        "initial_learning_rate": 0.1,
        "step_exponent": 2,
        "total_iters": 9,
        "decay_rate": 0.3,
    },
    "inverse stairs": {
        "scheduler": "InverseExponentialTimeDecay",
        "initial_learning_rate": 0.1,
        "step_exponent": 0,
        "total_iters": 9,
        "decay_rate": 0.3,
        "staircase": True,
    },
    "InverseSquareRootDecay": {
        "scheduler": "InverseSquareRootDecay",
        "initial_learning_rate": 0.1,
        "scale": 2.0,
        "warmup_steps": 4,
    },
    "CosineDecay": {
        "scheduler": "CosineDecay",
        "initial_learning_rate": 0.1,
        "end_learning_rate": 0.02,
        "total_iters": 9,
    },
    "CosineAnnealing": {
        "scheduler": "CosineAnnealing",
        "initial_learning_rate": 0.1,
        "T_max": 5,
        "eta_min": 0.01,
    },
    "CosineAnnealingWarmRestarts": {
        "scheduler": "CosineAnnealingWarmRestarts",
        "initial_learning_rate": 0.1,
        "T_0": 4,
    },
    "longer restarts": {
        "scheduler": "CosineAnnealingWarmRestarts",
        "initial_learning_rate": 0.1,
        "T_0": 3,
        "T_mult": 3,
        "eta_min": 0.01,
    },
    "Step": {"scheduler": "Step", "initial_learning_rate": 0.1, "gamma": 0.5, "step_size": 3},
    "gamma 0": {"scheduler": "Step", "initial_learning_rate": 0.1, "gamma": 0.0, "step_size": 3},
    "MultiStep": {
        "scheduler": "MultiStep",
        "initial_learning_rate": 0.1,
        "gamma": 0.5,
        "milestones": [0, 3, 3, 9],
    },
    "no milestones": {"scheduler": "MultiStep", "initial_learning_rate": 0.1, "gamma": 0.5, "milestones": []},
    "Multiplicative": {"scheduler": "Multiplicative", "initial_learning_rate": 0.1, "coefficient": 0.9},
    "Lambda": {"scheduler": "Lambda", "initial_learning_rate": 0.1, "lr_lambda": "math:sqrt"},
    "Cyclic": {"scheduler": "Cyclic", "base_lr": 0.01, "max_lr": 0.1, "step_size_up": 4},
    "Cyclic 2": {
        "scheduler": "Cyclic",
        "base_lr": 0.01,
        "max_lr": 0.1,
        "step_size_up": 2,
        "step_size_down": 5,
        "mode": "triangular2",
    },
    "Cyclic exp": {
        "scheduler": "Cyclic",
        "base_lr": 0.01,
        "max_lr": 0.1,
        "step_size_up": 3,
        "mode": "exp_range",
        "gamma": 0.95,
    },
    "OneCycle": {"scheduler": "OneCycle", "initial_learning_rate": 0.01, "max_lr": 0.1, "total_steps": 15},
    "OneCycle linear": {
        "scheduler": "OneCycle",
        "initial_learning_rate": 0.01,
        "max_lr": 0.1,
        "total_steps": 15,
        "three_phase": True,
        "anneal_strategy": "linear",
    },
    "OneCycle short": {
        "scheduler": "OneCycle",
        "initial_learning_rate": 0.01,
        "max_lr": 0.1,
        "total_steps": 1,
    },
    "warmup and decay": [
        {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 0.1, "total_iters": 4},
        {
            "scheduler": "CosineDecay",
            "initial_learning_rate": 0.1,
            "end_learning_rate": 0.0,
            "total_iters": 8,
        },
        {"scheduler": "InverseSquareRootDecay", "initial_learning_rate": 0.2},
    ],
}

_STEPS = [*range(45), 1000, 10**7]


def rates(learning_rate: Any, steps: list[int], **options: Any) -> Any:
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.placeholder(tf.int64, [])
        rate = make_learning_rate(learning_rate, step, **options)
        assert (rate.dtype, rate.shape.as_list()) == (tf.float32, [])
        return np.array([session.run(rate, {step: value}) for value in steps])


def test_every_kind_is_tried() -> None:
    tried = {case["scheduler"].removesuffix("LR") for case in CASES.values() if isinstance(case, dict)}
    assert tried == set(SCHEDULES)


@pytest.mark.parametrize("name", CASES)
def test_rates_equal(name: str) -> None:
    schedule = parse_schedule(CASES[name])
    expected = np.array([schedule(step) for step in _STEPS], np.float32)
    np.testing.assert_allclose(rates(CASES[name], _STEPS), expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("reset", [False, True])
def test_schedules_one_after_another(reset: bool) -> None:
    schedule = parse_schedule(CASES["warmup and decay"], disable_lr_steps_reset=reset)
    expected = np.array([schedule(step) for step in _STEPS], np.float32)
    found = rates(CASES["warmup and decay"], _STEPS, disable_lr_steps_reset=reset)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)


@settings(max_examples=15, deadline=None)
@given(first=st.integers(1, 40), factor=st.integers(1, 5), step=st.integers(0, 10**6))
def test_restarts_fall_where_they_do_in_python(first: int, factor: int, step: int) -> None:
    spec = {
        "scheduler": "CosineAnnealingWarmRestarts",
        "initial_learning_rate": 1.0,
        "T_0": first,
        "T_mult": factor,
    }
    start = 0
    steps = [step]
    for descent in range(6):  # the edges, where a logarithm may miss by one
        start += first * factor**descent
        steps += [start - 1, start, start + 1]
    schedule = parse_schedule(spec)
    expected = np.array([schedule(value) for value in steps], np.float32)
    np.testing.assert_allclose(rates(spec, steps), expected, rtol=1e-5, atol=1e-7)


def test_the_step_of_the_graph_is_the_default() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        rate = make_learning_rate(CASES["Multiplicative"])
        step = v1.train.get_global_step()
        session.run(v1.global_variables_initializer())
        first = session.run(rate)
        session.run(v1.assign_add(step, 1))
        assert session.run(rate) == pytest.approx(first * 0.9)


def test_unknown_schedules_are_refused() -> None:
    with pytest.raises(UserError, match=r"unknown schedule 'cosinedecy'.*Did you mean 'CosineDecay'"):
        make_learning_rate({"scheduler": "cosinedecy"})
    with pytest.raises(UserError, match="does not say how long"):
        make_learning_rate([{"scheduler": "Constant", "learning_rate": 0.1}] * 2)


@pytest.mark.parametrize("function", ["math:nothing", "math:isnan", "nowhere:f"])
def test_a_function_of_the_users_is_tried_when_the_graph_is_built(function: str) -> None:
    with pytest.raises(UserError):
        make_learning_rate({"scheduler": "Lambda", "initial_learning_rate": 0.1, "lr_lambda": function})
