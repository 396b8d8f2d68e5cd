"""Jobs without a scheduler: each has a process of its own (supervisor.py) that runs job.sh; here it is started, asked and told to end."""

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
from portwright.launch.process_tree import Process, living, marked, signal_each
from portwright.launch.registry import now
from portwright.launch.slurm import ENDED, SlurmState

FOLDER_VARIABLE = "PORTWRIGHT_JOB_FOLDER"  # marks all processes of a job
RESTARTS_VARIABLE = "PORTWRIGHT_RESTARTS"
RECORD, _STATE, _LOG = "supervisor.json", "state.json", "log.txt"
_START_SECONDS = 60.0


def start(folder: Path, *, minutes: int | None = None, grace_seconds: int = 120, max_retries: int = 3) -> str:
    """Starts the process that watches over a job, and gives its number; it goes on when the terminal is closed."""
    words = [sys.executable, "-m", "portwright.launch.supervisor", f"--grace-seconds={grace_seconds}"]
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
    while not (folder / RECORD).is_file():
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
    said, record = read_state(folder), _read_json(folder / RECORD)
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
    record = _read_json(folder / RECORD)
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
    pid = _read_json(folder / RECORD).get("pid")
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
