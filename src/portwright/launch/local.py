"""Jobs without a scheduler: started, queried and ended here; each has a supervisor process, which runs job.sh, and runs it again where a scheduler would requeue it."""

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
from typing import Any

from portwright.errors import PortwrightError, UserError
from portwright.job.atomic import atomic_write_text
from portwright.launch.job import MANIFEST
from portwright.launch.process_tree import (
    KILL_WAIT_SECONDS,
    Ending,
    Process,
    adopt_orphans,
    command_words,
    die_with_parent,
    living,
    machine,
    marked,
    own_descendants,
    parent,
    wait_for_a_child,
)
from portwright.launch.run_files import newest_step
from portwright.launch.slurm import ENDED, SlurmState
from portwright.launch.times import now

FOLDER_VARIABLE = "PORTWRIGHT_JOB_FOLDER"  # marks all processes of a job
RESTARTS_VARIABLE = "PORTWRIGHT_RESTARTS"
RECORD, _STATE, _LOG, _SCRIPT = "supervisor.json", "state.json", "log.txt", "job.sh"
_START_SECONDS = 60.0
_END_SECONDS = KILL_WAIT_SECONDS + 10.0  # a process that hangs in a file system outlives a SIGKILL


class ElsewhereError(UserError):
    """The job runs on another machine, which cannot be asked from here."""


def own_record() -> dict[str, Any]:
    """A record of this process, to find it again later."""
    return {**vars(Process.here()), "host": socket.gethostname(), "machine": machine()}


def start(folder: Path, *, minutes: int | None = None, grace_seconds: int = 120, max_retries: int = 3) -> str:
    """Starts a job's supervisor and gives its process number; it goes on when the terminal is closed."""
    words = [sys.executable, "-m", "portwright.launch.local", str(folder)]
    words += [f"--grace-seconds={grace_seconds}", f"--max-retries={max_retries}"]
    words += [] if minutes is None else [f"--minutes={minutes}"]
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
    while not (folder / RECORD).is_file():
        if process.poll() is not None or time.monotonic() > deadline:
            raise UserError(
                f"the process that watches over the job ended with status {process.poll()}.",
                f"See {folder / _LOG}.",
            )
        time.sleep(0.02)
    process.returncode = 0  # spares a warning of Popen: the process outlives this one
    return str(process.pid)


def job_state(folder: Path) -> SlurmState:
    """The state of a job without a scheduler, from its folder and its supervisor."""
    said, record = read_state(folder), _read_json(folder / RECORD)
    host, restarts, status = str(record.get("host", "")), said.get("restarts"), said.get("status")
    common = SlurmState("running", nodes=host, restarts=restarts if isinstance(restarts, int) else 0)
    if _is_supervised(record):
        return common
    if _unsupervised(folder):
        reason = "what watched over it was killed, or it was started by hand; its tasks run"
        return replace(common, reason=reason)
    for state in ENDED:
        if said.get("state") == state:
            return replace(common, state=state, exit=status if isinstance(status, int) else None)
    if host and not _is_here(record):
        return replace(common, state="unknown", reason=f"it runs on {host}: ask there")
    if not record:
        return replace(common, state="unknown", reason="it was not started")
    reason = "the process that watched over it is gone: it was killed, the machine was restarted, or the disk was full"
    return replace(common, state="failed", reason=reason)


def has_gone_on(folder: Path, ended: str, noted_ns: int) -> bool:
    """Whether a job was started again by hand after its end was noted, and runs or has ended in another way."""
    try:
        if (folder / _STATE).stat().st_mtime_ns <= noted_ns:
            return False
    except OSError:
        return False
    said = read_state(folder).get("state")
    if said in ENDED:
        return bool(said != ended)
    return said in ("running", "requeued") and bool(_unsupervised(folder))


def cancel(folder: Path) -> bool:
    """Tells a job to end: its tasks have half a minute to save; False where it has ended already.

    A job without a living supervisor has ended when this returns.
    """
    record = _read_json(folder / RECORD)
    if _is_supervised(record):
        os.kill(int(record["pid"]), signal.SIGTERM)
        return True
    if _unsupervised(folder):
        try:
            _end_unsupervised(folder)
        finally:  # notes it even if the wait is interrupted
            write_state(folder, state="cancelled", status=128 + signal.SIGTERM)
        return True
    if (host := str(record.get("host", ""))) and not _is_here(record):
        raise ElsewhereError(
            f"the job runs on {host}.",
            f"Cancel it there: ssh {host}. If that machine is gone or has another name now, "
            "'portwright cancel --force' notes the job as cancelled.",
        )
    return False


def find_process(folder: Path) -> str | None:
    """The process number of a job's supervisor, living or not."""
    pid = _read_json(folder / RECORD).get("pid")
    return str(pid) if isinstance(pid, int) else None


def read_state(folder: Path) -> dict[str, Any]:
    """The state that job.sh wrote last; empty before it began."""
    return _read_json(folder / _STATE)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The job's manifest; empty where it cannot be read."""
    return _read_json(folder / MANIFEST)


def write_state(folder: Path, **changes: Any) -> None:
    """Corrects the state file of a job.sh that ended before it could write its own end."""
    values = {"step": "", "restarts": 0, **read_state(folder), **changes, "time": now()}
    atomic_write_text(folder / _STATE, json.dumps(values) + "\n")


def _unsupervised(folder: Path) -> list[int]:
    """Living processes of a job without a supervisor; a job.sh started by hand is not marked itself, only its children."""
    found = living(marked(FOLDER_VARIABLE, str(folder)))
    above = {number for pid in found if (number := parent(pid)) is not None}.difference(found)
    scripts = [pid for pid in above if any(Path(word).name == _SCRIPT for word in command_words(pid))]
    return [*scripts, *found]  # scripts first, so that they start no further step


def _end_unsupervised(folder: Path) -> None:
    """Ends a job as its supervisor would: asks all processes to end, waits, and kills the rest."""
    ending, deadline = Ending(lambda: _unsupervised(folder)), time.monotonic() + _END_SECONDS
    ending.begin()
    while _unsupervised(folder) and time.monotonic() < deadline:
        ending.press()
        time.sleep(0.1)


def _is_here(record: dict[str, Any]) -> bool:
    """Whether a record is of this machine, even if its host name has changed."""
    if record.get("host") == socket.gethostname():
        return True
    return bool(here := machine()) and record.get("machine") == here


def _is_supervised(record: dict[str, Any]) -> bool:
    if not _is_here(record) or not isinstance(record.get("pid"), int):
        return False
    return Process(record["pid"], str(record.get("started", ""))).is_alive()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there, or being written by an old file system
        return {}
    return values if isinstance(values, dict) else {}


_LOOK_SECONDS = 0.5


class Supervisor:
    """Runs job.sh until it has ended for good."""

    def __init__(self, folder: Path, minutes: int | None, grace_seconds: int, max_retries: int) -> None:
        self._folder, self._grace_seconds, self._max_retries = folder, grace_seconds, max_retries
        self._limit_seconds = float("inf") if minutes is None else minutes * 60.0
        self._cancelled = False

    def run(self) -> int:
        adopt_orphans()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # waited for, not handled
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(self, "_cancelled", True))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        atomic_write_text(self._folder / RECORD, json.dumps(own_record()) + "\n")
        restarts = retries = 0
        reached: object = None  # when the script was last killed
        while True:
            status, timed_out = self._attempt(restarts)
            state = read_state(self._folder).get("state")
            if self._cancelled:
                self._end("cancelled", status, "cancelled.")
                return status
            if state in ENDED and not timed_out:
                return status
            if state != "requeued":
                if timed_out:
                    self._end("failed", status, "the time limit was reached before the tasks had saved.")
                    return status
                if status <= 128:
                    said = f"job.sh ended with status {status} before it said how."
                    self._end("done" if status == 0 else "failed", status, said)
                    return status
                # The script itself was killed; treated like the loss of a node.
                before, reached = reached, self._find_reached()
                retries = retries + 1 if reached == before else 1
                if retries > self._max_retries:
                    self._end("failed", status, f"job.sh was killed ({status}); that was once too often.")
                    return status
                self._say(f"job.sh was killed ({status}); it begins again.")
            restarts += 1

    def _attempt(self, restarts: int) -> tuple[int, bool]:
        """Runs job.sh once; gives its status, and whether the time limit ended it."""
        script = subprocess.Popen(
            ["bash", str(self._folder / "job.sh")],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent(),
            env={**os.environ, RESTARTS_VARIABLE: str(restarts)},
        )
        began, ending = time.monotonic(), Ending(own_descendants)
        is_warned = timed_out = False
        while script.poll() is None:
            spent = time.monotonic() - began
            if spent > self._limit_seconds - self._grace_seconds and not is_warned and not ending.has_begun:
                is_warned = True
                script.send_signal(signal.SIGUSR1)
            if self._cancelled or spent > self._limit_seconds:
                timed_out = timed_out or (not self._cancelled and not ending.has_begun)
                ending.begin()
            ending.press()
            wait_for_a_child(_LOOK_SECONDS)
        ending.begin()  # no process of this attempt may run beside the next one
        while living(own_descendants()):
            ending.press()
            wait_for_a_child(0.1)
        status = int(script.returncode)
        return (128 - status if status < 0 else status), timed_out

    def _find_reached(self) -> tuple[int | None, frozenset[str]]:
        """The job's progress: its newest checkpoint, and the steps that are done."""
        model_dir = read_manifest(self._folder).get("model_dir")
        done = frozenset(path.name for path in self._folder.glob("steps/*.done"))
        return newest_step(Path(model_dir)) if model_dir else None, done

    def _end(self, state: str, status: int, said: str) -> None:
        """Writes the end into the state file; a full disk does not change the exit status."""
        self._say(said)
        try:
            write_state(self._folder, state=state, status=status)
        except (OSError, PortwrightError) as error:
            self._say(f"how the job ended could not be noted. {error}")

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # a full disk; there is nowhere else to write it
            os.write(1, f"portwright: {line}\n".encode())


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
