"""What a path is mounted from, as Linux tells it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TABLE = Path("/proc/self/mounts")


@dataclass(frozen=True)
class Mount:
    device: str  # /dev/sda1, server:/export
    kind: str  # ext4, nfs, lustre


def find_mount(path: Path) -> Mount | None:
    """The mount that a path is on, or would be; None where nobody tells."""
    try:
        lines = TABLE.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    mounts = {}
    for line in lines:
        fields = line.split()
        if len(fields) >= 3:  # of two on one place the later covers the earlier
            mounts[fields[1].replace("\\040", " ")] = Mount(fields[0], fields[2])
    return next((mounts[str(place)] for place in (path, *path.parents) if str(place) in mounts), None)
