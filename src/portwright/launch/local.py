"""Starts, queries and ends jobs without a scheduler; each has a supervisor process (supervisor.py), which runs job.sh."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from portwright.errors import UserError
from portwright.job.atomic import atomic_write_text
from portwright.launch.job import MANIFEST
from portwright.launch.process_tree import (
    KILL_WAIT_SECONDS,
    Ending,
    Process,
    command_words,
    living,
    machine,
    marked,
    parent,
)
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
    words = [sys.executable, "-m", "portwright.launch.supervisor", str(folder)]
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
