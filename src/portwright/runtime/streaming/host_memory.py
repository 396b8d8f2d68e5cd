"""How much host memory a process may still take: the machine's, or what its container leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from portwright.errors import UserError
from portwright.job.sizes import show_bytes

SPARE_BYTES = 256 * 2**20  # left for everything else that the process will want


@dataclass(frozen=True)
class HostMemory:
    """What can be taken without swapping, and what sets that limit."""

    available_bytes: int
    limit_bytes: int
    limited_by: str  # for a person: "this machine", "the container's limit"


def read_host_memory(root: Path = Path("/")) -> HostMemory:
    """The tightest of /proc/meminfo and the memory limits of every cgroup (v1, v2 or both) that the process is in."""
    best = _machine(root)
    for limit, used in _cgroup_limits(root):
        if limit < best.limit_bytes and limit - used < best.available_bytes:
            best = HostMemory(max(0, limit - used), limit, "the container's limit")
    return best


def ask_for(num_bytes: int, what: str, cure: str, memory: HostMemory | None = None) -> None:
    """Raises UserError when so much more host memory is not there; to be asked before it is allocated.

    Linux hands out addresses for memory that it does not have and kills the process when they are touched, so that
    waiting for an allocation to fail is no check.
    """
    memory = read_host_memory() if memory is None else memory
    if num_bytes + SPARE_BYTES > memory.available_bytes:
        raise HostMemoryError(
            f"not enough host memory for {what}: {show_bytes(num_bytes)} needed, {show_bytes(memory.available_bytes)} free "
            f"of the {show_bytes(memory.limit_bytes)} of {memory.limited_by}.",
            cure,
            {"needed_bytes": num_bytes, "available_bytes": memory.available_bytes},
        )


class HostMemoryError(UserError):
    """The host has not the memory that was asked for."""


def _machine(root: Path) -> HostMemory:
    fields: dict[str, int] = {}
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()
        if number and number[0].isdigit():
            fields[name] = int(number[0]) * 1024  # the kernel writes kB and means KiB
    if "MemTotal" in fields:
        # MemAvailable is missing before Linux 3.14 and in some sandboxes.
        free = fields.get("MemFree", fields["MemTotal"]) + fields.get("Cached", 0) + fields.get("Buffers", 0)
        return HostMemory(
            fields.get("MemAvailable", min(free, fields["MemTotal"])), fields["MemTotal"], "this machine"
        )
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return HostMemory(total, total, "this machine")


def _cgroup_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes in use that cannot be dropped) of each cgroup with a limit, from the process's own up to the root's."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                for folder in _upward(root / mount, path):
                    limits = [_number(folder / name) for name in ("memory.max", "memory.high")]
                    known = [limit for limit in limits if limit is not None]
                    used = _number(folder / "memory.current")
                    if known and used is not None:
                        yield min(known), used - _droppable(folder, "inactive_file")
        elif "memory" in controllers.split(","):
            for folder in _upward(root / "sys/fs/cgroup/memory", path):
                limit = _number(folder / "memory.limit_in_bytes")
                used = _number(folder / "memory.usage_in_bytes")
                if limit is not None and used is not None:
                    yield limit, used - _droppable(folder, "total_inactive_file")


def _upward(mount: Path, path: str) -> Iterator[Path]:
    """The cgroup's folder and those above it; inside a container `path` may name folders that only the host sees."""
    folder = mount / path.strip().lstrip("/")
    while True:
        if folder.is_dir():
            yield folder
        if folder == mount or mount not in folder.parents:
            return
        folder = folder.parent


def _droppable(folder: Path, field: str) -> int:
    """Page cache is counted as in use, and the kernel gives the inactive part of it up when memory is wanted."""
    for line in _read(folder / "memory.stat").splitlines():
        name, _, number = line.partition(" ")
        if name == field and number.strip().isdigit():
            return int(number)
    return 0


def _number(file: Path) -> int | None:
    text = _read(file).strip()
    return int(text) if text.isdigit() else None  # "max": no limit


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # not Linux, not this version of cgroups, or hidden from the container
        return ""
