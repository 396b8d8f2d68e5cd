"""The list of reference models, and configs by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from portwright.cli.run_script import _add_params
from portwright.discover import find_all_models, find_models
from portwright.errors import UserError
from portwright.job.model_list import (
    complete_models,
    config_files,
    describe_models,
    find_config,
    render_models,
    show_count,
)

UNET = find_models()["unet"]


def test_every_model_is_told_with_what_it_is_and_its_configs() -> None:
    rows = {row["name"]: row for row in describe_models()}
    assert list(rows) == list(find_all_models())
    for row in rows.values():
        assert row["summary"], row["name"]
        assert row["configs"][0]["name"] == "params"
        assert all(Path(config["file"]).is_file() for config in row["configs"])
    assert rows["unet"]["framework"] == "pytorch"
    assert rows["tensorflow/unet"]["framework"] == "tensorflow"
    assert {"dagm", "paper"} <= {config["name"] for config in rows["unet"]["configs"]}
    assert json.dumps(list(rows.values()))


def test_listing_imports_no_framework() -> None:
    code = "import sys; from portwright.cli import main; sys.argv[1:] = ['models']\ntry: main()\nexcept SystemExit: pass\n"
    code += "print('imported', [name for name in ('torch', 'tensorflow', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "imported []", done.stdout + done.stderr
    assert any(line.startswith("unet ") for line in done.stdout.splitlines())


@pytest.mark.parametrize("width", [20, 60, 200])
def test_the_table_keeps_to_the_terminal(width: int) -> None:
    lines = render_models(describe_models(), width)
    assert all(len(line) <= max(width, 75) for line in lines)
    assert render_models([], width) == []


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, ""),
        (0, "0"),
        (999, "999"),
        (29_481, "29.5k"),
        (1_071_872, "1.07M"),
        (124_439_808, "124M"),
        (174_604_259_328, "175B"),
    ],
)
def test_counts_are_short(count: int | None, shown: str) -> None:
    assert show_count(count) == shown


@pytest.mark.parametrize("given", ["dagm", "params_dagm", "params_dagm.yaml"])
def test_a_config_is_found_by_its_name(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config(UNET, given) == UNET / "configs" / "params_dagm.yaml"
    (tmp_path / given).write_text("")
    assert find_config(UNET, given) == Path(given), "a path wins over a name"


def test_params_is_the_default_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config(UNET, "params") == UNET / "configs" / "params.yaml"


def test_unknown_configs_are_told_with_those_that_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="Did you mean 'dagm'"):
        find_config(UNET, "dagn")
    for path in ("nowhere.yaml", "some/where"):  # whoever opens it says so
        assert find_config(UNET, path) == Path(path)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["CPU"], ["CPU", "--params", str(UNET / "configs/params.yaml")]),
        (["CPU", "--params", "dagm"], ["CPU", "--params", str(UNET / "configs/params_dagm.yaml")]),
        (
            ["CPU", "-p", "dagm", "-D", "a=b"],
            ["CPU", "-p", str(UNET / "configs/params_dagm.yaml"), "-D", "a=b"],
        ),
        (["CPU", "--params=dagm"], ["CPU", f"--params={UNET / 'configs/params_dagm.yaml'}"]),
        (["CPU", "--params"], ["CPU", "--params"]),
        (["CPU", "--help"], ["CPU", "--help"]),
    ],
)
def test_the_command_line_gets_its_params(
    given: list[str], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _add_params(UNET / "run.py", given)
    assert given == expected


def test_names_are_completed() -> None:
    assert complete_models("une") == ["unet"]
    assert "tensorflow/unet" in complete_models("tensorflow/")
    assert complete_models("zzz") == []


def test_configs_of_a_folder_without_any(tmp_path: Path) -> None:
    assert config_files(tmp_path) == []
    with pytest.raises(UserError, match="None is valid"):
        find_config(tmp_path, "small")
