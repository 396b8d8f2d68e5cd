"""Saves the originals of ported files, and restores them."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from portwright.errors import UserError
from portwright.job.atomic import atomic_directory, atomic_write_bytes, atomic_write_text, remove_directory
from portwright.port.files import show
from portwright.port.origin import IN_PLACE_MARK, STORE, Origin


@dataclass(frozen=True)
class Undone:
    """A file that undo restored, or that was unchanged already."""

    path: Path
    was_changed: bool


def save_originals(root: Path, contents: Mapping[Path, bytes], origin: Origin | None = None) -> Path:
    """Saves the files before they are rewritten; `contents` has their new bytes."""
    store = root / STORE
    entries = []
    folder = store / f"{time.strftime('%Y%m%dT%H%M%S')}-{time.time_ns() % 10**9:09d}-{secrets.token_hex(3)}"
    with atomic_directory(folder) as temp:
        for number, (path, after) in enumerate(sorted(contents.items())):
            before = path.read_bytes()
            (temp / f"{number:05d}").write_bytes(before)
            name = os.path.relpath(path, root)
            entries.append(
                {"path": name, "file": f"{number:05d}", "before": _sha(before), "after": _sha(after)}
            )
        (temp / "files.json").write_text(json.dumps(entries, indent=1), encoding="utf-8")
        if origin is not None:
            saved = {
                os.path.relpath(root / e["path"], origin.folder): str(folder / e["file"]) for e in entries
            }
            document = {"origin": replace(origin, saved=saved).as_dict()}
            (temp / IN_PLACE_MARK).write_text(json.dumps(document), encoding="utf-8")
    ignore = root / ".portwright" / ".gitignore"
    if not ignore.exists():
        atomic_write_text(ignore, "*\n")
    return folder


def undo(paths: Sequence[Path], force: bool = False) -> list[Undone]:
    """Restores what `port --write` replaced last, for each file, or each file below a folder.

    Refuses to write anything if a file was edited since; `force` overwrites such edits.
    """
    chosen: dict[Path, tuple[Path, dict[str, Any], bytes]] = {}
    for path in paths:
        found = _newest(path)
        if not found:
            raise UserError(
                f"nothing was saved for '{path}'.",
                "Only files that `portwright port --write` changed can be put back.",
            )
        chosen.update(found)
    undone, originals = [], {}
    for path, (folder, entry, original) in sorted(chosen.items()):
        current = path.read_bytes() if path.is_file() else None
        if current is not None and _sha(current) not in (entry["after"], entry["before"]) and not force:
            raise UserError(
                f"{show(path)} was edited after it was ported.",
                "Keep a copy of your edits, then call undo with --force.",
            )
        if _sha(original) != entry["before"]:
            raise UserError(f"the saved original of {show(path)} is damaged.", f"Look into {folder}.")
        undone.append(Undone(path, current != original))
        originals[path] = original
    for path, original in originals.items():
        mode = path.stat().st_mode if path.is_file() else None
        atomic_write_bytes(path, original)
        if mode is not None:
            path.chmod(mode & 0o7777)
        _remove_saved(*chosen[path][:2])
    return undone


def _newest(path: Path) -> dict[Path, tuple[Path, dict[str, Any], bytes]]:
    """The newest saved original of each file at or below a path, with its folder and entry."""
    wanted = Path(os.path.normpath(path.absolute()))
    found: dict[Path, tuple[Path, dict[str, Any], bytes]] = {}
    for root in (wanted, *wanted.parents, *_roots_below(wanted)):
        store = root / STORE
        if not store.is_dir():
            continue
        for folder in store.iterdir():
            if folder.name.startswith("."):
                continue
            for entry in _entries(folder):
                file = Path(os.path.normpath(root / entry["path"]))
                if file != wanted and wanted not in file.parents:
                    continue
                if file not in found or found[file][0].name < folder.name:  # names begin with the time
                    found[file] = (folder, entry, (folder / entry["file"]).read_bytes())
    return found


def _roots_below(folder: Path) -> Iterator[Path]:
    """Folders below one that have an undo store, as after porting several projects at once."""
    for here, names, _ in os.walk(folder):
        if STORE.parts[0] in names and Path(here) != folder:
            yield Path(here)
        names[:] = [
            name for name in names if not name.startswith(".") and name not in ("node_modules", "__pycache__")
        ]


def _entries(folder: Path) -> list[dict[str, Any]]:
    try:
        entries: list[dict[str, Any]] = json.loads((folder / "files.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"what was saved in {folder} cannot be read: {error}.", "Remove that folder if it is of no use."
        ) from None
    return entries


def _remove_saved(folder: Path, entry: dict[str, Any]) -> None:
    """Removes one saved file; removes the folder with the last one."""
    rest = [other for other in _entries(folder) if other["path"] != entry["path"]]
    if rest:
        atomic_write_text(folder / "files.json", json.dumps(rest, indent=1))
        (folder / entry["file"]).unlink(missing_ok=True)
    else:
        remove_directory(folder)


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
