"""The local stand-in for srun: real processes, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from portwright.launch.process_tree import Process, descendants, living, marked, started_at

BASH = "/bin/bash"


def start(*words: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "portwright.launch.tasks", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **more},
    )


def run(*words: str) -> tuple[int, str, str]:
    process = start(*words)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline, "this never came"
        time.sleep(0.02)


def test_each_task_knows_its_place() -> None:
    status, out, _ = run(
        "--ntasks", "3", "--", BASH, "-c", 'echo "$RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE"'
    )
    assert status == 0
    assert sorted(out.splitlines()) == [f"{n} of 3, {n} of 3" for n in range(3)]


def test_words_arrive_as_they_are() -> None:
    words = ["a b", "it's", '"', "$HOME", "--", "--ntasks", "", "ü\n"]
    status, out, _ = run(
        "--ntasks", "1", "--", sys.executable, "-c", "import sys; print(sys.argv[1:])", *words
    )
    assert (status, out.strip()) == (0, repr(words))


@pytest.mark.parametrize(
    "bad", [(), ("--ntasks", "2"), ("--ntasks", "0", "--", "true"), ("--ntasks", "x", "--", "true")]
)
def test_a_command_that_cannot_be_is_told(bad: tuple[str, ...]) -> None:
    status, _, err = run(*bad)
    assert status == 2
    assert "usage:" in err


def test_a_program_that_is_not_there() -> None:
    status, _, err = run("--ntasks", "2", "--", "/nowhere/at all")
    assert status == 127
    assert "cannot start /nowhere/at all: no such file or directory" in err


def test_one_that_fails_ends_the_others_and_gives_the_status() -> None:
    script = 'if [ "$RANK" = 1 ]; then exit 7; fi; exec sleep 600'
    status, _, err = run("--ntasks", "3", "--", BASH, "-c", script)
    assert status == 7  # not 143, which the others end with only since they are told to
    assert "task 1 ended with status 7; ending the other 2" in err


def test_one_that_is_killed_is_told_by_name() -> None:
    status, _, err = run(
        "--ntasks", "2", "--", BASH, "-c", 'if [ "$RANK" = 0 ]; then kill -KILL $$; fi; exec sleep 600'
    )
    assert status == 137
    assert "task 0 was killed by SIGKILL" in err


def test_the_largest_status_counts_when_all_end_by_themselves(tmp_path: Path) -> None:
    # Rank 0 ends well at once; 85 comes later.
    status, _, _ = run("--ntasks", "2", "--", BASH, "-c", 'sleep "0.$RANK"; exit $((RANK * 85))')
    assert status == 85


def test_signals_reach_every_task(tmp_path: Path) -> None:
    script = f"trap 'echo saved; exit 85' USR1; : > {tmp_path}/$RANK; while :; do sleep 0.05; done"
    process = start("--ntasks", "3", "--", BASH, "-c", script)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 3)
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 85
    assert out.count("saved") == 3


def test_keep_going_lives_through_a_dead_worker_and_gives_task_0s_status(tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"case $RANK in 1) kill -KILL $$;; 0) while [ ! -e {go} ]; do sleep 0.05; done; echo done;; esac"
    process = start("--ntasks", "3", "--keep-going", "--", BASH, "-c", script)
    assert process.stderr is not None
    assert "task 1 was killed by SIGKILL; the step goes on" in process.stderr.readline()
    assert process.poll() is None
    go.touch()
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "done\n")


def test_keep_going_fails_with_task_0() -> None:
    status, _, err = run("--ntasks", "2", "--keep-going", "--", BASH, "-c", "exit $(( RANK == 0 ? 3 : 0 ))")
    assert status == 3
    assert "task 0 ended with status 3" in err


def test_what_a_task_leaves_behind_is_ended() -> None:
    mark = f"test-{os.getpid()}-left"
    process = start("--ntasks", "2", "--", BASH, "-c", "setsid sleep 600 & exit 0", PORTWRIGHT_TEST_MARK=mark)
    process.communicate(timeout=60)
    assert process.returncode == 0
    wait_until(lambda: not living(marked("PORTWRIGHT_TEST_MARK", mark)))


def test_the_tasks_die_with_a_launcher_that_is_killed() -> None:
    mark = f"test-{os.getpid()}-killed"
    process = start("--ntasks", "2", "--", "sleep", "600", PORTWRIGHT_TEST_MARK=mark)
    wait_until(lambda: len(living(marked("PORTWRIGHT_TEST_MARK", mark))) == 3)
    process.kill()
    process.communicate(timeout=60)
    wait_until(lambda: not living(marked("PORTWRIGHT_TEST_MARK", mark)))


def test_a_process_is_known_by_its_beginning_too() -> None:
    child = subprocess.Popen(["sleep", "600"])
    known = Process(child.pid, started_at(child.pid) or "")
    assert known.is_alive()
    assert child.pid in descendants(os.getpid())
    assert not Process(child.pid, "1@another start").is_alive()
    assert not Process(child.pid, "").is_alive()
    child.kill()
    wait_until(lambda: not known.is_alive())  # a zombie until it is waited for, and ended all the same
    child.wait()
    assert not known.is_alive()
    assert started_at(2**22 + 1) is None


def test_of_a_stream_only_task_0_computes() -> None:
    """With the threads that it has alone: sums over another number of them would be other numbers."""
    code = ("--", BASH, "-c", 'echo "$RANK ${OMP_NUM_THREADS-unset}"')
    words = [sys.executable, "-m", "portwright.launch.tasks", "--ntasks", "3", "--keep-going", *code]
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    stream = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert sorted(stream.stdout.splitlines()) == ["0 unset", "1 1", "2 1"]
    said = subprocess.run(
        words, env={**env, "OMP_NUM_THREADS": "5"}, capture_output=True, text=True, timeout=60
    )
    assert sorted(said.stdout.splitlines()) == ["0 5", "1 5", "2 5"]


def test_tasks_share_the_processors() -> None:
    code = ("--", BASH, "-c", 'echo "$OMP_NUM_THREADS"')
    env = {"OMP_NUM_THREADS": "5"}
    assert start("--ntasks", "2", *code, **env).communicate(timeout=60)[0] == "5\n5\n"
    many = subprocess.run(
        [sys.executable, "-m", "portwright.launch.tasks", "--ntasks", "99", *code],
        env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert many.stdout == 99 * "1\n" or (os.cpu_count() or 1) > 198
