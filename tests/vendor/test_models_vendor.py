"""Every reference model's training and evaluation step before the real Cerebras front end, by its own run.py.

What it says is written down in tests/models/results.json, from which docs/models.md is made; PORTWRIGHT_UPDATE_MODELS=1 writes it anew.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from portwright.discover import find_models
from portwright.job.model_list import make_model_folder

MODELS = Path(__file__).parents[1] / "models"
sys.path.insert(0, str(MODELS))

from results import note  # noqa: E402
from small import overrides_of  # noqa: E402

pytestmark = [
    pytest.mark.vendor,
    pytest.mark.skipif(
        importlib.util.find_spec("cerebras") is None, reason="the Cerebras SDK is not in this environment"
    ),
    pytest.mark.filterwarnings("default"),
]
NAMES = sorted(find_models())
# What to set where the config that runs by itself is refused.
CURES: dict[str, tuple[str, ...]] = {}


def ask(folders: dict[str, Path], place: Path) -> dict[str, Any]:
    """One process imports the SDK, and a forked child lowers both steps of each folder."""
    lib = Path(str(importlib.util.find_spec("cerebras.pytorch").origin)).parent / "lib"  # type: ignore[union-attr]
    here = Path(__file__).parent
    env = {
        **os.environ,
        "PATH": f"{lib}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(here), str(here.parent)]),
        "OMP_NUM_THREADS": "1",
    }
    words = [
        "CSX",
        "--mode",
        "train_and_eval",
        "--params",
        "configs/params.yaml",
        "--validate_only",
        "--json",
    ]
    out = place / "answers.json"
    command = [sys.executable, str(here / "csx_folders.py"), str(out), json.dumps(words)]
    subprocess.run([*command, *map(str, folders.values())], env=env, check=True, timeout=900)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def make_folders(place: Path, options: dict[str, tuple[str, ...]]) -> dict[str, Path]:
    """Copies whose params are changed in the file: one command line serves all."""
    made = {}
    for name, overrides in options.items():
        folder = made[name] = make_model_folder(place / name, "pytorch", name)
        params = folder / "configs" / "params.yaml"
        values = yaml.safe_load(params.read_text())
        for override in overrides:
            section, _, rest = override.partition(".")
            key, _, value = rest.partition("=")
            values.setdefault(section, {})[key] = yaml.safe_load(value)
        params.write_text(yaml.safe_dump(values))
    return made


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of each model `accepted`, or `refused: why`, with what to set where that is known."""
    place = tmp_path_factory.mktemp("models")
    folders = make_folders(place / "as_they_are", {name: overrides_of(name) for name in NAMES})
    answers = ask(folders, place)
    refused = {name: reason_of(answers[name]) for name in NAMES if answers[name]["status"] != 0}
    cured = {name: (*overrides_of(name), *CURES[name]) for name in refused if name in CURES}
    if cured:
        again = ask(make_folders(place / "cured", cured), place)
        for name in cured:
            assert again[name]["status"] == 0, reason_of(again[name])
            refused[name] += f"; accepted with {', '.join(CURES[name])}"
    for name in set(NAMES) - set(refused):
        validated = answers[name]["document"]["validated"]
        assert set(validated["batches"]) == {"train_input", "eval_input"}
        assert sum(validated["cirh_ops"].values()) > 20, f"{name}: {validated}"
    return {name: f"refused: {refused[name]}" if name in refused else "accepted" for name in NAMES}


def reason_of(answer: dict[str, Any]) -> str:
    lines = [line for line in answer["stderr"].splitlines() if line.startswith("error:")] or [
        answer["stderr"][-300:]
    ]
    op = re.search(r"aten::\w+", lines[-1])
    return op.group(0) if op else lines[-1].removeprefix("error:").strip()[:200]


@pytest.mark.parametrize("name", NAMES)
def test_the_front_end_says_what_docs_models_says(name: str, verdicts: dict[str, str]) -> None:
    note(name, "front end", verdicts[name])
