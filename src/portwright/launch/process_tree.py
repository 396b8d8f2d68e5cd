"""Processes of this machine: how to identify one, find its descendants, and end them together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

KILL_WAIT_SECONDS = 30.0  # as SLURM's KillWait: between a SIGTERM and the SIGKILL behind it
_PROC = Path("/proc")
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)  # Linux has it
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, linux/prctl.h
_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


@dataclass(frozen=True)
class Process:
    """A process number with its start time, since the numbers are reused."""

    pid: int
    started: str

    @staticmethod
    def here() -> Process:
        return Process(os.getpid(), started_at(os.getpid()) or "")

    def is_alive(self) -> bool:
        """A zombie counts as ended."""
        return bool(self.started) and started_at(self.pid) == self.started


def started_at(pid: int) -> str | None:
    """A text that identifies a process's start, different for a later process of the same number; None without such a process."""
    if not _PROC.joinpath("self").exists():  # not Linux
        words = ["ps", "-o", "lstart=", "-p", str(pid)]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or None
    # Ticks since the machine's start, and the id of that start.
    return f"{_stat(pid)[19]}@{_boot()}" if living([pid]) else None


def machine() -> str:
    """Identifies the scope of process numbers: this start of the machine, and the process namespace (of a container).

    It does not depend on the host name. Empty where it is not known.
    """
    try:
        namespace = _PROC.joinpath("self/ns/pid").stat().st_ino
    except OSError:
        return ""
    return f"{boot}.{namespace}" if (boot := _boot()) else ""


def parent(pid: int) -> int | None:
    """The number of a process's parent, or of the process that adopted it."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def command_words(pid: int) -> list[str]:
    """The command line of a process; empty where it may not be read."""
    try:
        text = _PROC.joinpath(str(pid), "cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in text.rstrip(b"\0").split(b"\0")]


def descendants(pid: int) -> list[int]:
    """All descendants of a process, children before grandchildren."""
    children: dict[int, list[int]] = {}
    for number in _all_processes():
        if (above := parent(number)) is not None:
            children.setdefault(above, []).append(number)
    found: list[int] = []
    rest = [pid]
    while rest:
        born = children.get(rest.pop(0), [])
        found += born
        rest += born
    return found


def own_descendants() -> list[int]:
    return descendants(os.getpid())


def marked(name: str, value: str) -> list[int]:
    """Processes of this user whose environment has `name` with this value."""
    wanted = os.fsencode(f"{name}={value}")
    found = []
    for number in _all_processes():
        with contextlib.suppress(OSError):  # another user's, or just ended
            if wanted in _PROC.joinpath(str(number), "environ").read_bytes().split(b"\0"):
                found.append(number)
    return [number for number in found if number != os.getpid()]


def living(pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if (fields := _stat(pid)) and fields[0] not in ("Z", "X")]


def signal_each(pids: Iterable[int], number: int) -> None:
    """Sends a signal to processes; those that have ended, or belong to another user, are left out."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


class Ending:
    """Ends processes together: a SIGTERM to all of them, and half a minute later a SIGKILL to those that are left."""

    def __init__(self, find: Callable[[], list[int]]) -> None:
        self._find = find
        self._told_at: float | None = None

    @property
    def has_begun(self) -> bool:
        return self._told_at is not None

    def begin(self) -> None:
        """Sends the SIGTERM; more calls do nothing."""
        if self._told_at is None:
            self._told_at = time.monotonic()
            signal_each(self._find(), signal.SIGTERM)

    def press(self) -> None:
        """Kills what has not ended in time; a waiting caller calls it repeatedly."""
        if self._told_at is not None and time.monotonic() - self._told_at > KILL_WAIT_SECONDS:
            signal_each(self._find(), signal.SIGKILL)


def die_with_parent() -> Callable[[], None]:
    """For `preexec_fn`: the kernel kills the child when the thread that started it ends, in any way.

    It also unblocks SIGCHLD in the child, which a parent blocks for `wait_for_a_child`.
    """
    above = os.getpid()

    def arm() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        end_with_parent()
        if os.getppid() != above:  # gone before the call
            os._exit(128 + signal.SIGKILL)

    return arm


def end_with_parent() -> None:
    """The kernel kills this process when its parent ends."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def adopt_orphans() -> None:
    """Orphaned descendants become children of this process, so that it can find them all."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def wait_for_a_child(seconds: float) -> None:
    """Sleeps until a child ends or the time is over; the caller must have blocked SIGCHLD."""
    if hasattr(signal, "sigtimedwait"):
        signal.sigtimedwait({signal.SIGCHLD}, seconds)
    else:
        time.sleep(min(seconds, 0.05))


def _prctl(option: int, value: int) -> None:
    if _PRCTL is not None:
        _PRCTL(option, value, 0, 0, 0)


def _all_processes() -> Iterator[int]:
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if entry.name.isdecimal():
            yield int(entry.name)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may have spaces: state, parent, ...; empty without such a process."""
    try:
        text = _PROC.joinpath(str(pid), "stat").read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return []
    return text.rpartition(")")[2].split()


def _boot() -> str:
    try:
        return _PROC.joinpath("sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
