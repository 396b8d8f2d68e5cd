"""What a job's params and steps become before it is submitted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from portwright.discover import get_target
from portwright.errors import UserError
from portwright.launch.resolved import ResolvedParams, with_fixed_end
from portwright.launch.site_files import load_site
from portwright.launch.steps import choose_steps


@pytest.mark.parametrize(
    ("runconfig", "done", "expected"),
    [
        ({"num_steps": 100}, None, {"max_steps": 100}),
        ({"num_steps": 100}, 40, {"max_steps": 140}),
        ({"num_steps": 100, "max_steps": 120}, 40, {"max_steps": 120}),
        ({"max_steps": 120}, 40, {"max_steps": 120}),
        ({"num_epochs": 2}, 40, {"num_epochs": 2}),
        ({"num_steps": "many"}, None, {"num_steps": "many"}),
    ],
)
def test_a_job_ends_at_one_step_however_often_it_starts(
    tmp_path: Path, runconfig: dict[str, Any], done: int | None, expected: dict[str, Any]
) -> None:
    if done is not None:
        (tmp_path / f"checkpoint_{done}").mkdir()
        (tmp_path / f"checkpoint_{done}" / "manifest.json").write_text(json.dumps({}))
    params = with_fixed_end(ResolvedParams({"runconfig": runconfig}, tmp_path / "params.yaml"), tmp_path)
    assert params.values["runconfig"] == expected
    assert len(params.notes) == ("num_steps" in runconfig and "num_steps" not in expected)


def test_a_site_that_only_compiles_stops_there() -> None:
    site, target = load_site("bridges2"), get_target("CSX")
    params = {"eval_input": {}}
    assert choose_steps(None, "train", target, params, site) == ("validate", "compile")
    assert choose_steps("compile", "train", target, params, site) == ("compile",)
    with pytest.raises(UserError, match="has none to run on"):
        choose_steps("compile,train", "train", target, params, site)
    with pytest.raises(UserError, match="has none to run on"):
        choose_steps(None, "eval", target, params, site)
    assert choose_steps(None, "train", get_target("CPU"), params, site) == ("validate", "train", "eval")
