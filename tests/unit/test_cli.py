"""The command `portwright`: output, JSON, exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from make_docs import pages

from portwright.discover import find_models, find_targets, get_target
from portwright.errors import UserError


def portwright(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "portwright.cli", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_targets_are_named_after_their_files_and_none_twice() -> None:
    targets = find_targets()
    assert {"CPU", "GPU", "CSX"} <= set(targets)
    assert all(name == target.name and name.isupper() for name, target in targets.items())
    with pytest.raises(UserError, match="CPU"):
        get_target("CUP")


def test_every_model_has_the_taught_layout() -> None:
    for folder in find_models().values():
        for name in ("model.py", "data.py", "utils.py", "run.py", "configs/params.yaml"):
            assert (folder / name).is_file(), f"{folder.name} lacks {name}"


def test_json_is_one_document_on_stdout() -> None:
    models = portwright("models", "--json")
    assert "fc_mnist" in [model["name"] for model in json.loads(models.stdout)["models"]]
    targets = json.loads(portwright("targets", "--json").stdout)["targets"]
    assert next(t for t in targets if t["name"] == "CPU")["available"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("nosuch",), "nosuch"),
        (("new",), "name"),
        (("new", "x", "--framework", "jax"), "pytorch"),
        (("new", "x", "--from", "fc_minst"), "fc_mnist"),
        (("run", "nosuch"), "fc_mnist"),
        (("schema", "nowhere"), "utils.py"),
        (("checkpoints", "nowhere"), "nowhere"),
        (("models", "--nope"), "--nope"),
    ],
)
def test_mistakes_are_one_line_and_status_2(tmp_path: Path, arguments: tuple[str, ...], text: str) -> None:
    done = portwright(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert text in done.stderr
    assert not list(tmp_path.iterdir())


def test_new_does_not_overwrite(tmp_path: Path) -> None:
    assert portwright("new", "m", cwd=tmp_path).returncode == 0
    again = portwright("new", "m", cwd=tmp_path)
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_help_of_run_is_ours_and_behind_a_path_the_scripts(tmp_path: Path) -> None:
    assert "--compat" in portwright("run", "--help", cwd=tmp_path).stdout
    assert "--mode" in portwright("run", "fc_mnist", "CPU", "--help", cwd=tmp_path).stdout


def test_schema_of_a_folder(tmp_path: Path) -> None:
    assert portwright("new", "m", cwd=tmp_path).returncode == 0
    schema = json.loads(portwright("schema", "m", cwd=tmp_path).stdout)
    assert "hidden_sizes" in json.dumps(schema)
    written = portwright("schema", "m", "--out", "schema.json", cwd=tmp_path)
    assert written.returncode == 0
    assert json.loads((tmp_path / "schema.json").read_text()) == schema


def test_completion_can_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise it asks which shell it was started from, and that is whatever started the tests.
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    done = portwright("--show-completion", "bash")
    assert done.returncode == 0, done.stderr
    assert "complete" in done.stdout
    assert portwright("--version").stdout.startswith("portwright ")


def test_generated_pages_are_fresh() -> None:
    docs = Path(__file__).parents[2] / "docs"
    for name, text in pages().items():
        if (
            sys.version_info[:2] == (3, 11) or name != "cli.md"
        ):  # argparse words its help anew with each Python
            assert (docs / name).read_text() == text, f"docs/{name} is stale: run make docs"


def test_a_reference_models_run_lies_in_the_folder_of_the_moment(tmp_path):
    short = ("--mode", "train", "-D", "runconfig.max_steps=1")
    finished = portwright("run", "fc_mnist", "CPU", *short, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["fc_mnist_run"]
    assert (tmp_path / "fc_mnist_run" / "checkpoint_1").is_dir()


def test_the_picture_of_a_job_is_gone_and_says_so() -> None:
    asked = portwright("jobs", "mymodel-1", "--plot", "loss.svg")
    assert asked.returncode == 2
    assert "TensorBoard" in asked.stderr
