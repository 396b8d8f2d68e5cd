"""The optimizers of PopTorch as Python objects, and the dictionary that the device gets of them."""

from __future__ import annotations

import copy
import inspect
import logging
import math
from typing import Any

import pytest
import torch
from torch import nn

from portwright.emulate import poptorch
from portwright.emulate.poptorch import optim
from portwright.emulate.poptorch._optimizer_attributes import (
    OptimizerAttrTracker,
    _OptimizerType,
    convertOptimizerToDict,
    describe,
)
from portwright.emulate.poptorch.enums import MeanReductionStrategy
from portwright.emulate.poptorch.poptorch_core import Error

OURS = [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.LAMB]
KNOWN_TO_BOTH = ["SGD", "Adam", "AdamW", "RMSprop"]


def weights(count: int = 2) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(2) * index) for index in range(count)]


def converted(
    optimizer: Any, options: Any = None, tracker: Any = None, compiled: bool = False
) -> dict[str, Any]:
    options = options or poptorch.Options()
    made: dict[str, Any] = convertOptimizerToDict(
        optimizer, tracker or OptimizerAttrTracker(options), options, compiled
    )
    return made


@pytest.mark.parametrize("name", KNOWN_TO_BOTH)
def test_they_are_torchs_with_torchs_defaults(name: str) -> None:
    ours, torchs = getattr(optim, name), getattr(torch.optim, name)
    assert ours.__bases__ == (optim.Optimizer, torchs)
    made, expected = ours(weights(), lr=0.1), torchs(weights(), lr=0.1)
    assert made.defaults == expected.defaults
    assert made.loss_scaling == 1.0
    assert made.accum_type == torch.float32
    parameters = list(inspect.signature(ours).parameters)
    extra = parameters[-len(ours._child_only) :]
    assert extra == ours._child_only


@pytest.mark.parametrize("kind", OURS[1:])
def test_all_but_sgd_have_a_rate_of_their_own(kind: Any) -> None:
    assert kind(weights()).param_groups[0]["lr"] == (1e-2 if kind is optim.RMSprop else 1e-3)
    with pytest.raises(TypeError, match="lr"):
        optim.SGD(weights())  # type: ignore[call-arg]


def test_lamb_has_its_own_defaults() -> None:
    made = optim.LAMB(weights())
    assert made.defaults == {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 1e-2,
        "max_weight_norm": 65500.0,
    }
    assert made.bias_correction is True
    assert optim.LAMB(weights(), max_weight_norm=3.0).param_groups[0]["max_weight_norm"] == 3.0


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32, "half"])
def test_accumulation_types_are_float_or_half(kind: Any, dtype: Any) -> None:
    names = [name for name in inspect.signature(kind).parameters if name.endswith("accum_type")]
    assert "accum_type" in names
    assert len(names) > 1
    for name in names:
        with pytest.raises(AssertionError, match=f"{name} must be torch.float32 or torch.float16"):
            kind(weights(), lr=0.1, **{name: dtype})
        assert getattr(kind(weights(), lr=0.1, **{name: torch.float16}), name) == torch.float16


def test_velocity_scaling_belongs_to_the_combined_variant(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "poptorch"):
        separate = optim.SGD(weights(), lr=0.1, velocity_scaling=4.0)
    assert "velocity_scaling=4.0 has no effect" in caplog.text
    assert "velocity_scaling" not in separate.param_groups[0]
    first, second = weights()
    groups = [{"params": [first]}, {"params": [second], "velocity_scaling": 8.0}]
    combined = optim.SGD(groups, lr=0.1, velocity_scaling=4.0, use_combined_accum=True)
    assert [group["velocity_scaling"] for group in combined.param_groups] == [4.0, 8.0]
    assert combined.defaults["velocity_scaling"] == 4.0
    assert optim.SGD(weights(), lr=0.1, use_combined_accum=True).defaults["velocity_scaling"] == 1.0


def test_what_is_given_is_variable_and_the_rest_constant() -> None:
    made = optim.SGD(weights(), lr=0.1, momentum=0.0)
    attributes = made.variable_attrs
    assert [name for name in made.defaults if not attributes.isConstant(name)] == ["lr", "momentum"]
    assert attributes.isConstant("loss_scaling")
    attributes.markAsVariable("loss_scaling")
    attributes.markAsVariable("loss_scaling")
    attributes.markAsConstant("loss_scaling")
    assert attributes.isConstant("loss_scaling")
    attributes.markAsConstant("momentum")
    assert attributes.isConstant("momentum")
    for mark in (attributes.markAsConstant, attributes.markAsVariable):
        with pytest.raises(AssertionError, match=r"'momentun' is no attribute.*momentum"):
            mark("momentun")


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copies_keep_everything(kind: Any, copied: Any) -> None:
    made = kind(weights(), lr=0.25, loss_scaling=2.0, accum_type=torch.float16)
    made.variable_attrs.markAsConstant("lr")
    other = copied(made)
    assert describe(other) == describe(made)
    assert other.variable_attrs.isConstant("lr")
    assert other.state_dict()["param_groups"][0]["lr"] == 0.25
    assert not other.ipu_state_is_dirty
    made.set_state_dict({"ipu_state": {}, "ipu_param": {}, **torch.optim.Optimizer.state_dict(made)})
    assert copied(made).ipu_state_is_dirty


@pytest.mark.parametrize("kind", OURS)
def test_the_state_of_the_device_and_torchs_go_together(kind: Any) -> None:
    made = kind(weights(), lr=0.5)
    assert not made.has_state()
    state = made.state_dict()
    assert (state["ipu_state"], state["ipu_param"]) == (None, None)
    assert state["param_groups"][0]["lr"] == 0.5
    device = {
        "ipu_state": {"Accl1___w": torch.ones(2)},
        "ipu_param": {"lossScaling_FLOAT": torch.tensor(1.0)},
    }
    other = kind(weights(), lr=0.1)
    other.load_state_dict({**state, **device})
    assert other.has_state()
    assert other.ipu_state_is_dirty
    assert not other.host_state_is_dirty
    assert other.param_groups[0]["lr"] == 0.5
    assert other.get_state_dict()["ipu_state"] == device["ipu_state"]


def test_a_state_of_torchs_is_refused_and_changes_nothing() -> None:
    host = torch.optim.Adam(weights(), lr=0.5)
    ours = optim.Adam(weights(), lr=0.1)
    with pytest.raises(RuntimeError, match="'state', 'param_groups' did not come from an IPU"):
        ours.load_state_dict(host.state_dict())
    with pytest.raises(Error, match="nothing"):
        ours.load_state_dict({})
    with pytest.raises(RuntimeError):
        ours.set_state_dict({})
    assert ours.param_groups[0]["lr"] == 0.1
    assert not ours.has_state()


def test_schedulers_work_on_them() -> None:
    made = optim.Adam(weights(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(made, 0.5)
    made.step()  # torch warns where the order is another
    scheduler.step()
    assert converted(made)["groups"][0]["learningRate"] == (0.5, False)


# The dictionary


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda p: optim.SGD(p, lr=0.1, use_combined_accum=True), _OptimizerType.SGD1),
        (lambda p: optim.SGD(p, lr=0.1), _OptimizerType.SGD2),
        (lambda p: torch.optim.SGD(p, lr=0.1), _OptimizerType.SGD2),
        (lambda p: optim.Adam(p), _OptimizerType.ADAM),
        (lambda p: torch.optim.Adam(p), _OptimizerType.ADAM),
        (lambda p: optim.AdamW(p), _OptimizerType.ADAMW),
        (lambda p: torch.optim.AdamW(p), _OptimizerType.ADAMW),
        (lambda p: optim.AdamW(p, bias_correction=False), _OptimizerType.ADAMW_NO_BIAS),
        (lambda p: optim.RMSprop(p), _OptimizerType.RMSPROP),
        (lambda p: torch.optim.RMSprop(p, centered=True), _OptimizerType.RMSPROP_CENTERED),
        (lambda p: optim.LAMB(p), _OptimizerType.LAMB),
        (lambda p: optim.LAMB(p, bias_correction=False), _OptimizerType.LAMB_NO_BIAS),
    ],
)
def test_each_has_its_kind(make: Any, kind: _OptimizerType, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "poptorch"):
        assert converted(make(weights()))["optimizer_type"] is kind
    assert caplog.text == ""


def test_a_whole_dictionary() -> None:
    first, second = weights()
    made = optim.SGD([{"params": [first]}, {"params": [second], "lr": 0.5}], lr=0.1, loss_scaling=2.0)
    group = {
        "momentum": (0, True),
        "dampening": (0, True),
        "weightDecay": (0, True),
        "nesterov": (False, True),
        "velocityScaling": (1.0, True),
    }
    assert converted(made) == {
        "optimizer_type": _OptimizerType.SGD2,
        "accumType": False,
        "velocityAccumType": False,
        "maxGradNorm": math.inf,
        "defaults": {"learningRate": (0.1, False), **group, "lossScaling": (2.0, False)},
        "groups": [{"learningRate": (0.1, False), **group}, {"learningRate": (0.5, False), **group}],
    }
    adam = converted(optim.Adam(weights(), betas=(0.5, 0.9), first_order_momentum_accum_type=torch.float16))
    assert adam["groups"][0]["beta1"] == (0.5, False)
    assert adam["groups"][0]["beta2"] == (0.9, False)
    assert adam["groups"][0]["learningRate"] == (1e-3, True)
    assert adam["firstOrderMomentumAccumType"] is True
    assert adam["secondOrderMomentumAccumType"] is False


def test_values_say_what_is_constant_of_torchs_own() -> None:
    made = converted(torch.optim.AdamW(weights(), weight_decay=0.01, eps=1e-6))["groups"][0]
    assert made["weightDecay"] == (0.01, True)
    assert made["eps"] == (1e-6, False)
    assert made["beta1"] == (0.9, True)
    assert converted(torch.optim.Adam(weights(), weight_decay=0.01))["groups"][0]["weightDecay"] == (
        0.01,
        False,
    )
    assert converted(torch.optim.RMSprop(weights(), alpha=0.5))["groups"][0]["alpha"] == (0.5, True)


class Custom(torch.optim.SGD):
    pass


def test_derived_optimizers_are_taken_for_their_parents(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "poptorch"):
        assert converted(Custom(weights(), lr=0.1))["optimizer_type"] is _OptimizerType.SGD2
    assert "no Python code of Custom" in caplog.text


@pytest.mark.parametrize(
    "name", ["Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop", "LBFGS"]
)
def test_other_optimizers_are_refused(name: str) -> None:
    with pytest.raises(AssertionError, match=f"{name}.*SGD, Adam, AdamW and RMSprop"):
        converted(getattr(torch.optim, name)(weights()))


@pytest.mark.parametrize("package", [optim, torch.optim])
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_there_is_no_amsgrad(package: Any, name: str) -> None:
    with pytest.raises(ValueError, match="amsgrad") as caught:
        converted(getattr(package, name)(weights(), amsgrad=True))
    assert isinstance(caught.value, Error)


@pytest.mark.parametrize(
    ("make", "change", "says"),
    [
        (lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1)), None, "lr must be a number.*tensor"),
        (lambda p: torch.optim.SGD(p, lr=0.1), {"momentum": "0.9"}, "momentum must be a number, not '0.9'"),
        (lambda p: torch.optim.Adam(p), {"betas": [0.9, 0.99]}, "betas must be a pair"),
        (lambda p: torch.optim.Adam(p), {"betas": (0.9,)}, "betas must be a pair"),
        (lambda p: torch.optim.Adam(p), {"betas": (0.9, None)}, r"betas\[1\] must be a number"),
        (lambda p: torch.optim.Adam(p), {"eps": None}, "has no eps"),
        (lambda p: optim.Adam(p, max_grad_norm=math.nan), None, "max_grad_norm must be larger than 0"),
        (lambda p: optim.Adam(p, max_grad_norm=-1.0), None, "max_grad_norm must be larger than 0"),
    ],
)
def test_what_is_no_number_is_refused(make: Any, change: Any, says: str) -> None:
    made = make(weights())
    made.param_groups[0].update(change or {})
    with pytest.raises(Error, match=says):
        converted(made)


def test_types_that_were_set_later_are_looked_at() -> None:
    made = optim.Adam(weights())
    made.first_order_momentum_accum_type = torch.bfloat16
    with pytest.raises(ValueError, match=r"first_order_momentum_accum_type.*bfloat16"):
        converted(made)


def test_centered_is_for_all_groups() -> None:
    first, second = weights()
    with pytest.raises(AssertionError, match="centered"):
        converted(torch.optim.RMSprop([{"params": [first]}, {"params": [second], "centered": True}]))


def test_attributes_that_come_later_are_told_of_once(caplog: Any) -> None:
    options = poptorch.Options()
    tracker = OptimizerAttrTracker(options)
    made = optim.SGD(weights(), lr=0.1)
    made.known = 1  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING, "poptorch"):
        converted(made, options, tracker)
        assert caplog.text == ""
        made.initial_lr = 0.2  # type: ignore[attr-defined]
        made.param_groups[0]["loss_scaling"] = 4.0
        made.defaults["other"] = 1.0
        converted(made, options, tracker)
        converted(made, options, tracker)
    told = [record.message for record in caplog.records]
    assert len(told) == 3
    assert any("initial_lr (attribute of the optimizer) came after SGD2" in line for line in told)
    assert any("loss_scaling (attribute of group 0) came" in line for line in told)


def test_relaxed_checks_say_nothing(caplog: Any) -> None:
    options = poptorch.Options()
    options.relaxOptimizerAttributesChecks()
    tracker = OptimizerAttrTracker(options)
    made = optim.SGD(weights(), lr=0.1)
    with caplog.at_level(logging.WARNING, "poptorch"):
        converted(made, options, tracker)
        made.param_groups[0]["initial_lr"] = 4.0
        converted(made, options, tracker)
    assert caplog.text == ""


def test_half_sums_of_gradients_are_averaged_as_they_grow() -> None:
    options = poptorch.Options()
    options.Training.setMeanAccumulationAndReplicationReductionStrategy(MeanReductionStrategy.Post)
    options._freeze()
    half = optim.Adam(weights(), accum_type=torch.float16)
    with pytest.raises(ValueError, match="already compiled"):
        converted(half, options, compiled=True)
    converted(half, options)
    assert options.Training.meanAccumulationAndReplicationReductionStrategy == MeanReductionStrategy.Running
    converted(half, options, compiled=True)
    other = poptorch.Options()
    other.Training.setMeanAccumulationAndReplicationReductionStrategy(MeanReductionStrategy.Post)
    converted(
        optim.SGD(weights(), lr=0.1, accum_type=torch.float16, use_combined_accum=True), other, compiled=True
    )
    assert other.Training.meanAccumulationAndReplicationReductionStrategy == MeanReductionStrategy.Post


def test_automatic_loss_scaling_makes_it_variable() -> None:
    options = poptorch.Options()
    options._Popart.options["automaticLossScalingSettings.enabled"] = True
    for package in (optim, torch.optim):
        made = package.SGD(weights(), lr=0.1)  # type: ignore[attr-defined]
        assert converted(made)["defaults"]["lossScaling"] == (1.0, True)
        assert converted(made, options)["defaults"]["lossScaling"] == (1.0, False)


@pytest.mark.skipif(
    "decoupled_weight_decay" not in inspect.signature(torch.optim.Adam).parameters, reason="newer torch"
)
def test_adam_that_is_adamw_is_refused() -> None:
    with pytest.raises(ValueError, match="Use AdamW"):
        converted(torch.optim.Adam(weights(), decoupled_weight_decay=True))
