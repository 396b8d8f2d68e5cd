from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pydantic
import pytest

from portwright.errors import UserError
from portwright.job.optimizer import OPTIMIZERS, OptimizerParams, optimizer_schema

FACTS = [
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "ASGD",
    "Lamb",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
    "Lion",
    "Muon",
]


def make(optimizer_type: str = "Adam", **values: Any) -> Any:
    return optimizer_schema(optimizer_type).model_validate({"learning_rate": 0.1, **values})


def errors_of(name: str, **values: Any) -> list[Any]:
    with pytest.raises(pydantic.ValidationError) as caught:
        optimizer_schema(name).model_validate({"learning_rate": 0.1, **values})
    return caught.value.errors(include_url=False)


def test_every_optimizer_of_the_facts_is_there_under_its_own_name() -> None:
    assert sorted(OPTIMIZERS) == sorted(FACTS)
    for name, schema in OPTIMIZERS.items():
        assert make(name).optimizer_type == name
        assert schema.model_fields["optimizer_type"].default == name


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_key_is_described_and_in_the_json_schema(name: str) -> None:
    for key, field in OPTIMIZERS[name].model_fields.items():
        assert field.description, key
    properties = json.loads(json.dumps(OPTIMIZERS[name].model_json_schema()))["properties"]
    assert set(OPTIMIZERS[name].model_fields) | set(OPTIMIZERS[name].aliases) == set(properties)


@pytest.mark.parametrize("spelling", ["adamw", "ADAMW", "AdamW"])
def test_names_are_found_in_any_case(spelling: str) -> None:
    schema = optimizer_schema(spelling)
    assert schema is OPTIMIZERS["AdamW"]
    assert schema.model_validate({"optimizer_type": spelling, "learning_rate": 1}).optimizer_type == "AdamW"


def test_without_a_name_it_is_adam() -> None:
    assert optimizer_schema(None) is OPTIMIZERS["Adam"]


@pytest.mark.parametrize(
    ("received", "nearest"),
    [
        ("adamx", "Adamax"),
        ("sdg", "SGD"),
        ("rms_prop", "RMSprop"),
        ("адам", None),
        (5, None),
        (["Adam"], None),
        ("", None),
    ],
)
def test_an_unknown_name_lists_the_valid_ones(received: Any, nearest: str | None) -> None:
    with pytest.raises(UserError) as caught:
        optimizer_schema(received)
    assert repr(received) in caught.value.message
    assert all(name in caught.value.cure for name in OPTIMIZERS)
    if nearest:
        assert caught.value.cure.startswith(f"Did you mean '{nearest}'?")


def test_the_name_of_another_optimizer_is_refused() -> None:
    (error,) = errors_of("SGD", optimizer_type="Adam")
    assert error["loc"] == ("optimizer_type",)


def test_a_key_of_another_optimizer_is_forbidden() -> None:
    (error,) = errors_of("Adam", momentum=0.9)
    assert (error["type"], error["loc"]) == ("extra_forbidden", ("momentum",))


def test_defaults_are_those_of_the_facts() -> None:
    spec = make("Adam")
    assert (spec.weight_decay_rate, spec.grad_accum_steps, spec.loss_scaling_factor) == (0.0, 1, 1.0)
    assert (spec.initial_loss_scale, spec.steps_per_increase) == (2.0**15, 2000)
    assert (spec.beta1, spec.beta2, spec.eps) == (0.9, 0.999, 1e-6)
    assert spec.max_gradient_norm is None
    assert spec.max_gradient_value is None
    assert spec.exclude_from_weight_decay is None
    assert not spec.disable_lr_steps_reset
    assert {make(name).eps for name in ("Adagrad", "Adamax", "Lamb", "NAdam", "RAdam", "RMSprop")} == {1e-6}


@pytest.mark.parametrize(
    ("optimizer_type", "written", "meant"),
    [
        ("Adam", {"betas": [0.8, 0.9]}, {"beta1": 0.8, "beta2": 0.9}),
        ("Adam", {"epsilon": 1e-5}, {"eps": 1e-5}),
        ("AdamW", {"weight_decay": 0.1}, {"weight_decay_rate": 0.1}),
        ("SGD", {"nesterov": True, "momentum": 0.9}, {"use_nesterov": True, "momentum": 0.9}),
        ("Rprop", {"etas": [0.4, 1.5]}, {"eta1": 0.4, "eta2": 1.5}),
        ("Rprop", {"step_sizes": [1e-3, 1]}, {"step_size_min": 1e-3, "step_size_max": 1.0}),
        ("Adafactor", {"eps": [1e-20, 1e-2]}, {"eps1": 1e-20, "eps2": 1e-2}),
        (
            "Muon",
            {"nesterov": False, "adjust_lr_fn": "original"},
            {"use_nesterov": False, "adjust_lr": "original"},
        ),
    ],
)
def test_both_spellings_mean_the_same(
    optimizer_type: str, written: dict[str, Any], meant: dict[str, Any]
) -> None:
    spec = make(optimizer_type, **written)
    assert spec.model_dump() == make(optimizer_type, **meant).model_dump()
    assert {key: getattr(spec, key) for key in meant} == meant


def test_torch_spells_the_learning_rate_lr() -> None:
    spec = optimizer_schema("SGD").model_validate({"lr": 0.5})
    assert spec.schedule(0) == 0.5


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_what_was_resolved_can_be_read_again(name: str) -> None:
    pairs = {"betas": [0.5, 0.6]} if "beta2" in OPTIMIZERS[name].model_fields else {}
    spec = make(name, **pairs)
    assert OPTIMIZERS[name].model_validate(spec.model_dump()).model_dump() == spec.model_dump()
    assert (
        OPTIMIZERS[name].model_validate(json.loads(spec.model_dump_json())).model_dump() == spec.model_dump()
    )


@pytest.mark.parametrize(
    ("optimizer_type", "wrong", "at"),
    [
        ("Adam", {"beta1": 1.0}, ("beta1",)),
        ("Adam", {"beta2": -0.1}, ("beta2",)),
        ("Adam", {"betas": [0.9, 1.0]}, ("betas", 1)),
        ("Adam", {"betas": [0.9]}, ("betas", 1)),
        ("Adam", {"betas": 0.9}, ("betas",)),
        ("Adam", {"betas": ["a", 0.9]}, ("betas", 0)),
        ("Adam", {"eps": -1e-8}, ("eps",)),
        ("Adam", {"amsgrad": 1}, ("amsgrad",)),
        ("Adam", {"weight_decay_rate": -0.1}, ("weight_decay_rate",)),
        ("Adam", {"weight_decay_rate": True}, ("weight_decay_rate",)),
        ("Adam", {"weight_decay_rate": "0.1"}, ("weight_decay_rate",)),
        ("Adam", {"weight_decay_rate": float("nan")}, ("weight_decay_rate",)),
        ("Adam", {"max_gradient_norm": -1}, ("max_gradient_norm",)),
        ("Adam", {"max_gradient_norm": float("inf")}, ("max_gradient_norm",)),
        ("Adam", {"grad_accum_steps": 0}, ("grad_accum_steps",)),
        ("Adam", {"grad_accum_steps": 1.5}, ("grad_accum_steps",)),
        ("Adam", {"steps_per_increase": 0}, ("steps_per_increase",)),
        ("Adam", {"min_loss_scale": 0}, ("min_loss_scale",)),
        ("Adam", {"initial_loss_scale": -1}, ("initial_loss_scale",)),
        ("Adam", {"exclude_from_weight_decay": "bias"}, ("exclude_from_weight_decay",)),
        ("Adam", {"exclude_from_weight_decay": [""]}, ("exclude_from_weight_decay", 0)),
        ("Adam", {"exclude_from_weight_decay": [3]}, ("exclude_from_weight_decay", 0)),
        ("Adam", {"learning_rate": 0}, ("learning_rate",)),
        ("Adam", {"learning_rate": -0.1}, ("learning_rate",)),
        ("Adam", {"learning_rate": "fast"}, ("learning_rate",)),
        ("Adam", {"learning_rate": True}, ("learning_rate",)),
        ("Adam", {"learning_rate": []}, ("learning_rate",)),
        ("Adam", {"learning_rate": {"scheduler": "Nope{}"}}, ("learning_rate",)),
        ("SGD", {"momentum": -0.9}, ("momentum",)),
        ("Rprop", {"eta1": 1.1}, ("eta1",)),
        ("Rprop", {"eta2": 0.9}, ("eta2",)),
        ("Adafactor", {"decay_rate": 0.8}, ("decay_rate",)),
        ("Muon", {"adjust_lr": "bigger"}, ("adjust_lr",)),
        ("Muon", {"ns_steps": 0}, ("ns_steps",)),
    ],
)
def test_a_value_out_of_range_is_refused_at_its_key(
    optimizer_type: str, wrong: dict[str, Any], at: tuple[Any, ...]
) -> None:
    assert at in [error["loc"] for error in errors_of(optimizer_type, **wrong)]


@pytest.mark.parametrize("wrong", ["dynamik", "Dynamic", 0, -2.0, True, None, float("inf")])
def test_loss_scaling_is_a_positive_number_or_dynamic(wrong: Any) -> None:
    assert {error["loc"][0] for error in errors_of("Adam", loss_scaling_factor=wrong)} == {
        "loss_scaling_factor"
    }


@pytest.mark.parametrize(
    ("optimizer_type", "together", "names"),
    [
        (
            "Adam",
            {"max_gradient_norm": 1, "max_gradient_value": 1},
            ("max_gradient_norm", "max_gradient_value"),
        ),
        ("Adam", {"min_loss_scale": 8, "max_loss_scale": 4}, ("max_loss_scale", "min_loss_scale")),
        ("Adam", {"betas": [0.9, 0.9], "beta1": 0.8}, ("betas", "beta1")),
        ("SGD", {"use_nesterov": True}, ("use_nesterov", "momentum")),
        ("SGD", {"use_nesterov": True, "momentum": 0.9, "dampening": 0.1}, ("use_nesterov", "momentum")),
        ("Rprop", {"weight_decay_rate": 0.1}, ("weight_decay_rate", "optimizer_type")),
        ("Rprop", {"step_sizes": [2, 1]}, ("step_size_max", "step_size_min")),
        ("Adafactor", {"relative_step": True}, ("learning_rate", "relative_step")),
        ("Adafactor", {"warmup_init": True}, ("warmup_init", "relative_step")),
        ("Adafactor", {"learning_rate": None}, ("learning_rate",)),
    ],
)
def test_keys_that_exclude_each_other(
    optimizer_type: str, together: dict[str, Any], names: tuple[str, ...]
) -> None:
    (error,) = errors_of(optimizer_type, **together)
    assert (error["type"], error["ctx"]["keys"]) == ("contradiction", names)


def test_zero_turns_clipping_off_as_in_the_model_zoo() -> None:
    spec = make("SGD", max_gradient_norm=0.0, max_gradient_value=2)
    assert (spec.max_gradient_norm, spec.max_gradient_value) == (None, 2.0)


def test_a_learning_rate_is_required_except_where_adafactor_finds_its_own() -> None:
    with pytest.raises(pydantic.ValidationError, match="learning_rate"):
        optimizer_schema("SGD").model_validate({})
    spec = optimizer_schema("Adafactor").model_validate({"relative_step": True})
    assert spec.schedule.is_constant


def test_schedules_reset_their_steps_unless_told_otherwise() -> None:
    line = {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 1.0, "total_iters": 10}
    rates = [line, {**line, "end_learning_rate": 10.0}]
    spec = make("SGD", learning_rate=rates)
    assert isinstance(spec, OptimizerParams)
    assert spec.schedule(10) == pytest.approx(0.0)
    assert make("SGD", learning_rate=rates, disable_lr_steps_reset=True).schedule(10) == pytest.approx(10.0)


def test_the_specification_needs_no_torch() -> None:
    code = "import sys, portwright.job.optimizer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
