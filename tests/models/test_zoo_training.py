"""Every reference model trains: the golden losses, from a copy that `portwright new` made, and the same ones streamed and in half precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from results import HERE
from small import as_words, overrides_of
from zoo import NAMES, run

from portwright.job.model_list import make_model_folder

GOLDEN = HERE / "golden.json"
NUM_STEPS = 5
TOLERANCE = 1e-4  # other processors add up in another order
HALF_TOLERANCE = 2e-2


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text())
    return found


def train(name: str, folder: Path, *more: str, num_steps: int = NUM_STEPS) -> list[float]:
    made = make_model_folder(folder / "mine", "pytorch", name)
    return run(made, *as_words(overrides_of(name)), *more, num_steps=num_steps)


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_trains_with_the_golden_losses(
    name: str, tmp_path: Path, golden: dict[str, Any], record: Any
) -> None:
    known = golden[name]
    assert train(name, tmp_path) == pytest.approx(known["losses"], rel=TOLERANCE)
    first, last = known["first_loss"], known["last_loss"]
    assert last < 0.9 * first, "the one-minute config hardly lowers its loss"
    record(name, "trains", f"{first:.3g} to {last:.3g} in {known['num_steps']} steps")


@pytest.mark.parametrize("name", NAMES)
def test_streaming_gives_the_same_losses(
    name: str, tmp_path: Path, golden: dict[str, Any], record: Any
) -> None:
    losses = train(name, tmp_path, "-D", "runconfig.execution=streaming", num_steps=3)
    assert losses == pytest.approx(golden[name]["losses"][:3], rel=TOLERANCE)
    record(name, "streaming", "equal")


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_trains_nearly_alike(
    name: str, tmp_path: Path, golden: dict[str, Any], record: Any
) -> None:
    losses = train(name, tmp_path, "-D", "model.mixed_precision=true", num_steps=3)
    wide = golden[name]["losses"][:3]
    assert losses == pytest.approx(wide, rel=HALF_TOLERANCE)
    assert losses != pytest.approx(wide, rel=1e-8), "nothing was computed in half precision"
    record(name, "bf16", "trains")
