"""Records with a port how it was made, so that a rewrite which changed the numbers can be found later."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from portwright.port.files import COPY_MARK
from portwright.port.finding import Finding

STORE = Path(".portwright") / "undo"  # in a project: the original files before rewrites
IN_PLACE_MARK = "port.json"  # in a folder of the undo store


@dataclass(frozen=True)
class Rewrite:
    """One rewritten place, as a line of the original."""

    code: str
    path: str  # relative to the origin's folder
    line: int
    message: str


@dataclass(frozen=True)
class Origin:
    """Where a port came from and how it was made."""

    folder: str  # absolute: paths of rewrites are relative to it
    paths: tuple[str, ...]  # absolute, as named on the command line
    target: str
    codes: tuple[str, ...]  # rules that ran
    unsafe: bool
    style: str = "in-place"
    rewrites: tuple[Rewrite, ...] = ()
    saved: dict[str, str] = field(default_factory=dict)  # in place: where originals are saved

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def make_origin(
    folder: Path,
    paths: Sequence[Path],
    target: str,
    codes: Sequence[str],
    unsafe: bool,
    fixed: Sequence[Finding],
) -> Origin:
    top = str(folder)
    return Origin(
        top,
        tuple(str(p.absolute()) for p in paths),
        target,
        tuple(codes),
        unsafe,
        rewrites=tuple(Rewrite(f.code, os.path.relpath(f.path, top), f.line, f.message) for f in fixed),
    )


def find_origin(path: Path) -> tuple[Path, Origin] | None:
    """The folder of the port that a file belongs to, and its origin; None where no port is recorded there."""
    here = Path(os.path.normpath(path.absolute()))
    for folder in here.parents:
        origin = read_origin(folder / COPY_MARK)
        if origin is not None:
            return folder, origin
        store = folder / STORE
        if store.is_dir():
            # The newest port of this file.
            for entry in sorted(store.iterdir(), reverse=True):
                origin = read_origin(entry / IN_PLACE_MARK)
                if origin is not None and any(Path(origin.folder, p) == here for p in origin.saved):
                    return folder, origin
    return None


def read_origin(mark: Path) -> Origin | None:
    """Reads an origin; None if the file is missing or of an earlier version without one."""
    try:
        document = json.loads(mark.read_text(encoding="utf-8"))
        row = document["origin"]
        return Origin(
            **{
                **row,
                "paths": tuple(row["paths"]),
                "codes": tuple(row["codes"]),
                "rewrites": tuple(Rewrite(**r) for r in row["rewrites"]),
            }
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
