"""ask_script: the arguments of a script's call of run(), and every way in which a script does not get there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import portwright
from portwright.errors import PortwrightError, UserError
from portwright.runtime import run as run_module
from portwright.runtime.asked_script import ask_script


@pytest.fixture(autouse=True)
def _same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def _write(folder: Path, text: str) -> Path:
    script = folder / "run.py"
    script.write_text(text, "utf-8")
    return script


@pytest.mark.parametrize(
    "text",
    [
        "from portwright import run\nrun(int, str, default_params_fn=dict, argv=['CPU'])",
        "import portwright\nportwright.run(model_fn=int, train_data_fn=str, default_params_fn=dict)",
        "from portwright import run\ntry:\n    run(int, str, None, dict)\nexcept Exception:\n    pass",
    ],
)
def test_arguments_come_by_name(tmp_path: Path, text: str) -> None:
    before = run_module.run
    asked = ask_script(_write(tmp_path, text))
    assert asked == {
        "model_fn": int,
        "train_data_fn": str,
        "eval_data_fn": None,
        "default_params_fn": dict,
        "extra_args_parser_fn": None,
    }
    assert run_module.run is before
    assert portwright.run is before


def test_functions_may_import_from_the_folder_later(tmp_path: Path) -> None:
    (tmp_path / "asked_beside.py").write_text("VALUE = 7", "utf-8")
    text = "from portwright import run\ndef make(params):\n    import asked_beside\n    return asked_beside.VALUE\nrun(make)"
    assert ask_script(_write(tmp_path, text))["model_fn"](None) == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "never calls portwright.run()"),
        ("import sys\nsys.exit('no data')", "ended with 'no data' before it called run()"),
        ("1 / 0", "ZeroDivisionError at "),
        ("def", "SyntaxError at "),
        ("from portwright import run\nrun(int, no_such=3)", "unexpected keyword argument 'no_such'"),
        ("from portwright import run\nrun()", "missing a required argument: 'model_fn'"),
    ],
)
def test_a_script_that_does_not_get_there_is_told(tmp_path: Path, text: str, message: str) -> None:
    before = run_module.run
    with pytest.raises(UserError) as caught:
        ask_script(_write(tmp_path, text), "Do this.")
    assert message in str(caught.value)
    assert run_module.run is before


def test_an_exception_is_explained_by_the_caller_s_words(tmp_path: Path) -> None:
    script = _write(tmp_path, "import no_such_module")
    with pytest.raises(PortwrightError, match="in my words: No module named 'no_such_module'"):
        ask_script(script, explain=lambda error: UserError(f"in my words: {error}"))


def test_data_bench_tells_of_a_script_that_ends_early(tmp_path: Path) -> None:
    _write(tmp_path, "import torch\nimport sys\nsys.exit(0)")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "params.yaml").write_text("model: {}\n", "utf-8")
    command = [sys.executable, "-m", "portwright", "data", "bench", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "ended with 0 before it called run()" in done.stderr
