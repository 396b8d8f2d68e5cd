"""The process that watches over a job without a scheduler: it runs job.sh, and runs it again where a scheduler would requeue it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from portwright.errors import PortwrightError
from portwright.job.atomic import atomic_write_text
from portwright.launch.checkpoints_seen import list_seen
from portwright.launch.local import (
    KILL_WAIT_SECONDS,
    RECORD,
    RESTARTS_VARIABLE,
    own_record,
    read_manifest,
    read_state,
    write_state,
)
from portwright.launch.process_tree import (
    adopt_orphans,
    descendants,
    die_with_parent,
    living,
    signal_each,
    wait_for_a_child,
)

_LOOK_SECONDS = 0.5


class Supervisor:
    """Runs job.sh until it has ended for good."""

    def __init__(self, folder: Path, minutes: int | None, grace_seconds: int, max_retries: int) -> None:
        self._folder = folder
        self._limit_seconds = None if minutes is None else minutes * 60.0
        self._grace_seconds = float(grace_seconds)
        self._max_retries = max_retries
        self._cancelled = False

    def run(self) -> int:
        adopt_orphans()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # waited for, not handled
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_cancel)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        atomic_write_text(self._folder / RECORD, json.dumps(own_record()) + "\n")
        restarts = retries = 0
        reached: object = None  # when the script was last killed
        while True:
            status, timed_out = self._attempt(restarts)
            state = str(read_state(self._folder).get("state", ""))
            if self._cancelled:
                self._note(state="cancelled", status=status)
                self._say("cancelled.")
                return status
            asks_again = state == "requeued"
            if (
                not asks_again
                and state not in ("done", "failed", "cancelled")
                and status > 128
                and not timed_out
            ):
                # Something killed the script itself, as a node that goes down would.
                before, reached = reached, self._find_reached()
                retries = retries + 1 if reached == before else 1
                asks_again = retries <= self._max_retries
                self._say(
                    f"job.sh was killed ({status}); {'it begins again' if asks_again else 'that was once too often'}."
                )
            if not asks_again:
                self._finish(state, status, timed_out)
                return status
            restarts += 1

    def _finish(self, state: str, status: int, timed_out: bool) -> None:
        if timed_out:
            self._say("the time limit was reached before the tasks had saved.")
            self._note(state="failed", status=status)
        elif state not in ("done", "failed", "cancelled"):
            self._say(f"job.sh ended with status {status} before it said how.")
            self._note(state="done" if status == 0 else "failed", status=status)

    def _note(self, **changes: Any) -> None:
        """Corrects what job.sh said of itself; where the disk is full, the job's own end still counts."""
        try:
            write_state(self._folder, **changes)
        except (OSError, PortwrightError) as error:
            self._say(f"how the job ended could not be noted. {error}")

    def _find_reached(self) -> tuple[int | None, frozenset[str]]:
        """How far the job has come: its newest checkpoint, and the steps that are done."""
        model_dir = read_manifest(self._folder).get("model_dir")
        checkpoints: list[int] = []
        if isinstance(model_dir, str) and model_dir:
            with contextlib.suppress(OSError):
                checkpoints = [seen.step for seen in list_seen(Path(model_dir))]
        done = frozenset(path.name for path in self._folder.glob("steps/*.done"))
        return max(checkpoints, default=None), done

    def _attempt(self, restarts: int) -> tuple[int, bool]:
        """Runs job.sh once; gives its status, and whether the time limit ended it."""
        script = subprocess.Popen(
            ["bash", str(self._folder / "job.sh")],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent(),
            env={**os.environ, RESTARTS_VARIABLE: str(restarts)},
        )
        began = time.monotonic()
        warned = timed_out = False
        told_at: float | None = None
        while script.poll() is None:
            spent = time.monotonic() - began
            if self._cancelled and told_at is None:
                told_at = time.monotonic()
                self._signal_tree(signal.SIGTERM)
            if self._limit_seconds is not None and told_at is None:
                if not warned and spent > self._limit_seconds - self._grace_seconds:
                    warned = True
                    script.send_signal(signal.SIGUSR1)
                if spent > self._limit_seconds:
                    timed_out, told_at = True, time.monotonic()
                    self._signal_tree(signal.SIGTERM)
            if told_at is not None and time.monotonic() - told_at > KILL_WAIT_SECONDS:
                self._signal_tree(signal.SIGKILL)
            wait_for_a_child(_LOOK_SECONDS)
        self._end_what_is_left(told_at)
        status = int(script.returncode)
        return (128 - status if status < 0 else status), timed_out

    def _end_what_is_left(self, told_at: float | None) -> None:
        """Nothing of an attempt may run beside the next one."""
        if told_at is None:
            told_at = time.monotonic()
            self._signal_tree(signal.SIGTERM)
        while True:
            left = descendants(os.getpid())
            for pid in left:  # orphans that became ours
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            if not living(left):
                return
            if time.monotonic() - told_at > KILL_WAIT_SECONDS:
                self._signal_tree(signal.SIGKILL)
            wait_for_a_child(0.1)

    def _signal_tree(self, number: int) -> None:
        signal_each(descendants(os.getpid()), number)

    def _on_cancel(self, number: int, frame: FrameType | None) -> None:
        self._cancelled = True

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # a full disk; there is no other place to say it
            os.write(1, f"portwright: {line}\n".encode())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m portwright.launch.supervisor", description="Run a job's script."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=int, default=None)
    parser.add_argument("--grace-seconds", type=int, default=120)
    parser.add_argument("--max-retries", type=int, default=3)
    given = parser.parse_args(argv)
    return Supervisor(given.folder.absolute(), given.minutes, given.grace_seconds, given.max_retries).run()


if __name__ == "__main__":
    sys.exit(main())
