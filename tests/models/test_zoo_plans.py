"""What plan says of every reference model on every target."""

from __future__ import annotations

from typing import Any

import pytest
from small import overrides_of
from zoo import FOLDERS, NAMES, alone

from portwright import plan

TARGETS = ("csx", "ipu", "rdu", "gpu", "cpu")


@pytest.mark.parametrize("name", NAMES)
def test_every_target_has_a_verdict(name: str, record: Any) -> None:
    with alone(FOLDERS[name]):
        found = plan(name, ",".join(TARGETS), overrides=overrides_of(name)).as_json()["targets"]
    assert set(found) == set(TARGETS)
    for target, verdict in found.items():
        record(name, f"plan {target}", verdict_of(verdict))
    assert found["cpu"]["supported"]
    assert found["gpu"]["supported"]


def verdict_of(verdict: dict[str, Any]) -> str:
    """runs, or the ops that are refused; whether it fits depends on the machine where a target is a part of it."""
    if verdict["supported"]:
        return "runs"
    assert verdict["refused"]
    assert all(place["reason"] and place["cure"] for place in verdict["refused"])
    names = sorted({place["op"].split(".")[1] for place in verdict["refused"]})
    return f"refused: {', '.join(names)}"
