"""Processes of this machine: which one is meant, and all that it has started."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, linux/prctl.h
_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


@dataclass(frozen=True)
class Process:
    """A process number with the moment at which it began: numbers are used again, moments are not."""

    pid: int
    started: str

    @staticmethod
    def here() -> Process:
        return Process(os.getpid(), started_at(os.getpid()) or "")

    def is_alive(self) -> bool:
        """A zombie has ended: it waits only for its parent to ask."""
        return bool(self.started) and started_at(self.pid) == self.started


def started_at(pid: int) -> str | None:
    """When a process began, in words that differ for another one of the same number; None where there is none."""
    if not _PROC.joinpath("self").exists():
        return _started_by_ps(pid)
    fields = _stat(pid)
    if fields is None or fields[0] in ("Z", "X"):
        return None
    # Ticks since the machine's start, and which start that was.
    return f"{fields[19]}@{_boot()}"


def machine() -> str:
    """Names where process numbers mean something: this start of the machine, and the process namespace (a container's) on it.

    A new host name does not change it. Empty where it is not known.
    """
    try:
        namespace = _PROC.joinpath("self/ns/pid").stat().st_ino
    except OSError:
        return ""
    return f"{boot}.{namespace}" if (boot := _boot()) else ""


def parent(pid: int) -> int | None:
    """The number of the process that started another one, or has taken it over."""
    fields = _stat(pid)
    return int(fields[1]) if fields is not None else None


def command_words(pid: int) -> list[str]:
    """The words that a process was started with; none where it may not be looked at."""
    try:
        text = _PROC.joinpath(str(pid), "cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in text.rstrip(b"\0").split(b"\0")]


def descendants(pid: int) -> list[int]:
    """All that a process has started, children before grandchildren."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    rest = [pid]
    while rest:
        born = children.get(rest.pop(0), [])
        found += born
        rest += born
    return found


def living(pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if (fields := _stat(pid)) is not None and fields[0] not in ("Z", "X")]


def signal_each(pids: Iterable[int], number: int) -> None:
    """Those that have ended meanwhile, or belong to another user, are left out."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def marked(name: str, value: str) -> list[int]:
    """Processes of this user whose environment has `name` with this value."""
    wanted = os.fsencode(f"{name}={value}")
    found = []
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in entry.joinpath("environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # another user's, or just ended
            continue
    return found


def die_with_parent() -> Callable[[], None]:
    """For `preexec_fn`: the child is killed when the thread that started it is gone, however that went.

    It also hears of its own children again, where its parent has that blocked for `wait_for_a_child`.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    parent = os.getpid()

    def arm() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        if prctl is not None:
            prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
            if os.getppid() != parent:  # gone before the call
                os._exit(128 + signal.SIGKILL)

    return arm


def end_with_parent() -> None:
    """The same for this very process: it is killed when its parent is gone."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def wait_for_a_child(seconds: float) -> None:
    """Sleeps until a child ends, which the caller has blocked SIGCHLD for, or the time is over."""
    if hasattr(signal, "sigtimedwait"):
        signal.sigtimedwait({signal.SIGCHLD}, seconds)
    else:
        time.sleep(min(seconds, 0.05))


def adopt_orphans() -> None:
    """What descendants leave behind becomes a child of this process, so that none is lost sight of."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _stat(pid: int) -> list[str] | None:
    """The fields behind the name, which may hold spaces and brackets: state, parent, ..."""
    try:
        text = _PROC.joinpath(str(pid), "stat").read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return None
    return text.rpartition(")")[2].split()


def _boot() -> str:
    try:
        return _PROC.joinpath("sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started_by_ps(pid: int) -> str | None:
    done = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None
