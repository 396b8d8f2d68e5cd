"""Processes that hear of each other's end, without torch; tests/e2e/test_dead_rank.py has them train."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from portwright.errors import UserError
from portwright.runtime.rank_watch import OtherProcessFailed, RankWatch, failing_together, watch_ranks

TIMEOUT = 60.0
PREPARED = """
import os, pickle, signal, sys, threading, time
from pathlib import Path
from portwright.errors import NonFiniteError, UserError
from portwright.runtime import rank_watch

folder, rank, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
num_rounds = 0

def gather(value):
    global num_rounds
    num_rounds += 1
    (folder / f"{num_rounds}-{rank}.part").write_bytes(pickle.dumps(value))
    (folder / f"{num_rounds}-{rank}.part").rename(folder / f"{num_rounds}-{rank}")
    paths = [folder / f"{num_rounds}-{other}" for other in range(size)]
    while not all(path.exists() for path in paths):
        time.sleep(0.005)
    return [pickle.loads(path.read_bytes()) for path in paths]

watch = rank_watch.watch_ranks(rank, gather, None, lambda line: print(line, file=sys.stderr), grace_seconds=0.2)
"""
GUARDED = """
watch.step = 7
try:
    with watch.failing_together():
        exec(sys.argv[4])
except Exception as error:
    print(f"error: {error}", file=sys.stderr)
    status = getattr(error, "status", 9)
else:
    status = 0
watch.close()
sys.exit(status)
"""
STUCK = "time.sleep(1000)"


class Ranks:
    def __init__(self, folder: Path, actions: list[str], script: str = PREPARED + GUARDED) -> None:
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", script, str(folder), str(rank), str(len(actions)), action],
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, action in enumerate(actions)
        ]
        self._folder = folder

    def wait_until_watched(self) -> None:
        """All have linked: the last exchange is done."""
        deadline = time.monotonic() + TIMEOUT
        while len(list(self._folder.glob("3-*[0-9]"))) < len(self.processes):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def finish(self) -> tuple[list[int], list[str]]:
        said = [process.communicate(timeout=TIMEOUT)[1] for process in self.processes]
        return [process.returncode for process in self.processes], said


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    started: list[Ranks] = []

    def begin(*actions: str, script: str = PREPARED + GUARDED) -> Ranks:
        started.append(Ranks(tmp_path, list(actions), script))
        return started[-1]

    yield begin
    for ranks in started:
        for process in ranks.processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(("num", "victim"), [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)])
def test_each_process_in_turn(start: Callable[..., Ranks], num: int, victim: int) -> None:
    ranks = start(*[STUCK] * num)
    ranks.wait_until_watched()
    pid = ranks.processes[victim].pid
    os.kill(pid, signal.SIGKILL)
    statuses, said = ranks.finish()
    assert statuses == [-9 if rank == victim else 2 for rank in range(num)], said
    for rank, text in enumerate(said):
        if rank != victim:
            (line,) = text.splitlines()
            prefix = f"process {rank}: error: " if rank else "error: "
            assert line.startswith(
                f"{prefix}process {victim} (host {socket.gethostname()}, pid {pid}) has died"
            )
            assert " at step 7. " in line


def test_an_exit_without_a_word_is_a_death(start: Callable[..., Ranks]) -> None:
    _, said = start(STUCK, "os._exit(7)", STUCK).finish()
    assert "has died at step 7." in said[0]
    assert said[2] == f"process 2: {said[0]}"


def test_a_copy_of_a_process_does_not_keep_it_alive(start: Callable[..., Ranks]) -> None:
    forks = "pid = os.fork()\nif pid == 0: os.close(2); time.sleep(20); os._exit(0)\n"
    kills = "(folder / 'child').write_text(str(pid)); os.kill(os.getpid(), signal.SIGKILL)"
    ranks = start(STUCK, forks + kills)
    statuses, said = ranks.finish()
    assert statuses == [2, -9]
    assert "process 1 (" in said[0]
    os.kill(int((ranks._folder / "child").read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    "busy", ["os.kill(os.getpid(), signal.SIGSTOP)", "import ctypes; ctypes.PyDLL(None).usleep(900000)"]
)
def test_a_busy_process_is_not_dead(start: Callable[..., Ranks], busy: str) -> None:
    """Stopped, or in a call that keeps every thread of it from running."""
    wait = "while not (folder / 'done').exists(): time.sleep(0.01)"
    ranks = start(wait, f"{busy}; (folder / 'done').touch()", wait)
    ranks.wait_until_watched()
    time.sleep(0.7)
    assert [process.poll() for process in ranks.processes] == [None] * 3
    ranks.processes[1].send_signal(signal.SIGCONT)
    assert ranks.finish() == ([0, 0, 0], ["", "", ""])


@pytest.mark.parametrize(
    ("action", "status", "own", "others"),
    [
        ("raise UserError('no tea — 茶.', 'Buy some.')", 2, "error: no tea — 茶. Buy some.", "no tea — 茶. Buy some."),
        ("raise NonFiniteError('nan')", 3, "error: nan", "nan"),
        ("1 / 0", 2, "error: division by zero", "ZeroDivisionError at <string>:1 in <module>: division by zero"),
        ("sys.exit(4)", 2, "", "SystemExit 4"),
        ("raise KeyboardInterrupt", 130, "", "interrupted"),
        ("raise UserError('t' * 1_000_000)", 2, "error: tttt", "t" * 4000),
    ],
)  # fmt: skip
def test_a_failure_is_told_as_such(
    start: Callable[..., Ranks], action: str, status: int, own: str, others: str
) -> None:
    statuses, said = start(STUCK, action, STUCK).finish()
    assert own in said[1]
    for rank, prefix in ((0, ""), (2, "process 2: ")):
        assert said[rank] == f"{prefix}error: process 1 failed: {others}\n"
        assert statuses[rank] == status


def test_a_failure_of_the_first_process(start: Callable[..., Ranks]) -> None:
    statuses, said = start("raise UserError('no tea.')", STUCK, STUCK).finish()
    assert statuses == [2, 2, 2]
    assert said[0] == "error: no tea.\n"
    assert said[1:] == [f"process {rank}: error: process 0 failed: no tea.\n" for rank in (1, 2)]


def test_a_broken_collective_is_told_as_the_death_behind_it(start: Callable[..., Ranks]) -> None:
    broken = "raise RuntimeError('[gloo/transport/tcp/pair.cc:1] Connection closed by peer')"
    statuses, said = start(
        f"time.sleep(0.1); {broken}", "os.kill(os.getpid(), signal.SIGKILL)", broken
    ).finish()
    assert statuses == [2, -9, 2]
    for rank in (0, 2):
        assert "process 1 (" in said[rank]
        assert "has died" in said[rank]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_an_end_before_the_others_is_no_death(start: Callable[..., Ranks], first: int) -> None:
    actions = ["time.sleep(0.6)"] * 3
    actions[first] = "pass"
    assert start(*actions).finish() == ([0, 0, 0], ["", "", ""])


def test_a_script_that_closes_nothing(start: Callable[..., Ranks]) -> None:
    ranks = start("time.sleep(0.6)", "pass", script=PREPARED + "exec(sys.argv[4])")
    assert ranks.finish() == ([0, 0], ["", ""])


def test_an_exception_that_nothing_caught(start: Callable[..., Ranks]) -> None:
    statuses, said = start(STUCK, "1 / 0", script=PREPARED + "exec(sys.argv[4])").finish()
    assert statuses == [2, 1]
    assert "error: process 1 failed: ZeroDivisionError" in said[0]


def test_a_checkpoint_that_is_being_written_is_finished(start: Callable[..., Ranks]) -> None:
    writes = "def write():\n    time.sleep(1.0)\n    (folder / 'written').touch()\n"
    begins = "threading.Thread(target=write, name='checkpoint_7').start(); (folder / 'begun').touch(); time.sleep(1000)"
    dies = "while not (folder / 'begun').exists(): time.sleep(0.01)\nos._exit(1)"
    ranks = start(f"global write\n{writes}{begins}", dies)
    statuses, said = ranks.finish()
    assert statuses == [2, 1], said
    assert (ranks._folder / "written").exists()


# -- in one process ----------------------------------------------------------------------------------------------


class Threads:
    """`watch_ranks` in threads in place of processes; what would end a process is written down."""

    def __init__(self, num: int, change: Callable[[Any], Any] = lambda value: value) -> None:
        self._barrier, self._values = threading.Barrier(num), [None] * num
        self._change = change  # of what the processes tell each other
        self.watches: list[Any] = [None] * num
        self.notes: list[list[str]] = [[] for _ in range(num)]
        self._threads = [threading.Thread(target=self._start, args=(rank,)) for rank in range(num)]
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join(TIMEOUT)

    def _start(self, rank: int) -> None:
        def gather(value: Any) -> list[Any]:
            self._values[rank] = value
            self._barrier.wait(TIMEOUT)
            values = [self._change(value) for value in self._values]
            self._barrier.wait(TIMEOUT)
            return values

        self.watches[rank] = watch_ranks(
            rank, gather, "localhost", self.notes[rank].append, grace_seconds=60.0
        )

    def close(self) -> None:
        for watch in self.watches:
            watch.close()


def test_processes_of_several_machines() -> None:
    numbers = iter(range(100))

    def elsewhere(value: Any) -> Any:
        is_place = isinstance(value, tuple) and len(value) == 2
        return (f"machine-{next(numbers)}.invalid", value[1]) if is_place else value

    ranks = Threads(3, elsewhere)
    try:
        assert ranks.notes == [[], [], []]
        ranks.watches[2].tell_failure(UserError("no tea."))
        for watch in ranks.watches[:2]:
            assert watch._is_lost.wait(TIMEOUT)
            assert str(watch.lost) == "process 2 failed: no tea."
    finally:
        ranks.close()


def test_a_process_that_cannot_be_reached_is_noted() -> None:
    def elsewhere(value: Any) -> Any:
        if not (isinstance(value, tuple) and len(value) == 3):
            return value
        with socket.create_server(("127.0.0.1", 0)) as other:
            return (value[0], other.getsockname()[1], value[2])

    ranks = Threads(2, elsewhere)
    (line,) = ranks.notes[0]
    assert line.startswith("process 1 cannot reach process 0 at 127.0.0.1:")
    ranks.close()


def test_no_port_to_listen_at_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "create_server", refuse)
    ranks = Threads(2)
    assert "process 0 cannot listen: Too many open files" in ranks.notes[0][0]
    ranks.close()


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.1\n\n", b"wrong 1\n", b"", b"null\n", b"\xff" * 200000])
def test_strangers_are_shut_out(greeting: bytes) -> None:
    first, second = (RankWatch(["process 0", "process 1"], rank, TIMEOUT) for rank in range(2))
    port = first.listen("token", is_local=True)
    stranger = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
    with stranger, contextlib.suppress(OSError):  # as soon as it has heard enough, it hangs up
        stranger.sendall(greeting)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(100) == b""
    assert second.connect(["127.0.0.1"], port, "token") == ""
    assert first.lost is None
    second.close()
    first.close()


def test_another_program_at_the_port_is_no_process_of_the_run() -> None:
    def answer() -> None:
        connection, _ = other.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400\n")

    with socket.create_server(("127.0.0.1", 0)) as other:
        answering = threading.Thread(target=answer)
        answering.start()
        watch = RankWatch(["process 0", "process 1"], 1, TIMEOUT)
        assert "somebody else answers" in watch.connect(["127.0.0.1"], other.getsockname()[1], "token")
        watch.close()
        answering.join(TIMEOUT)


def test_a_host_that_is_gone() -> None:
    """What the kernel says when nothing has come from the other host for minutes."""

    class Silent:
        def __iter__(self) -> Iterator[bytes]:
            raise OSError(errno.ETIMEDOUT, "Connection timed out")

    ended: list[int] = []
    watch = RankWatch(["process 0 (host node7, pid 4711)", "process 1"], 1, 0.05, ended.append)
    watch._read(0, Silent())  # type: ignore[arg-type]
    deadline = time.monotonic() + TIMEOUT
    while not ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended == [2]
    assert str(watch.lost).startswith(
        "process 0 (host node7, pid 4711) cannot be reached any more (Connection timed out)."
    )
    watch.close()


def test_a_world_without_a_watch() -> None:
    with pytest.raises(UserError, match="tea"), failing_together(object()):
        raise UserError("tea")


def test_a_failure_is_told_once_and_its_consequences_are_its_own() -> None:
    ranks = Threads(2)
    watch = ranks.watches[1]
    watch.tell_failure(OtherProcessFailed("process 0 failed: coffee"))
    watch.tell_failure(UserError("tea"))
    with pytest.raises(UserError, match="tea"), watch.failing_together():
        raise UserError("tea") from RuntimeError("Connection closed by peer")
    first = ranks.watches[0]
    assert first._is_lost.wait(TIMEOUT)
    with pytest.raises(OtherProcessFailed, match="process 1 failed: tea"), first.failing_together():
        raise RuntimeError("[gloo/transport] Connection closed by peer")
    ranks.close()
