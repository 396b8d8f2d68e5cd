"""Who imports whom: nothing points upward, and nothing goes round in a circle."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "measure_house.py"


@pytest.fixture(scope="module")
def measure_house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure_house", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_no_import_points_upward(measure_house: ModuleType) -> None:
    assert measure_house.measure(measure_house.ROOT / "portwright").upward == []


def test_no_modules_import_each_other(measure_house: ModuleType) -> None:
    assert measure_house.measure(measure_house.ROOT / "portwright").cycles == []


def test_an_upward_import_and_a_circle_are_seen(measure_house: ModuleType, tmp_path: Path) -> None:
    for name, text in {
        "__init__": "",
        "job/__init__": "",
        "job/words": "def read():\n    from portwright.runtime.run import run\n    return run\n",
        "runtime/__init__": "",
        "runtime/run": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import portwright.cli\nimport portwright.job.words\nrun = 1\n",
        "cli/__init__": "from portwright.job import words\n",
    }.items():
        path = tmp_path / "portwright" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    house = measure_house.measure(tmp_path / "portwright")
    assert house.upward == [("portwright.job.words", "portwright.runtime.run")]
    assert house.cycles == [["portwright.job.words", "portwright.runtime.run"]]


def test_no_target_is_named_where_needs_speak(measure_house: ModuleType) -> None:
    """Rules, proofs, layers and runs ask a target what it answers; portwright/needs.py says what can be asked."""
    places = measure_house.measure(measure_house.ROOT / "portwright").target_names_outside
    blind = ("port.rules.", "verify.", "layers.", "runtime.", "job.", "graph.", "planning.torch_plan")
    assert [place for place in places if place.removeprefix("portwright.").startswith(blind)] == []
