"""Every optimizer, schedule and other setting of an update, traced and lowered by the real front end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vendor.csx_folders import PARAMS, make_folder
from vendor.test_csx_front_end import HEAD, run_folders
from vendor.test_schedules_vendor import CASES

from portwright.job.optimizer import OPTIMIZERS, optimizer_schema
from portwright.job.schedules import parse_schedule

pytestmark = [pytest.mark.vendor, pytest.mark.filterwarnings("default")]

MODEL = HEAD.format(init="pass", body="return F.cross_entropy(h, y)")
FEATURES: dict[str, dict[str, Any]] = {
    "clip by norm": {"max_gradient_norm": 1.0},
    "clip by value": {"max_gradient_value": 0.5},
    "fixed loss scale": {"loss_scaling_factor": 128.0},
    "dynamic loss scale": {"loss_scaling_factor": "dynamic"},
    "dynamic scale, clipped": {
        "loss_scaling_factor": "dynamic",
        "max_gradient_norm": 1.0,
        "optimizer_type": "AdamW",
    },
    "accumulation": {"grad_accum_steps": 2},
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
}
# What the SDK has no counterpart for, and what must be said of it.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Muon": ({"optimizer_type": "Muon"}, "takes matrices alone"),
    "restarts": (
        {
            "learning_rate": {
                "scheduler": "CosineAnnealingWarmRestarts",
                "initial_learning_rate": 0.1,
                "T_0": 5,
            }
        },
        "CosineAnnealingWarmRestarts",
    ),
    "function": (
        {"learning_rate": {"scheduler": "Lambda", "initial_learning_rate": 0.1, "lr_lambda": "math:cos"}},
        "Lambda",
    ),
    "cycle": (
        {
            "learning_rate": {
                "scheduler": "Polynomial",
                "initial_learning_rate": 0.1,
                "end_learning_rate": 0.0,
                "total_iters": 5,
                "cycle": True,
            }
        },
        "cycle",
    ),
}


LOWERED = [name for name in OPTIMIZERS if name not in REFUSED]


def params(**optimizer: Any) -> str:
    values = {"optimizer_type": "SGD", "learning_rate": 0.1, **optimizer}
    return PARAMS.replace("SHAPE", "[8]").replace(
        "{optimizer_type: SGD, learning_rate: 0.1}", json.dumps(values)
    )


def kinds_of_schedule() -> dict[str, dict[str, Any]]:
    """One of each kind; the others differ in numbers alone."""
    return {f"schedule {name}": {"learning_rate": {"scheduler": name, **keys}} for name, keys in CASES}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("folders")
    cases = {name: {"optimizer_type": name} for name in LOWERED} | FEATURES | kinds_of_schedule()
    cases |= {name: values for name, (values, _) in REFUSED.items()}
    folders = [make_folder(place / name, MODEL, params=params(**values)) for name, values in cases.items()]
    return run_folders(
        place, folders, "--mode", "train", "--params", "configs/params.yaml", "--validate_only", "--json"
    )


@pytest.mark.parametrize("name", [*LOWERED, *FEATURES, *kinds_of_schedule()])
def test_it_is_lowered(verdicts: dict[str, Any], name: str) -> None:
    verdict = verdicts[name]
    assert verdict["status"] == 0, verdict["stderr"]
    assert verdict["document"]["validated"]["accepted"]


def test_a_schedule_is_computed_in_the_step(verdicts: dict[str, Any]) -> None:
    """Not baked in as a number: the step has a counter that it reads and writes."""
    text = Path(verdicts["schedule Linear"]["document"]["validated"]["cirh"]).read_text()
    assert "last_epoch" in text.split("#loc1 ")[0]
    plain = Path(verdicts["SGD"]["document"]["validated"]["cirh"]).read_text()
    assert "last_epoch" not in plain.split("#loc1 ")[0]


def test_accumulation_becomes_a_larger_batch(verdicts: dict[str, Any]) -> None:
    text = Path(verdicts["accumulation"]["document"]["validated"]["cirh"]).read_text()
    assert "tensor<8x8xf32> {cs.input_name" in text
    assert "2 batches become one" in verdicts["accumulation"]["stderr"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_counterpart_is_refused_by_name(verdicts: dict[str, Any], name: str) -> None:
    assert verdicts[name]["status"] == 1, verdicts[name]["stderr"]
    assert REFUSED[name][1] in verdicts[name]["document"]["error"]


@pytest.mark.parametrize(("name", "keys"), [*CASES, ("OneCycle, and on", {})])
def test_rates_are_ours_from_any_step(
    name: str, keys: dict[str, Any], tmp_path: Path, monkeypatch: Any
) -> None:
    """On the SDK's CPU backend, from the start and from where a resumed run begins."""
    monkeypatch.chdir(tmp_path)
    import cerebras.pytorch as cstorch
    import torch
    from cerebras.pytorch.backend import current_backend_impl

    from portwright.targets.csx.optimizers import go_to_step, make_sdk_scheduler

    if current_backend_impl(raise_exception=False) is None:
        cstorch.backend("CPU")
    value: Any = {"scheduler": name, **keys}
    if not keys and name.startswith("OneCycle,"):  # beyond its end, where the SDK's own goes below zero
        value = {"scheduler": "OneCycle", "initial_learning_rate": 0.04, "max_lr": 1.0, "total_steps": 50}
    spec = optimizer_schema("SGD").model_validate({"learning_rate": value})
    optimizer = cstorch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    scheduler, ours = make_sdk_scheduler(cstorch, optimizer, spec), parse_schedule(value)
    if scheduler is None:
        assert ours.is_constant
        return
    highest = max(ours(step) for step in range(100))
    for first in (0, 37, 50):
        go_to_step(scheduler, first)
        for step in range(first, first + 30):
            assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(ours(step), abs=4e-6 * highest), (
                step
            )
            scheduler.step()
