"""The tasks of one step on this machine, where no scheduler starts them: `python -m portwright.launch.tasks --ntasks N -- CMD`.

Each is a process with RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE in a process group of its own. Signals are
passed on to all. Where one fails the others are ended; with --keep-going, for a step whose task 0 is served by the
others, they go on, and the status is that of task 0.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from portwright.errors import ExitStatus
from portwright.launch.process_tree import (
    adopt_orphans,
    descendants,
    die_with_parent,
    end_with_parent,
    signal_each,
    wait_for_a_child,
)

FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
KILL_WAIT_SECONDS = 30.0  # SLURM's KillWait: between a SIGTERM and the SIGKILL behind it
GOODBYE_SECONDS = 60.0  # that the others have to end by themselves once task 0 has
_CANNOT_START = 127


class Tasks:
    """Starts all tasks, and waits for them."""

    def __init__(self, words: Sequence[str], count: int, *, keep_going: bool) -> None:
        self._keep_going = keep_going
        self._running: dict[int, int] = {}  # process number: rank
        self._status: dict[int, int] = {}  # rank: how it ended, where that was its own doing
        self._asked: list[int] = []  # signals that came and have not been passed on
        self._ending_since: float | None = None  # we told the rest to end
        self._killed = False
        self._zero_ended_at: float | None = None
        self._words, self._count = list(words), count

    def run(self) -> int:
        adopt_orphans()
        for number in FORWARDED:
            signal.signal(number, self._on_signal)
        for rank in range(self._count):
            if self._ending_since is None:
                self._start(rank)
        while self._running:
            self._forward()
            self._reap()
            self._press()
            if self._running:
                wait_for_a_child(0.2)
        signal_each(descendants(os.getpid()), signal.SIGKILL)  # what a task left behind
        return self._result()

    def _start(self, rank: int) -> None:
        places = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": self._count,
            "LOCAL_WORLD_SIZE": self._count,
        }
        try:
            process = subprocess.Popen(
                self._words,
                env={
                    **self._threads(rank),
                    **os.environ,  # who says otherwise is heard
                    **{name: str(value) for name, value in places.items()},
                },
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        except OSError as error:
            _say(f"task {rank}: cannot start {self._words[0]}: {(error.strerror or str(error)).lower()}.")
            self._status[rank] = _CANNOT_START
            self._after_failure()
            return
        process.returncode = 0  # waited for below, not by Popen
        self._running[process.pid] = rank

    def _threads(self, rank: int) -> dict[str, str]:
        """How many threads a task computes with: as many in all tasks as there are processors."""
        if self._count == 1:
            return {}
        if self._keep_going:
            # Only task 0 computes. Sums over another number of threads would give it other numbers than alone.
            return {} if rank == 0 else {"OMP_NUM_THREADS": "1"}
        return {"OMP_NUM_THREADS": str(max(1, _num_processors() // self._count))}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked.append(number)

    def _forward(self) -> None:
        while self._asked:
            number = self._asked.pop(0)
            for pid in self._running:
                _signal_group(pid, number)

    def _reap(self) -> None:
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self._running.pop(pid, None)
            if rank is None:
                continue  # left behind by a task
            status = os.waitstatus_to_exitcode(wait_status)
            status = 128 - status if status < 0 else status
            if rank == 0:
                self._zero_ended_at = time.monotonic()
            if self._ending_since is None:
                self._status[rank] = status
                if status not in (0, ExitStatus.REQUEUE):  # who has saved leaves the others time to save too
                    self._tell(rank, status)
                    self._after_failure()

    def _tell(self, rank: int, status: int) -> None:
        how = (
            f"was killed by {signal.Signals(status - 128).name}"
            if _is_signal(status)
            else f"ended with status {status}"
        )
        rest = len(self._running)
        if self._keep_going and rank != 0:
            _say(f"task {rank} {how}; the step goes on with the {rest} left.")
        elif rest and not self._keep_going:
            _say(f"task {rank} {how}; ending the other {rest}.")
        else:
            _say(f"task {rank} {how}.")

    def _after_failure(self) -> None:
        if not self._keep_going:  # else the others notice by themselves that task 0 is gone; see _press
            self._end_now()

    def _end_now(self) -> None:
        self._ending_since = time.monotonic()
        for pid in self._running:
            _signal_group(pid, signal.SIGTERM)

    def _press(self) -> None:
        """Ends those that do not end by themselves though they should."""
        now = time.monotonic()
        late = self._zero_ended_at is not None and now - self._zero_ended_at > GOODBYE_SECONDS
        if self._keep_going and late and self._ending_since is None:
            _say(
                f"task 0 ended {GOODBYE_SECONDS:.0f} s ago; ending the {len(self._running)} others that still run."
            )
            self._end_now()
        if (
            self._ending_since is not None
            and now - self._ending_since > KILL_WAIT_SECONDS
            and not self._killed
        ):
            self._killed = True
            for pid in self._running:
                _signal_group(pid, signal.SIGKILL)

    def _result(self) -> int:
        if self._keep_going:
            return self._status.get(0, 0)
        return max(self._status.values(), default=0)


def _num_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_signal(status: int) -> bool:
    return status > 128 and status - 128 in {int(number) for number in signal.Signals}


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _say(line: str) -> None:
    print(f"portwright tasks: {line}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m portwright.launch.tasks",
        usage="%(prog)s --ntasks N [--keep-going] -- COMMAND ...",
        description="Start the tasks of one step on this machine.",
    )
    parser.add_argument("--ntasks", type=int, required=True, metavar="N")
    parser.add_argument("--keep-going", action="store_true", help="a task other than 0 may fail")
    argv = list(sys.argv[1:] if argv is None else argv)
    end = argv.index("--") if "--" in argv else len(argv)
    given, words = parser.parse_args(argv[:end]), argv[end + 1 :]
    if given.ntasks < 1:
        parser.error(f"--ntasks is {given.ntasks}; give 1 or more")
    if not words:
        parser.error("there is no command; write it behind --")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # waited for, not handled
    end_with_parent()
    return Tasks(words, given.ntasks, keep_going=given.keep_going).run()


if __name__ == "__main__":
    sys.exit(main())
