"""Real signals to real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from portwright.errors import ExitStatus
from portwright.job.signals import StopSignals, install_early


class Child:
    """A script in its own process group that is told and tells by lines."""

    def __init__(self, script: str, *, ignores: tuple[int, ...] = ()) -> None:
        def prepare() -> None:
            for number in ignores:
                signal.signal(number, signal.SIG_IGN)

        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=prepare if ignores else None,
        )

    def wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        seen = ""
        for line in self.process.stdout:
            seen += line
            if line.strip() == word:
                return
        raise AssertionError(f"never said {word!r} but: {seen}")

    def send(self, *numbers: int, to_group: bool = False) -> None:
        for number in numbers:
            (os.killpg if to_group else os.kill)(self.process.pid, number)
            time.sleep(0.05)  # equal signals that are still pending are one

    def end(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=60)
        return self.process.returncode, output

    def clean_up(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.wait()


@pytest.fixture
def start() -> Iterator[type[Child]]:
    children: list[Child] = []

    class Started(Child):
        def __init__(self, script: str, *, ignores: tuple[int, ...] = ()) -> None:
            super().__init__(script, ignores=ignores)
            children.append(self)

    yield Started
    for child in children:
        child.clean_up()


TRAINER = """
    import sys, time
    from portwright.job.signals import StopSignals
    with StopSignals() as signals:
        print("training")
        while not signals.requested:
            time.sleep(0.01)
        time.sleep(0.4)  # the step ends, the checkpoint is written
        print("saved", signals.reason)
    sys.exit(signals.exit_status)
"""


@pytest.mark.parametrize(
    ("numbers", "status", "reason"),
    [
        ([signal.SIGTERM], 85, "SIGTERM"),
        ([signal.SIGUSR1], 85, "SIGUSR1"),
        ([signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM], 85, "SIGTERM"),
        ([signal.SIGINT], 130, "SIGINT"),
        ([signal.SIGUSR1, signal.SIGINT], 130, "SIGINT"),
        ([signal.SIGINT, signal.SIGTERM, signal.SIGUSR1], 130, "SIGINT"),
    ],
)
def test_a_signal_saves_and_says_how_to_exit(
    start: type[Child], numbers: list[int], status: int, reason: str
) -> None:
    child = start(TRAINER)
    child.wait_for("training")
    child.send(*numbers)
    assert child.end() == (status, f"saved {reason}\n")


def test_a_second_ctrl_c_stops_at_once(start: type[Child]) -> None:
    child = start(TRAINER.replace("time.sleep(0.4)", "time.sleep(30)"))
    child.wait_for("training")
    child.send(signal.SIGINT, signal.SIGINT)
    status, output = child.end()
    assert status == -signal.SIGINT
    assert "KeyboardInterrupt" in output
    assert "saved" not in output


def test_a_background_job_that_ignores_ctrl_c_goes_on_doing_so(start: type[Child]) -> None:
    child = start(TRAINER, ignores=(signal.SIGINT,))
    child.wait_for("training")
    child.send(signal.SIGINT, signal.SIGINT, signal.SIGTERM)
    assert child.end() == (85, "saved SIGTERM\n")


def test_a_script_that_ignores_the_schedulers_signal_does_not_make_us_deaf(start: type[Child]) -> None:
    child = start(TRAINER, ignores=(signal.SIGUSR1,))  # `trap '' USR1` is inherited
    child.wait_for("training")
    child.send(signal.SIGUSR1)
    assert child.end() == (85, "saved SIGUSR1\n")


EARLY = """
    import sys, time
    from portwright.job.signals import StopSignals, install_early
    install_early()
    assert "torch" not in sys.modules
    install_early()
    print("importing")
    sys.stdin.readline()
    with StopSignals() as signals:
        print("requested", signals.requested, signals.reason)
    sys.exit(signals.exit_status)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_before_training_is_remembered(start: type[Child], number: signal.Signals) -> None:
    child = start(EARLY)
    child.wait_for("importing")
    child.send(number)
    assert child.process.stdin is not None
    child.process.stdin.write("\n")
    assert child.end() == (85, f"requested True {number.name}\n")


def test_ctrl_c_before_training_interrupts(start: type[Child]) -> None:
    child = start(EARLY)
    child.wait_for("importing")
    child.send(signal.SIGINT)
    assert child.end()[0] == -signal.SIGINT


def _handlers() -> list[object]:
    return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)]


def test_former_handlers_come_back_whatever_happens() -> None:
    before = _handlers()
    with StopSignals() as signals:
        assert before != _handlers()
        assert (signals.requested, signals.reason, signals.exit_status) == (False, "", ExitStatus.OK)
    assert _handlers() == before
    with pytest.raises(RuntimeError), StopSignals():
        raise RuntimeError
    assert _handlers() == before
    install_early()
    with StopSignals():
        pass
    assert _handlers() == before


def test_outside_the_main_thread_it_says_that_it_cannot() -> None:
    notes: list[str] = []
    before = _handlers()

    def run() -> None:
        install_early()
        with StopSignals(notes.append) as signals:
            assert not signals.requested
        with StopSignals():
            pass

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(notes) == 1
    assert "not in the main thread" in notes[0]
    assert _handlers() == before


def test_a_forked_child_neither_notes_nor_swallows_signals(start: type[Child]) -> None:
    child = start("""
        import os, signal, time
        from portwright.job.signals import StopSignals, install_early
        install_early()
        with StopSignals() as signals:
            if (pid := os.fork()) == 0:
                print("forked")
                while True:
                    time.sleep(0.05)
                    assert not signals.requested
            time.sleep(0.3)
            os.kill(pid, signal.SIGUSR1)
            os.kill(pid, signal.SIGINT)
            time.sleep(0.2)
            assert os.waitpid(pid, os.WNOHANG) == (0, 0), "it died"
            os.kill(pid, signal.SIGTERM)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
            assert not signals.requested
        print("good")
    """)
    status, output = child.end()
    assert (status, output) == (0, "forked\ngood\n")


LOADER = """
    import sys, time
    from portwright.job.signals import StopSignals, install_early, shield_worker
    install_early()
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self):
            return 100_000
        def __getitem__(self, index):
            time.sleep(0.002)
            return index

    def init(worker):
        shield_worker()

    with StopSignals() as signals:
        batches = iter(DataLoader(Slow(), batch_size=2, num_workers=2, worker_init_fn=init))
        next(batches), next(batches)  # one of each worker: both are up
        print("training")
        num_after = 0
        while num_after < 60:  # long enough for a dead worker to be noticed
            next(batches)
            num_after += signals.requested
        del batches
        print("saved", signals.reason)
    sys.exit(signals.exit_status)
"""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 85), (signal.SIGUSR1, 85), (signal.SIGINT, 130)]
)
def test_data_loader_workers_outlive_a_signal_to_all(
    start: type[Child], number: signal.Signals, status: int
) -> None:
    child = start(LOADER)
    child.wait_for("training")
    child.send(number, to_group=True)
    assert child.end() == (status, f"saved {number.name}\n")


def _process_states(group: int) -> list[str]:
    states = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            states.append(stat.parent.name)
    return states


STUCK = """
    import os, signal, sys, time
    from portwright.job import signals
    signals.WORKER_GRACE_SECONDS = <grace>
    pid = os.fork()
    if pid == 0:
        signals.shield_worker()
        print("shielded")
        <work>
    print("parent of", pid)
    <end>
"""


def test_a_stuck_worker_still_ends_when_its_parent_says_so(start: type[Child]) -> None:
    # Stuck in native code, where Python runs no handler.
    stuck = "import ctypes; libc = ctypes.CDLL(None); [libc.usleep(60_000_000) for _ in range(99)]"
    end = """
    time.sleep(0.5)
    os.kill(pid, signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """.strip()
    child = start(STUCK.replace("<grace>", "0.5").replace("<work>", stuck).replace("<end>", end))
    status, output = child.end()
    assert status == 0
    assert output.endswith("0\n")


def test_a_worker_that_got_sigterm_does_not_outlive_its_parent(start: type[Child]) -> None:
    end = "time.sleep(0.5); os.kill(pid, signal.SIGTERM); time.sleep(0.2); os._exit(0)"
    child = start(
        STUCK.replace("<grace>", "3600").replace("<work>", "time.sleep(3600)").replace("<end>", end)
    )
    assert child.end()[0] == 0  # which waits for all that hold its output open
    deadline = time.monotonic() + 30
    while _process_states(child.process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)  # a process closes its files a little before it is gone
    assert _process_states(child.process.pid) == []


def test_programs_that_a_worker_starts_can_be_ended(start: type[Child]) -> None:
    child = start("""
        import subprocess, sys
        from portwright.job.signals import shield_worker
        shield_worker()
        program = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); import time; time.sleep(60)"],
                                   stdout=subprocess.PIPE)
        program.stdout.readline()
        program.terminate()
        print(program.wait())
    """)
    assert child.end() == (0, f"{-signal.SIGTERM}\n")
