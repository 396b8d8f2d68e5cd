"""What the section optimizer says, trained through the SDK on its CPU backend and by our own CPU target: the same numbers."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from typing import Any

import pytest
import torch
from conformance import contract

from portwright.errors import UnsupportedError, UserError
from portwright.job.optimizer import OPTIMIZERS
from portwright.target import Session, Shard

pytestmark = [
    pytest.mark.vendor,
    pytest.mark.skipif(
        importlib.util.find_spec("cerebras") is None, reason="the Cerebras SDK is not in this environment"
    ),
    pytest.mark.filterwarnings("default"),
]
NUM_STEPS = 20


def make_job(**optimizer: Any) -> contract.JobSpec:
    """fc_mnist with this section optimizer and nothing else of its own."""
    values = {"learning_rate": 0.01, "optimizer_type": "SGD", **optimizer}
    return contract.make_job("train", *(f"optimizer.{key}={text(value)}" for key, value in values.items()))


def text(value: Any) -> str:
    return json.dumps(value)


def open_csx(job: contract.JobSpec) -> Session:
    from portwright.targets.csx.backend import CsxBackend

    return CsxBackend({"on_cpu": True}, print).open(job)


def open_torch(job: contract.JobSpec) -> Session:
    from portwright.runtime.backend import TorchBackend

    return TorchBackend("cpu", {}, print).open(job)


def losses(session: Session, first: int = 0, last: int = NUM_STEPS) -> list[float]:
    events = session.train(contract.stretch(first, last, log=1))
    return [loss for event in events for loss in event.losses]


def logged(session: Session, last: int = NUM_STEPS) -> list[dict[str, float]]:
    events = session.train(contract.stretch(0, last, log=1))
    return [dict(event.values) for event in events if event.kind == "log"]


# The SDK enlarges Adam's eps by the bias correction (test_optimizers_vendor.py shows it), so it is too small to matter here; and steps
# are small, since a division by next to nothing makes much of a rounding.
SMALL_EPS: dict[str, Any] = {"beta2": 0.9, "eps": 1e-9, "learning_rate": 1e-3}
OF_EACH: dict[str, dict[str, Any]] = {
    "Adadelta": {"learning_rate": 1.0},
    "Adafactor": {"learning_rate": 0.01},
    "Adagrad": {"lr_decay": 0.01, "initial_accumulator_value": 0.1},
    "Adam": {"weight_decay_rate": 0.01, **SMALL_EPS},
    "AdamW": {"weight_decay_rate": 0.1, "amsgrad": True, **SMALL_EPS},
    "Adamax": {},
    "ASGD": {"lambd": 0.01, "t0": 5},
    "Lamb": {"weight_decay_rate": 0.01},
    "Lion": {"learning_rate": 0.001, "weight_decay_rate": 0.1},
    "RAdam": {**SMALL_EPS},
    "RMSprop": {"momentum": 0.5, "centered": True, "eps": 1e-3, "learning_rate": 0.001},
    "Rprop": {"learning_rate": 0.001, "weight_decay_rate": 0.0},
    "SGD": {"momentum": 0.9, "use_nesterov": True, "weight_decay_rate": 0.01},
}
BY_DESIGN = {"NAdam", "Muon"}  # test_optimizers_vendor.py says how they differ
FEATURES: dict[str, dict[str, Any]] = {
    "clip by norm": {"max_gradient_norm": 0.05, "learning_rate": 0.5},
    "clip by value": {"max_gradient_value": 0.001, "learning_rate": 0.5},
    "accumulation": {"grad_accum_steps": 3, "optimizer_type": "AdamW", **SMALL_EPS},
    "fixed loss scale": {"loss_scaling_factor": 1024.0},
    "dynamic loss scale": {"loss_scaling_factor": "dynamic", "steps_per_increase": 4},
    "scale, clip, accumulate": {
        "loss_scaling_factor": "dynamic",
        "max_gradient_norm": 0.1,
        "grad_accum_steps": 2,
        "optimizer_type": "Adam",
        "beta2": 0.9,
        "eps": 1e-9,
    },
    "linear schedule": {
        "learning_rate": {
            "scheduler": "Linear",
            "initial_learning_rate": 0.1,
            "end_learning_rate": 0.0,
            "total_iters": 20,
        }
    },
    "list of schedules": {
        "learning_rate": [
            {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 0.1, "total_iters": 5},
            {
                "scheduler": "CosineDecay",
                "initial_learning_rate": 0.1,
                "end_learning_rate": 0.01,
                "total_iters": 10,
            },
        ]
    },
    "restarts": {
        "learning_rate": {"scheduler": "CosineAnnealingWarmRestarts", "initial_learning_rate": 0.1, "T_0": 5}
    },
    "uncorrected": {"optimizer_type": "AdamW", "correct_bias": False},
    "log the norm": {"log_summaries": True},
}


def as_vector(session: Session) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in contract.weights(session).values()])


def test_every_optimizer_is_compared() -> None:
    assert set(OF_EACH) | BY_DESIGN == set(OPTIMIZERS)


@pytest.mark.parametrize(
    "optimizer",
    [
        *(pytest.param({"optimizer_type": name, **more}, id=name) for name, more in OF_EACH.items()),
        *(pytest.param(more, id=name) for name, more in FEATURES.items()),
    ],
)
def test_twenty_steps_are_those_of_our_cpu(optimizer: dict[str, Any]) -> None:
    job = make_job(**optimizer)
    ours, theirs = open_torch(job), open_csx(job)
    theirs.load_state(list(ours.state()), None)
    start = as_vector(ours)
    expected, found = logged(ours), logged(theirs)
    assert [row.keys() for row in found] == [row.keys() for row in expected]
    for row, other in zip(found, expected, strict=True):
        for name in row:
            assert row[name] == pytest.approx(other[name], rel=2e-4, abs=2e-6), name
    trained, other_way = as_vector(ours), as_vector(theirs)
    assert (other_way - trained).norm() < 2e-3 * (trained - start).norm()
    assert expected[-1]["loss"] != pytest.approx(
        expected[0]["loss"], rel=1e-3
    )  # otherwise equal would mean little


@pytest.mark.parametrize(
    "name", [*OF_EACH, "accumulation", "dynamic loss scale", "list of schedules", "uncorrected"]
)
def test_resume_is_the_undisturbed_run(name: str) -> None:
    job = make_job(**({"optimizer_type": name, **OF_EACH[name]} if name in OF_EACH else FEATURES[name]))
    whole = open_csx(job)
    losses(whole, 0, 8)
    shards, counters = list(whole.state()), whole.counters()
    rest = losses(whole, 8, 16)
    resumed = open_csx(job)
    resumed.load_state(shards, counters)
    assert losses(resumed, 8, 16) == rest
    for (name_, mine), other in zip(
        contract.weights(whole).items(), contract.weights(resumed).values(), strict=True
    ):
        assert mine.equal(other), name_


def as_on_disk(session: Session) -> list[Shard]:
    """Some optimizers of torch come to tensors of no elements or numbers; what a checkpoint holds are tensors."""
    return [Shard(shard.name, shard.tensor.clone()) for shard in session.state()]


@pytest.mark.parametrize("name", [*OF_EACH, "accumulation", "dynamic loss scale", "uncorrected"])
@pytest.mark.parametrize("direction", ["to CPU", "from CPU"])
def test_a_checkpoint_moves_with_its_optimizer(name: str, direction: str) -> None:
    """Eight steps on one target and twelve on the other are twenty on either."""
    job = make_job(**({"optimizer_type": name, **OF_EACH[name]} if name in OF_EACH else FEATURES[name]))
    first, second = (open_csx, open_torch) if direction == "to CPU" else (open_torch, open_csx)
    start = open_torch(job)
    begun, whole = first(job), open_torch(job)
    for session in (begun, whole):
        session.load_state(list(start.state()), None)
    losses(whole, 0, 8)
    expected = losses(whole, 8, NUM_STEPS)
    losses(begun, 0, 8)
    moved = second(job)
    moved.load_state(as_on_disk(begun), begun.counters())
    assert losses(moved, 8, NUM_STEPS) == pytest.approx(expected, rel=2e-4, abs=2e-6)


def test_an_overflow_skips_the_update() -> None:
    job = make_job(loss_scaling_factor="dynamic", initial_loss_scale=2.0**127, learning_rate=1e-9)
    steep = dataclasses.replace(job, model_fn=make_steep(job.model_fn))
    ours, theirs = open_torch(steep), open_csx(steep)
    theirs.load_state(list(ours.state()), None)
    expected, found = logged(ours, 4), logged(theirs, 4)
    assert found[-1]["skipped_updates"] == expected[-1]["skipped_updates"] > 0
    assert found[-1]["loss_scale"] == expected[-1]["loss_scale"]


def make_steep(kind: Any) -> Any:
    class Steep(kind):  # type: ignore[misc]
        def __call__(self, data: Any) -> torch.Tensor:
            return super().__call__(data) * 1e6

    return Steep


def test_bfloat16_is_that_of_our_cpu() -> None:
    job = contract.make_job(
        "train", "optimizer.optimizer_type=SGD", "optimizer.learning_rate=0.1", "runconfig.precision=bf16"
    )
    ours, theirs = open_torch(job), open_csx(job)
    theirs.load_state(list(ours.state()), None)
    assert losses(theirs) == pytest.approx(losses(ours), rel=1e-3)


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ({"optimizer_type": "Adafactor", "beta1": 0.9}, "beta1"),
        ({"optimizer_type": "Lamb", "correct_bias": True}, "optimizer.correct_bias=True"),
        ({"optimizer_type": "Lamb", "clamp_value": 5.0}, "optimizer.clamp_value=5.0"),
        ({"optimizer_type": "Adam", "correct_bias": False}, "optimizer.correct_bias=False"),
        ({"optimizer_type": "Muon"}, "Muon"),
    ],
)
def test_what_the_sdk_lacks_is_refused_by_name(optimizer: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        open_csx(make_job(**optimizer))


def test_state_of_another_optimizer_is_refused() -> None:
    adam, sgd = open_csx(make_job(optimizer_type="Adam")), open_csx(make_job(momentum=0.9))
    losses(adam, 0, 2)
    with pytest.raises(UserError, match="exp_avg"):
        sgd.load_state(list(adam.state()), adam.counters())
