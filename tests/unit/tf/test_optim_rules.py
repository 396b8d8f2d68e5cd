"""Updates equal those of the PyTorch side from the same weights and batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from optim_twins import TFTwin, batches, first_weights, train_torch

from portwright.errors import UserError
from portwright.tensorflow.optimizers import read_optimizer

RULES: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer_type": "SGD"},
    "sgd decay": {"optimizer_type": "SGD", "weight_decay_rate": 0.1},
    "sgd up": {"optimizer_type": "SGD", "maximize": True, "learning_rate": 0.01},
    "momentum": {"optimizer_type": "SGD", "momentum": 0.9, "weight_decay_rate": 0.1},
    "momentum up": {"optimizer_type": "SGD", "momentum": 0.9, "maximize": True, "learning_rate": 0.001},
    "dampened": {"optimizer_type": "SGD", "momentum": 0.9, "dampening": 0.3},
    "nesterov": {"optimizer_type": "SGD", "momentum": 0.9, "use_nesterov": True},
    "adam": {"optimizer_type": "Adam"},
    "adam decay": {"optimizer_type": "Adam", "weight_decay_rate": 0.1, "eps": 1e-3},
    "adam uncorrected": {"optimizer_type": "Adam", "correct_bias": False, "learning_rate": 0.01},
    "adam amsgrad": {"optimizer_type": "Adam", "amsgrad": True, "learning_rate": 0.3},
    "adamw": {"optimizer_type": "AdamW", "weight_decay_rate": 0.1},
    "adamw uncorrected": {
        "optimizer_type": "AdamW",
        "weight_decay_rate": 0.1,
        "correct_bias": False,
        "learning_rate": 0.01,
    },
    "adamw everything": {
        "optimizer_type": "AdamW",
        "weight_decay_rate": 0.1,
        "exclude_from_weight_decay": [],
    },
    "adamw but": {
        "optimizer_type": "AdamW",
        "weight_decay_rate": 0.1,
        "exclude_from_weight_decay": ["embedding"],
    },
    "rmsprop": {"optimizer_type": "RMSprop", "learning_rate": 0.01},
    "rmsprop all": {
        "optimizer_type": "RMSprop",
        "momentum": 0.9,
        "centered": True,
        "alpha": 0.8,
        "weight_decay_rate": 0.01,
        "learning_rate": 0.01,
    },
    "adagrad": {"optimizer_type": "Adagrad"},
    "adagrad all": {
        "optimizer_type": "Adagrad",
        "lr_decay": 0.1,
        "initial_accumulator_value": 0.1,
        "weight_decay_rate": 0.1,
    },
    "adagrad sparse": {"optimizer_type": "Adagrad", "lr_decay": 0.1, "maximize": True, "learning_rate": 0.01},
    "lamb": {"optimizer_type": "Lamb", "weight_decay_rate": 0.1},
    "lamb corrected": {"optimizer_type": "Lamb", "correct_bias": True, "clamp_value": 1.0},
    "lion": {"optimizer_type": "Lion", "weight_decay_rate": 0.1, "learning_rate": 0.01},
    "adafactor": {"optimizer_type": "Adafactor", "weight_decay_rate": 0.1},
    "adafactor own rate": {
        "optimizer_type": "Adafactor",
        "relative_step": True,
        "warmup_init": True,
        "beta1": 0.9,
        "learning_rate": None,
    },
}


NORM, VALUE = {"max_gradient_norm": 0.5}, {"max_gradient_value": 0.05}
CLIPPED = [
    (name, clip)
    for name in ("sgd", "sgd decay", "momentum", "adamw", "adagrad sparse")
    for clip in (NORM, VALUE)
]


@pytest.mark.parametrize(("name", "extra"), [*((name, {}) for name in RULES), *CLIPPED])
def test_twenty_updates_equal_pytorch(name: str, extra: dict[str, Any]) -> None:
    params = {"learning_rate": 0.1, **RULES[name], **extra}
    params = {key: value for key, value in params.items() if value is not None}
    data = batches(20)
    expected, _ = train_torch(params, data)
    twin = TFTwin(params)
    twin.train(data)
    for variable, value in twin.values().items():
        np.testing.assert_allclose(value, expected[variable], rtol=2e-4, atol=2e-5, err_msg=variable)
        assert not np.allclose(value, first_weights()[variable])
    assert twin.session.run(twin.step) == 20


@pytest.mark.parametrize("name", ["sgd decay", "momentum", "dampened", "adam", "adagrad sparse", "lion"])
def test_variables_of_the_old_kind_are_updated_alike(name: str) -> None:
    params = {"learning_rate": 0.1, **RULES[name]}
    data = batches(5)
    old, new = TFTwin(params, use_resource=False), TFTwin(params, use_resource=True)
    old.train(data)
    new.train(data)
    for variable, value in old.values().items():
        np.testing.assert_allclose(value, new.values()[variable], rtol=1e-5, atol=1e-6)


def test_names_of_tensorflow_and_the_model_zoo() -> None:
    assert read_optimizer({"optimizer_type": "momentum", "learning_rate": 0.1}).momentum == 0.9  # type: ignore[attr-defined]
    spec: Any = read_optimizer({"optimizer_type": "Nesterov", "learning_rate": 0.1, "momentum": 0.5})
    assert (spec.use_nesterov, spec.momentum) == (True, 0.5)
    spec = read_optimizer({"optimizer_type": "rmsprop", "learning_rate": 0.1, "rmsprop_decay": 0.7})
    assert spec.alpha == 0.7
    spec = read_optimizer({"optimizer_type": "adamw", "learning_rate": 0.1, "use_bias_correction": False})
    assert spec.correct_bias is False
    assert read_optimizer(spec) is spec
    spec = read_optimizer({"learning_rate": 0.1, "loss_scaling_factor": "tf_dynamic"})
    assert (spec.optimizer_type, spec.loss_scaling_factor) == ("Adam", "dynamic")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"optimizer_type": "adm", "learning_rate": 0.1}, "'adm'.*Did you mean 'Adam'"),
        ({"optimizer_type": "momentun", "learning_rate": 0.1}, "Did you mean 'momentum'"),
        ({"optimizer_type": "Muon", "learning_rate": 0.1}, "'Muon'"),
        ({"optimizer_type": 3, "learning_rate": 0.1}, "is 3"),
        ({"optimizer_type": "adam", "learning_rate": {"scheduler": "Cosin"}}, "Cosin.*Did you mean 'Cosine"),
        ({"optimizer_type": "adam", "learning_rte": 0.1}, "learning_rte"),
        ({"optimizer_type": "adam"}, "learning_rate"),
        ({"optimizer_type": "adam", "learning_rate": -1.0}, "-1"),
        ({"optimizer_type": "adam", "learning_rate": 0.1, "grad_accum_steps": 0}, "grad_accum_steps"),
        (
            {
                "optimizer_type": "sgd",
                "learning_rate": 0.1,
                "max_gradient_norm": 1.0,
                "max_gradient_value": 1.0,
            },
            "clip either",
        ),
        ("adam", "'adam'"),
    ],
)
def test_bad_sections_are_refused(params: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_optimizer(params)
