"""docs/models.md, the sizes that `portwright models` tells, and the golden losses: whole, and what the tests wrote down."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest
from results import CURE, HERE, read_results
from zoo import NAMES, count_parameters

from portwright.discover import models_folder
from portwright.job.model_list import SIZES_FILE

ROOT = HERE.parents[1]
CHECKS = {"trains", "reference", "converts", "streaming", "pipelined", "compile", "bf16", "front end"} | {
    f"plan {target}" for target in ("csx", "ipu", "rdu", "gpu", "cpu")
}


def load_tool() -> Any:
    spec = importlib.util.spec_from_file_location("make_models_table", ROOT / "tools/make_models_table.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_the_page_is_made_of_the_results() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    assert page == load_tool().make_page(read_results()), f"docs/models.md is stale. {CURE}"


def test_every_model_has_every_check_and_no_other_has_any() -> None:
    results = read_results()
    assert sorted(results) == NAMES
    for name, found in results.items():
        assert set(found) == CHECKS, name


def test_every_model_has_golden_losses() -> None:
    assert sorted(json.loads((HERE / "golden.json").read_text())) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_those_of_the_configs(name: str) -> None:
    known = json.loads((models_folder() / SIZES_FILE).read_text())
    assert known.get(name) == count_parameters(name), "run tools/make_model_sizes.py"


def test_a_cell_tells_what_is_long_below_the_table() -> None:
    cell, notes = load_tool()._cell, []
    assert cell("m", "bf16", "trains", notes) == "yes"
    assert cell("m", "plan rdu", "refused: gelu, erf", notes) == "no [1]"
    assert cell("n", "plan rdu", "refused: gelu, erf", notes) == "no [1]"
    assert cell("n", "reference", "the paper (tests/x.py::test_y)", notes) == "the paper [2]"
    assert cell("n", "plan csx", None, notes) == "not checked"
    assert notes == ["1. gelu, erf", "2. tests/x.py::test_y"]
