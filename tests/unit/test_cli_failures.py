"""The command `portwright` where it fails: closed streams, Ctrl-C, and what is said of a wrong use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from portwright import cli
from portwright.cli import launch
from portwright.launch import registry


def portwright(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a line of bash in which P is the command."""
    words = ["bash", "-c", line.replace("P ", f"{sys.executable} -m portwright.cli ", 1)]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_a_log_from_a_closed_stdin(tmp_path: Path) -> None:
    done = portwright("P explain-log - <&-", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: standard input is closed.")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("line", ["P checkpoints nowhere --json", "P checkpoints nowhere --json 2>&1"])
def test_a_failure_that_nobody_reads(tmp_path: Path, line: str) -> None:
    """The reader has gone before a word is written."""
    done = portwright(
        f"{{ until [ -e closed ]; do sleep 0.05; done; {line}; echo $? >status; }} | {{ exec <&-; touch closed; }}",
        tmp_path,
    )
    assert "Traceback" not in done.stderr
    assert (tmp_path / "status").read_text() == "2\n"
    if "2>&1" not in line:
        assert done.stderr.startswith("error: ")


def test_a_failure_on_a_full_disk(tmp_path: Path) -> None:
    done = portwright("P checkpoints nowhere --json >/dev/full", tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "nowhere" in done.stderr


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_is_a_failure_like_others(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "_list_jobs", interrupt)
    monkeypatch.setattr(sys, "argv", ["portwright", "jobs", "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    assert json.loads(capfd.readouterr().out) == {"status": 130, "error": "interrupted.", "cure": ""}
    monkeypatch.setattr(sys, "argv", ["portwright", "jobs"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "error" not in captured.err


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["submit"], "portwright submit --help"),
        (["jobs", "--nope"], "portwright jobs --help"),
        (["data", "prepare", "--nope"], "portwright data prepare --help"),
        (["nosuch"], "portwright --help"),
    ],
)
def test_a_wrong_use_is_told_with_the_help_of_that_command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: list[str], command: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["portwright", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capfd.readouterr().err.endswith(f"See '{command}'.\n")


@pytest.mark.parametrize("command", ["logs", "explain-log"])
def test_names_of_jobs_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    registry.write_entry(registry.Entry("mnist-1", tmp_path, "local", "none"))
    env = {
        **os.environ,
        "_CLI.PY_COMPLETE": "complete_bash",
        "_PORTWRIGHT_COMPLETE": "complete_bash",
        "COMP_WORDS": f"portwright {command} mn",
        "COMP_CWORD": "2",
    }
    words = [
        sys.executable,
        "-c",
        "import sys; sys.argv = ['portwright']; from portwright.cli import main; main()",
    ]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout == "mnist-1\n", done.stderr
