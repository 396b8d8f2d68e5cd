"""The command line of run.py, old and new."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pytest

from portwright.errors import UserError
from portwright.job.arguments import parse_arguments

REST = ["--mode", "train", "--params", "p.yaml"]


def test_target_mode_params() -> None:
    arguments = parse_arguments(["cpu", *REST, "--max_steps", "5", "-D", "a.b=1", "-o", "out"])
    assert arguments.target.name == "CPU"
    assert arguments.params == Path("p.yaml")
    assert arguments.overrides == ("a.b=1", "runconfig.max_steps=5")
    assert arguments.model_dir == Path("out")


def test_short_flags_of_release_1_6() -> None:
    arguments = parse_arguments(["-cpu", "-m", "eval", "-p", "p.yaml", "-c", "dir"])
    assert arguments.target.name == "CPU"
    assert arguments.mode == "eval"
    assert arguments.compile_dir == Path("dir")


def test_cs_ip_means_csx() -> None:
    assert parse_arguments([*REST, "-cs", "10.0.0.1"]).target.name == "CSX"


def test_cluster_flags_are_accepted_and_noted() -> None:
    arguments = parse_arguments(
        ["CPU", *REST, "--num_csx", "2", "--mount_dirs", "/a", "/b", "--job_labels", "x=y"]
    )
    assert sum("no effect on CPU" in note for note in arguments.notes) == 3
    assert arguments.mount_dirs == ["/a", "/b"]


def test_release_1_8_execution_word() -> None:
    assert "weight_streaming" in parse_arguments(["CSX", "weight_streaming", *REST]).notes[0]


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["TPU", *REST], "CPU"),
        (["CPU", "GPU", *REST], "two targets"),
        ([*REST, "CPU"], "Put it first"),
        (["CPU", *REST, "--max_stepz", "3"], "--max_steps"),
        (["CPU", *REST, "stray"], "stray"),
        (["CPU", "--mode", "fit", "--params", "p"], "train_and_eval"),
        (["CPU", "--params", "p"], "--mode"),
        (["CPU", "--mode", "train"], "--params"),
        (["CPU", *REST, "--max_steps", "many"], "many"),
        (["CPU", *REST, "--validate_only", "--compile_only"], "not allowed"),
        ([], "required"),
    ],
)
def test_mistakes_say_what_is_valid(argv: list[str], text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_arguments(argv)
    assert text in str(caught.value)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--extra", type=int, default=1)
    return parser


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--extra", type=int, default=1)


@pytest.mark.parametrize(
    "function",
    [
        make_parser,
        lambda: [make_parser()],
        lambda: {"ALL": [make_parser()]},
        lambda: {"CPU": make_parser()},
        add_to,
    ],
)
def test_the_users_own_flags(function: Any) -> None:
    assert parse_arguments(["CPU", *REST, "--extra", "7"], function).extra == {"extra": 7}
    assert parse_arguments(["CPU", *REST], function).extra == {"extra": 1}


def test_flags_for_another_target_are_not_taken() -> None:
    with pytest.raises(UserError, match="--extra"):
        parse_arguments(["CPU", *REST, "--extra", "7"], lambda: {"GPU": make_parser()})


def test_params_that_are_beside_run_py_and_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python ported/run.py CPU --mode train --params configs/params.yaml`, from the folder above."""
    here, there = tmp_path / "here", tmp_path / "ported"
    for folder in (here, there / "configs"):
        folder.mkdir(parents=True)
    (there / "configs" / "params.yaml").touch()
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(there / "run.py"), raising=False)
    words = ["CPU", "--mode", "train", "--params", "configs/params.yaml"]
    found = parse_arguments(words)
    assert found.params == there / "configs" / "params.yaml"
    assert any("beside run.py" in note for note in found.notes)
    (here / "configs").mkdir()
    (here / "configs" / "params.yaml").touch()
    assert parse_arguments(words).params == Path("configs/params.yaml")
    assert parse_arguments([*words[:-1], "none.yaml"]).params == Path("none.yaml")
