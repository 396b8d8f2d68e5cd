"""A run's folder: made, checked, and held by one run at a time."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from portwright.errors import UserError
from portwright.job import atomic
from portwright.job.run_params import find_model_dir
from portwright.job.rundir import RunDir

HOLD = """
import os, sys, time
from portwright.job.rundir import RunDir
ready, begun = os.pipe()
with RunDir(sys.argv[1]).lock():
    if len(sys.argv) > 2:
        if os.fork() == 0:  # a data worker that outlives its run
            os.write(begun, b"!")
            time.sleep(60)
        os.read(ready, 1)
    print(os.getpid(), flush=True)
    time.sleep(60)
"""


def hold(path: Path, *more: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), *more],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    return process


def test_creates_and_names(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "a" / "b")
    assert run.path.is_dir()
    assert list(run.path.iterdir()) == []
    assert run.params_file("train") == run.path / "train" / "params_train.yaml"
    assert run.params_file("eval") == run.path / "eval" / "params_eval.yaml"


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    params: Any = None
    arguments: Any = SimpleNamespace(model_dir=Path("~/runs"))
    assert find_model_dir(arguments, params) == tmp_path / "runs"
    arguments.model_dir = Path("~nobody-of-that-name/runs")
    with pytest.raises(UserError, match="~nobody-of-that-name"):
        find_model_dir(arguments, params)


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "file" / "x")
    for path in (tmp_path / "file", tmp_path / "file" / "run", tmp_path / "dangling", Path("/proc/1/run")):
        with pytest.raises(UserError, match="Cannot use model_dir") as caught:
            RunDir(path)
        assert str(path) in caught.value.message
        assert "--model_dir" in caught.value.cure


def test_folder_that_exists_but_takes_no_files() -> None:
    # /proc/self refuses new files even to root, so this holds whoever runs the tests
    with pytest.raises(UserError, match="Cannot use model_dir"):
        RunDir("/proc/self")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere, whatever the permission bits say")
def test_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(UserError, match="permission denied"):
            RunDir(tmp_path)
        RunDir(tmp_path, read_only=True)
    finally:
        tmp_path.chmod(0o700)


def test_read_only_needs_only_to_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        RunDir(tmp_path / "missing", read_only=True)
    assert not (tmp_path / "missing").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="not a directory"):
        RunDir(tmp_path / "file", read_only=True)
    RunDir("/proc/self", read_only=True)


def test_second_run_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    with hold(tmp_path) as holder:
        with pytest.raises(UserError, match=f"process {holder.pid} on .*, since 20"), RunDir(tmp_path).lock():
            pass
        RunDir(tmp_path, read_only=True)  # an evaluation may look on
        holder.kill()
    with RunDir(tmp_path).lock():
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
    with RunDir(tmp_path).lock():
        pass


def test_second_run_in_the_same_process_is_refused(tmp_path: Path) -> None:
    with (
        RunDir(tmp_path).lock(),
        pytest.raises(UserError, match=f"process {os.getpid()} "),
        RunDir(tmp_path).lock(),
    ):
        pass


def test_workers_of_a_killed_run_do_not_keep_its_lock(tmp_path: Path) -> None:
    holder = hold(tmp_path, "with a worker")
    try:
        holder.kill()
        holder.wait()
        with RunDir(tmp_path).lock():
            pass
        os.killpg(holder.pid, 0)  # the worker does live, so the lock was not freed by its death
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        assert holder.stdout is not None
        holder.stdout.close()


def test_lock_file_with_rubbish(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_bytes(b"\xff not json")
    with RunDir(tmp_path).lock():
        pass
    with (tmp_path / ".lock").open("rb+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.truncate(0)
        with pytest.raises(UserError, match="a process that has just begun"), RunDir(tmp_path).lock():
            pass


def test_lock_file_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / ".lock").mkdir()
    with pytest.raises(UserError, match=r"\.lock: is a directory"), RunDir(tmp_path).lock():
        pass


def test_file_system_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    notes: list[str] = []
    with RunDir(tmp_path, on_note=notes.append).lock():
        pass
    assert len(notes) == 1
    assert "has no locks" in notes[0]


def test_locking_cleans_what_killed_runs_left(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    name = f".tmp-{atomic._host()}~{process.pid}~00"
    (tmp_path / name / "checkpoint").mkdir(parents=True)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / name).write_text("")
    notes: list[str] = []
    with RunDir(tmp_path, on_note=notes.append).lock():
        pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".lock", "train"]
    assert notes == []
