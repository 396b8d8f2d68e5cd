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
from portwright.launch.process_tree import (
    Process,
    command_words,
    living,
    machine,
    marked,
    parent,
    signal_each,
)
from portwright.launch.registry import MANIFEST, now
from portwright.launch.slurm import ENDED, SlurmState

FOLDER_VARIABLE = "PORTWRIGHT_JOB_FOLDER"  # marks all processes of a job
RESTARTS_VARIABLE = "PORTWRIGHT_RESTARTS"
RECORD, _STATE, _LOG, _SCRIPT = "supervisor.json", "state.json", "log.txt", "job.sh"
KILL_WAIT_SECONDS = 30.0  # as SLURM's KillWait: between a SIGTERM and the SIGKILL behind it
_START_SECONDS = 60.0
_GONE_SECONDS = 10.0  # after a SIGKILL; what hangs in a file system stays longer


class ElsewhereError(UserError):
    """The job is of a machine that cannot be asked from here."""


def own_record() -> dict[str, Any]:
    """Which process this is, for those who look for it later."""
    return {**vars(Process.here()), "host": socket.gethostname(), "machine": machine()}


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
    if _unwatched(folder):
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
    """Whether a job whose end was noted was started again by hand since, and runs or has ended in another way."""
    try:
        if (folder / _STATE).stat().st_mtime_ns <= noted_ns:
            return False
    except OSError:
        return False
    said = read_state(folder).get("state")
    if said in ENDED:
        return bool(said != ended)
    return said in ("running", "requeued") and bool(_unwatched(folder))


def cancel(folder: Path) -> bool:
    """Tells a job to end: its tasks have half a minute to save; False where it has ended already.

    Where nobody watches over it, it has ended when this returns.
    """
    record = _read_json(folder / RECORD)
    if _is_watched(record):
        os.kill(int(record["pid"]), signal.SIGTERM)
        return True
    if _unwatched(folder):
        try:
            _end_unwatched(folder)
        finally:  # they were told to end, whether or not somebody waits for it
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
    """The number of the process that watches, or watched, over a job."""
    pid = _read_json(folder / RECORD).get("pid")
    return str(pid) if isinstance(pid, int) else None


def read_state(folder: Path) -> dict[str, Any]:
    """What job.sh last said of itself; empty before it began."""
    return _read_json(folder / _STATE)


def read_manifest(folder: Path) -> dict[str, Any]:
    """What was submitted; empty where that cannot be read."""
    return _read_json(folder / MANIFEST)


def write_state(folder: Path, **changes: Any) -> None:
    """Corrects what job.sh said of itself, where it ended before it could."""
    values = {"step": "", "restarts": 0, **read_state(folder), **changes, "time": now()}
    atomic_write_text(folder / _STATE, json.dumps(values) + "\n")


def _unwatched(folder: Path) -> list[int]:
    """Living processes of a job, however it was started; a job.sh that was started by hand marks only what it starts."""
    found = living(marked(FOLDER_VARIABLE, str(folder)))
    above = {number for pid in found if (number := parent(pid)) is not None}.difference(found)
    scripts = [pid for pid in above if any(Path(word).name == _SCRIPT for word in command_words(pid))]
    return [*scripts, *found]  # a script hears first that no further step is wanted


def _end_unwatched(folder: Path) -> None:
    """Does what the process that watched would have done: asks all of them to end, waits, and kills what is left."""
    began = time.monotonic()
    told: set[int] = set()
    while left := _unwatched(folder):
        spent = time.monotonic() - began
        if spent > KILL_WAIT_SECONDS + _GONE_SECONDS:
            return
        if spent > KILL_WAIT_SECONDS:
            signal_each(left, signal.SIGKILL)
        else:
            signal_each([pid for pid in left if pid not in told], signal.SIGTERM)
            told.update(left)
        time.sleep(0.1)


def _is_here(record: dict[str, Any]) -> bool:
    """Whether a process of this machine is meant, which may have got another name meanwhile."""
    if record.get("host") == socket.gethostname():
        return True
    return bool(here := machine()) and record.get("machine") == here


def _is_watched(record: dict[str, Any]) -> bool:
    if not _is_here(record) or not isinstance(record.get("pid"), int):
        return False
    return Process(record["pid"], str(record.get("started", ""))).is_alive()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there, or being written by an old file system
        return {}
    return values if isinstance(values, dict) else {}
