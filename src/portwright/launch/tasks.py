"""The tasks of one step on this machine, where no scheduler starts them: `python -m portwright.launch.tasks --ntasks N -- CMD`.

Each is a process with RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE in a process group of its own. Signals are
passed on to all. Where one fails the others are ended; with --keep-going, for a step whose task 0 is served by the
others, they go on, and the status is that of task 0. docs/decisions/0009 says why torchrun does not do this.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from portwright.errors import ExitStatus
from portwright.launch.process_tree import (
    Ending,
    adopt_orphans,
    die_with_parent,
    end_with_parent,
    own_descendants,
    signal_each,
    wait_for_a_child,
)

FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
GOODBYE_SECONDS = 60.0  # for the others to end by themselves once task 0 has
_CANNOT_START = 127


class Tasks:
    """Starts all tasks, and waits for them."""

    def __init__(self, words: Sequence[str], count: int, *, keep_going: bool) -> None:
        self._words, self._count, self._keep_going = list(words), count, keep_going
        self._running: dict[int, subprocess.Popen[bytes]] = {}  # by rank
        self._status: dict[int, int] = {}  # by rank; only tasks that ended by themselves
        self._asked: list[int] = []  # signals received and not yet passed on
        self._ending = Ending(own_descendants)
        self._zero_ended_at = float("inf")

    def run(self) -> int:
        adopt_orphans()
        for number in FORWARDED:
            signal.signal(number, lambda number, _: self._asked.append(number))
        for rank in range(self._count):
            if not self._ending.has_begun:
                self._start(rank)
        while self._running:
            while self._asked:
                self._pass_on(self._asked.pop(0))
            for rank in [rank for rank, task in self._running.items() if task.poll() is not None]:
                self._note_end(rank, self._running.pop(rank).returncode)
            if time.monotonic() - self._zero_ended_at > GOODBYE_SECONDS and not self._ending.has_begun:
                left = len(self._running)
                _say(f"task 0 ended {GOODBYE_SECONDS:.0f} s ago; ending the {left} others that still run.")
                self._ending.begin()
            self._ending.press()
            if self._running:
                wait_for_a_child(0.2)
        signal_each(own_descendants(), signal.SIGKILL)  # processes that a task left behind
        return self._status.get(0, 0) if self._keep_going else max(self._status.values(), default=0)

    def _pass_on(self, number: int) -> None:
        """Sends a signal to the tasks' process groups, which includes processes that are just being started."""
        for task in self._running.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(task.pid, number)

    def _start(self, rank: int) -> None:
        places = {"RANK": rank, "LOCAL_RANK": rank}
        places |= {"WORLD_SIZE": self._count, "LOCAL_WORLD_SIZE": self._count}
        # The user's own OMP_NUM_THREADS goes before ours.
        env = {**self._threads(rank), **os.environ, **{name: str(value) for name, value in places.items()}}
        try:
            self._running[rank] = subprocess.Popen(
                self._words,
                env=env,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        except OSError as error:
            _say(f"task {rank}: cannot start {self._words[0]}: {(error.strerror or str(error)).lower()}.")
            self._status[rank] = _CANNOT_START
            if not self._keep_going:
                self._ending.begin()

    def _threads(self, rank: int) -> dict[str, str]:
        """OMP_NUM_THREADS for a task, so that all tasks together have as many threads as there are processors."""
        if self._count == 1:
            return {}
        if self._keep_going:
            # Only task 0 computes. It keeps all threads, since sums over another number of threads round differently.
            return {} if rank == 0 else {"OMP_NUM_THREADS": "1"}
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return {"OMP_NUM_THREADS": str(max(1, processors // self._count))}

    def _note_end(self, rank: int, code: int) -> None:
        if rank == 0 and self._keep_going:
            self._zero_ended_at = time.monotonic()
        if self._ending.has_begun:  # the task was told to end
            return
        self._status[rank] = status = 128 - code if code < 0 else code
        if status in (0, ExitStatus.REQUEUE):  # the others get time to save too
            return
        is_signal = status - 128 in {int(number) for number in signal.Signals}
        how = (
            f"was killed by {signal.Signals(status - 128).name}"
            if is_signal
            else f"ended with status {status}"
        )
        rest, what = len(self._running), "."
        if self._keep_going and rank != 0:
            what = f"; the step goes on with the {rest} left."
        elif rest and not self._keep_going:
            what = f"; ending the other {rest}."
        _say(f"task {rank} {how}{what}")
        if not self._keep_going:  # otherwise the others notice themselves that task 0 has ended
            self._ending.begin()


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
