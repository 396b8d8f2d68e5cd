"""Jobs without a scheduler: a process of its own runs job.sh, and runs it again where a scheduler would requeue it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from portwright.errors import UserError
from portwright.job.atomic import atomic_write_text
from portwright.launch.process_tree import (
    Process,
    adopt_orphans,
    descendants,
    die_with_parent,
    living,
    marked,
    signal_each,
)
from portwright.launch.registry import now
from portwright.launch.slurm import ENDED, SlurmState

FOLDER_VARIABLE = "PORTWRIGHT_JOB_FOLDER"  # marks all processes of a job
RESTARTS_VARIABLE = "PORTWRIGHT_RESTARTS"
KILL_WAIT_SECONDS = 30.0  # as SLURM's KillWait
_RECORD, _STATE, _LOG = "supervisor.json", "state.json", "log.txt"
_START_SECONDS = 60.0


def start(folder: Path, *, minutes: int | None = None, grace_seconds: int = 120, max_retries: int = 3) -> str:
    """Starts the process that watches over a job, and gives its number; it goes on when the terminal is closed."""
    words = [sys.executable, "-m", "portwright.launch.local", f"--grace-seconds={grace_seconds}"]
    words += [
        f"--max-retries={max_retries}",
        *([f"--minutes={minutes}"] if minutes is not None else []),
        str(folder),
    ]
    try:
        with (folder / _LOG).open("ab") as log:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, FOLDER_VARIABLE: str(folder)},
            )
    except OSError as error:
        raise UserError(f"the job cannot be started: {error}.", "Mend what it names.") from error
    deadline = time.monotonic() + _START_SECONDS
    while not (folder / _RECORD).is_file():
        if process.poll() is not None or time.monotonic() > deadline:
            raise UserError(
                f"the process that watches over the job ended with status {process.poll()}.",
                f"See {folder / _LOG}.",
            )
        time.sleep(0.02)
    process.returncode = 0  # nobody waits for it: it outlives us
    return str(process.pid)


def job_state(folder: Path) -> SlurmState:
    """How a job without a scheduler stands, from its folder and from the process that watches over it."""
    said, record = read_state(folder), _read_json(folder / _RECORD)
    host, restarts, status = str(record.get("host", "")), said.get("restarts"), said.get("status")
    common = SlurmState("running", nodes=host, restarts=restarts if isinstance(restarts, int) else 0)
    if _is_watched(record):
        return common
    if host == socket.gethostname() and living(marked(FOLDER_VARIABLE, str(folder))):
        return replace(common, reason="what watched over it was killed, but its tasks still run")
    for state in ENDED:
        if said.get("state") == state:
            return replace(common, state=state, exit=status if isinstance(status, int) else None)
    if host and host != socket.gethostname():
        return replace(common, state="unknown", reason=f"it runs on {host}: ask there")
    if not record:
        return replace(common, state="unknown", reason="it was not started")
    reason = "the process that watched over it is gone: it was killed, or the machine was restarted"
    return replace(common, state="failed", reason=reason)


def cancel(folder: Path) -> bool:
    """Tells a job to end: its tasks have half a minute to save; False where it has ended already."""
    record = _read_json(folder / _RECORD)
    if host := str(record.get("host", "")):
        if host != socket.gethostname():
            raise UserError(f"the job runs on {host}.", f"Cancel it there: ssh {host}")
        if _is_watched(record):
            os.kill(int(record["pid"]), signal.SIGTERM)
            return True
    left = marked(FOLDER_VARIABLE, str(folder))
    signal_each(left, signal.SIGKILL)  # whoever would have waited for them is gone
    return bool(left)


def find_process(folder: Path) -> str | None:
    """The number of the process that watches, or watched, over a job."""
    pid = _read_json(folder / _RECORD).get("pid")
    return str(pid) if isinstance(pid, int) else None


def read_state(folder: Path) -> dict[str, Any]:
    """What job.sh last said of itself; empty before it began."""
    return _read_json(folder / _STATE)


def write_state(folder: Path, **changes: Any) -> None:
    """Corrects what job.sh said of itself, where it ended before it could."""
    values = {"step": "", "restarts": 0, **read_state(folder), **changes, "time": now()}
    atomic_write_text(folder / _STATE, json.dumps(values) + "\n")


def _is_watched(record: dict[str, Any]) -> bool:
    if record.get("host") != socket.gethostname() or not isinstance(record.get("pid"), int):
        return False
    return Process(record["pid"], str(record.get("started", ""))).is_alive()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there, or being written by an old file system
        return {}
    return values if isinstance(values, dict) else {}


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
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_cancel)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        record = {**vars(Process.here()), "host": socket.gethostname()}
        atomic_write_text(self._folder / _RECORD, json.dumps(record) + "\n")
        restarts = retries = 0
        while True:
            status, timed_out = self._attempt(restarts)
            state = str(read_state(self._folder).get("state", ""))
            if self._cancelled:
                write_state(self._folder, state="cancelled", status=status)
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
                retries += 1
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
            write_state(self._folder, state="failed", status=status)
        elif state not in ("done", "failed", "cancelled"):
            self._say(f"job.sh ended with status {status} before it said how.")
            write_state(self._folder, state="done" if status == 0 else "failed", status=status)

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
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                script.wait(0.2)
            ended = script.returncode is not None
            spent = time.monotonic() - began
            if ended and told_at is None:
                told_at = time.monotonic()  # what it left behind has as long as what is cancelled
                signal_each(descendants(os.getpid()), signal.SIGTERM)
            elif self._cancelled and told_at is None:
                told_at = time.monotonic()
                self._end_tree()
            elif self._limit_seconds is not None and not ended:
                if not warned and spent > self._limit_seconds - self._grace_seconds:
                    warned = True
                    script.send_signal(signal.SIGUSR1)
                if spent > self._limit_seconds and told_at is None:
                    timed_out, told_at = True, time.monotonic()
                    self._end_tree()
            if told_at is not None and time.monotonic() - told_at > KILL_WAIT_SECONDS:
                signal_each(descendants(os.getpid()), signal.SIGKILL)
            self._reap(script.pid)
            if ended and not living(descendants(os.getpid())):
                status = int(script.returncode)
                return (128 - status if status < 0 else status), timed_out

    def _end_tree(self) -> None:
        signal_each(descendants(os.getpid()), signal.SIGTERM)

    def _reap(self, script: int) -> None:
        """Waits for orphans that became ours, so that none stays a zombie; the script itself is Popen's."""
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ChildProcessError):
                if pid != script and not living([pid]):
                    os.waitpid(pid, os.WNOHANG)

    def _on_cancel(self, number: int, frame: FrameType | None) -> None:
        self._cancelled = True

    def _say(self, line: str) -> None:
        print(f"portwright: {line}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m portwright.launch.local", description="Run a job's script."
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=int, default=None)
    parser.add_argument("--grace-seconds", type=int, default=120)
    parser.add_argument("--max-retries", type=int, default=3)
    given = parser.parse_args(argv)
    return Supervisor(given.folder.absolute(), given.minutes, given.grace_seconds, given.max_retries).run()


if __name__ == "__main__":
    sys.exit(main())
