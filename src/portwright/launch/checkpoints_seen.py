"""The checkpoints in a run's folder, by file names and sizes alone, of either framework."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FOLDER = re.compile(r"checkpoint_(0|[1-9][0-9]*)", re.ASCII)
_INDEX = re.compile(r"model\.ckpt-([0-9]+)\.index", re.ASCII)


@dataclass(frozen=True)
class CheckpointSeen:
    """A finished checkpoint; its bytes are not checked here, but by `portwright checkpoints`."""

    step: int
    path: str
    size_bytes: int
    written: float  # wall time


def list_seen(model_dir: Path) -> list[CheckpointSeen]:
    """Finished checkpoints, the one written first first; none where the folder is not there. May raise an OSError."""
    found = []
    try:
        entries = list(model_dir.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    for entry in entries:
        try:
            if match := _FOLDER.fullmatch(entry.name):
                found.append(_of_folder(entry, int(match[1])))
            elif match := _INDEX.fullmatch(entry.name):
                found.append(_of_index(entry, int(match[1])))
        except (
            OSError
        ):  # removed meanwhile, as the run keeps only the newest; or its manifest is not there yet
            continue
    return sorted(found, key=lambda seen: (seen.written, seen.step))


def _of_folder(folder: Path, step: int) -> CheckpointSeen:
    written = (folder / "manifest.json").stat().st_mtime  # it is written last
    size = sum(file.stat().st_size for file in folder.iterdir())
    return CheckpointSeen(step, str(folder), size, written)


def _of_index(index: Path, step: int) -> CheckpointSeen:
    name = index.name.removesuffix(".index")
    files = [index, *index.parent.glob(f"{name}.data-*"), *index.parent.glob(f"{name}.meta")]
    size = sum(file.stat().st_size for file in files)
    return CheckpointSeen(step, str(index.with_name(name)), size, index.stat().st_mtime)
