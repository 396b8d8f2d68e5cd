"""The process that watches over a job without a scheduler: real ones, with small scripts in place of job.sh."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from portwright.errors import UserError
from portwright.launch import local, process_tree
from portwright.launch.process_tree import Process, descendants, living, marked, started_at
from portwright.launch.slurm import SlurmState

STATE = """say_state() { printf '{"state": "%s", "step": "train", "status": %d, "restarts": 0}\\n' "$1" "$2" >"$F/state.json"; }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / 'it\'s a "job" $HOME %j'
    folder.mkdir()
    yield folder
    for pid in marked(local.FOLDER_VARIABLE, str(folder)):
        os.kill(pid, signal.SIGKILL)


def write_script(folder: Path, body: str) -> None:
    (folder / "job.sh").write_text(f"F=${{0%/*}}\n{STATE}{body}\n")


def wait_until(is_so: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 40
    while not is_so():
        assert time.monotonic() < deadline, "this never came"
        time.sleep(0.02)


def wait_for_end(folder: Path) -> SlurmState:
    wait_until(lambda: local.job_state(folder).is_ended)
    return local.job_state(folder)


def log_of(folder: Path) -> str:
    return (folder / "log.txt").read_text()


def processes_of(folder: Path) -> list[int]:
    return living(marked(local.FOLDER_VARIABLE, str(folder)))


def test_a_script_that_ends_well(folder: Path) -> None:
    write_script(folder, "echo hello; echo to stderr >&2; say_state done 0")
    local.start(folder)
    state = wait_for_end(folder)
    assert (state.state, state.exit) == ("done", 0)
    assert log_of(folder) == "hello\nto stderr\n"


def test_a_script_that_fails(folder: Path) -> None:
    write_script(folder, "say_state failed 3; exit 3")
    local.start(folder)
    state = wait_for_end(folder)
    assert (state.state, state.exit) == ("failed", 3)


@pytest.mark.parametrize(("status", "expected"), [(0, "done"), (4, "failed")])
def test_a_script_that_never_said_how_it_ended(folder: Path, status: int, expected: str) -> None:
    write_script(folder, f"say_state running 0; exit {status}")
    local.start(folder)
    state = wait_for_end(folder)
    assert (state.state, state.exit) == (expected, status)


def test_a_script_that_wants_to_be_requeued_runs_again(folder: Path) -> None:
    write_script(
        folder,
        f'echo "attempt ${local.RESTARTS_VARIABLE}"\n'
        f'if [ "${local.RESTARTS_VARIABLE}" -lt 3 ]; then say_state requeued 85; exit 85; fi\nsay_state done 0',
    )
    local.start(folder)
    assert wait_for_end(folder).state == "done"
    assert log_of(folder) == "".join(f"attempt {n}\n" for n in range(4))


def test_a_script_that_is_killed_runs_again_but_not_for_ever(folder: Path) -> None:
    write_script(folder, "say_state running 0; echo begun; kill -KILL $$")
    local.start(folder, max_retries=2)
    state = wait_for_end(folder)
    assert (state.state, state.exit) == ("failed", 137)
    assert log_of(folder).count("begun") == 3


def test_cancel_ends_the_whole_tree_and_nothing_begins_again(folder: Path) -> None:
    write_script(
        folder,
        'say_state running 0\ntrap "say_state requeued 85; exit 85" TERM\n'
        "setsid bash -c 'trap \"\" HUP; sleep 600' & sleep 600 & echo up; wait",
    )
    local.start(folder)
    wait_until(lambda: "up" in log_of(folder))
    assert len(processes_of(folder)) >= 4
    assert local.cancel(folder) is True
    state = wait_for_end(folder)
    assert state.state == "cancelled"
    assert processes_of(folder) == []
    assert log_of(folder).count("up") == 1
    assert local.cancel(folder) is False


def test_tasks_that_do_not_heed_a_cancel_are_killed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_script(folder, "say_state running 0; trap '' TERM; echo up; while :; do sleep 0.1; done")
    monkeypatch.setenv("PORTWRIGHT_TEST", "1")
    words = "import sys; from portwright.launch import local, process_tree; process_tree.KILL_WAIT_SECONDS = 0.3; sys.exit(local.main(sys.argv[1:]))"
    env = {**os.environ, local.FOLDER_VARIABLE: str(folder)}
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", words, str(folder)], stdout=log, env=env)
    wait_until(lambda: (folder / "log.txt").is_file() and "up" in log_of(folder))
    local.cancel(folder)
    assert process.wait(30) == 137
    assert wait_for_end(folder).state == "cancelled"


def test_the_time_limit_asks_to_save_and_then_ends(folder: Path) -> None:
    write_script(
        folder,
        f'trap "echo asked; [ ${local.RESTARTS_VARIABLE} = 1 ] && {{ say_state done 0; exit 0; }}; say_state requeued 85; exit 85" USR1\n'
        "say_state running 0; while :; do sleep 0.05; done",
    )
    local.start(folder, minutes=1, grace_seconds=59)  # a second to work in
    assert wait_for_end(folder).state == "done"
    assert log_of(folder).count("asked") == 2


def test_it_survives_the_end_of_its_terminal_and_of_its_starter(folder: Path) -> None:
    write_script(folder, 'say_state running 0; while [ ! -e "$F/go" ]; do sleep 0.05; done; say_state done 0')
    code = "import sys; from pathlib import Path; from portwright.launch import local; print(local.start(Path(sys.argv[1])))"
    starter = subprocess.run(
        ["setsid", sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    pid = int(starter.stdout)
    os.kill(pid, signal.SIGHUP)
    assert local.job_state(folder).state == "running"
    assert os.getsid(pid) == pid  # of no terminal
    (folder / "go").touch()
    assert wait_for_end(folder).state == "done"


def test_a_watcher_that_is_killed_takes_the_script_along_and_is_told(folder: Path) -> None:
    write_script(folder, "say_state running 0; echo up; sleep 600 & wait")
    pid = int(local.start(folder))
    wait_until(lambda: "up" in log_of(folder))
    tree = descendants(pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: tree[0] not in living(tree))  # job.sh
    state = local.job_state(folder)
    assert state.state == "running"  # the sleep, which nobody waits for
    assert "watched" in state.reason
    for number in processes_of(folder):
        os.kill(number, signal.SIGKILL)
    state = wait_for_end(folder)
    assert state.state == "failed"
    assert "restarted" in state.reason
    assert "disk was full" in state.reason


SAVES = "trap 'sleep 0.3; echo saved; exit 85' TERM; echo up; while :; do sleep 0.05; done"
HEEDS_NOTHING = "trap '' TERM; echo up; while :; do sleep 0.05; done"


@pytest.mark.parametrize(("task", "saves"), [(SAVES, True), (HEEDS_NOTHING, False)])
def test_tasks_that_nobody_watches_over_can_save_before_they_are_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, task: str, saves: bool
) -> None:
    (folder / "task.sh").write_text(task)
    write_script(folder, 'say_state running 0; bash "$F/task.sh" & wait')
    pid = int(local.start(folder))
    wait_until(lambda: "up" in log_of(folder))
    script = descendants(pid)[0]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not living([script]))
    if not saves:
        monkeypatch.setattr(process_tree, "KILL_WAIT_SECONDS", 0.2)
    assert local.cancel(folder) is True
    assert processes_of(folder) == []  # it was waited for
    assert ("saved" in log_of(folder)) is saves
    state = local.job_state(folder)
    assert (state.state, state.exit) == ("cancelled", 143)
    assert local.cancel(folder) is False


@pytest.mark.parametrize(
    "progress",
    [
        'mkdir -p "$F/run/checkpoint_$n"; echo {} >"$F/run/checkpoint_$n/manifest.json"',
        'mkdir -p "$F/run"; touch "$F/run/model.ckpt-$n.index"',
        'mkdir -p "$F/steps"; touch "$F/steps/step-$n.done"',
    ],
)
def test_kills_count_only_as_long_as_nothing_is_reached(folder: Path, progress: str) -> None:
    (folder / "manifest.json").write_text(json.dumps({"model_dir": str(folder / "run")}))
    write_script(
        folder,
        f"n=${local.RESTARTS_VARIABLE}; say_state running 0; echo begun\n"
        f'if [ "$n" -lt 4 ]; then {progress}; fi; kill -KILL $$',
    )
    local.start(folder, max_retries=1)
    assert wait_for_end(folder).state == "failed"
    assert log_of(folder).count("begun") == 5  # four that reached something, and one more


def test_a_disk_that_is_full_does_not_end_the_watching(folder: Path) -> None:
    write_script(folder, 'mkdir "$F/state.json"; exit 4')  # so that nothing can be noted there
    words = [sys.executable, "-m", "portwright.launch.local", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 4, done.stderr
    assert "could not be noted" in done.stdout
    (folder / "state.json").rmdir()
    with Path("/dev/full").open("wb") as log:
        assert subprocess.run(words, stdout=log, stderr=log, timeout=60).returncode == 4


def test_a_machine_that_has_got_another_name_is_still_this_one(folder: Path) -> None:
    write_script(folder, "say_state running 0; echo up; sleep 600 & wait")
    local.start(folder)
    wait_until(lambda: "up" in log_of(folder))
    record = json.loads((folder / "supervisor.json").read_text())
    (folder / "supervisor.json").write_text(json.dumps({**record, "host": "its-name-before"}))
    assert local.job_state(folder).state == "running"
    assert local.cancel(folder) is True
    assert wait_for_end(folder).state == "cancelled"
    (folder / "state.json").write_text('{"state": "running"}')
    assert local.job_state(folder).state == "failed"
    # A container on the same machine has numbers of its own, and cannot be asked.
    there = {**record, "host": "its-name-before", "machine": f"{record['machine']}0"}
    (folder / "supervisor.json").write_text(json.dumps(there))
    assert local.job_state(folder).state == "unknown"
    with pytest.raises(local.ElsewhereError, match="--force"):
        local.cancel(folder)


def test_another_process_of_the_same_number_is_not_taken_for_it(folder: Path) -> None:
    other = subprocess.Popen(["sleep", "600"])
    host = os.uname().nodename
    record = {"pid": other.pid, "started": "1@another start", "host": host}
    (folder / "supervisor.json").write_text(json.dumps(record))
    (folder / "state.json").write_text('{"state": "running"}')
    assert local.job_state(folder).state == "failed"
    assert local.cancel(folder) is False
    assert other.poll() is None
    (folder / "supervisor.json").write_text(json.dumps({**record, "started": started_at(other.pid)}))
    assert local.job_state(folder).state == "running"
    other.kill()
    other.wait()


def test_a_job_of_another_host_is_not_judged_here(folder: Path) -> None:
    (folder / "supervisor.json").write_text(
        json.dumps({"pid": os.getpid(), "started": "x", "host": "elsewhere"})
    )
    (folder / "state.json").write_text('{"state": "running"}')
    assert local.job_state(folder).state == "unknown"
    assert "elsewhere" in local.job_state(folder).reason
    with pytest.raises(UserError, match="elsewhere"):
        local.cancel(folder)
    (folder / "state.json").write_text('{"state": "done", "status": 0}')
    assert local.job_state(folder).state == "done"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"state": 3, "status": "x", "restarts": "y"}', "\x00"]
)
def test_a_damaged_state_is_no_crash(folder: Path, text: str) -> None:
    (folder / "state.json").write_text(text)
    assert local.job_state(folder).state == "unknown"


def test_a_folder_without_a_script_is_told(folder: Path) -> None:
    local.start(folder)
    state = wait_for_end(folder)
    assert (state.state, state.exit) == ("failed", 127)
    assert "job.sh" in log_of(folder)


def test_this_process_is_known() -> None:
    assert Process.here().is_alive()
