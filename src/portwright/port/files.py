"""Finds the files of a command: those that were named, and Python files and notebooks below named folders."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from portwright.errors import UserError

SUFFIXES = (".py", ".ipynb")
COPY_MARK = Path(".portwright") / "port.json"  # in a folder that `port --out` wrote
_SKIPPED = frozenset(
    [
        "__pycache__",
        "node_modules",
        "site-packages",
        "venv",
        "env",
        "build",
        "dist",
        "wandb",
        "lightning_logs",
    ]
)


def find_files(paths: Sequence[Path], exclude: Sequence[str] = ()) -> list[Path]:
    """Sorted absolute paths, each file once even if several links lead to it.

    Hidden folders, environments and what `port --out` wrote are left out unless they are named.
    """
    found: dict[str, Path] = {}
    for path in paths:
        if not os.path.lexists(path):
            raise UserError(f"'{path}' does not exist.", "Name a Python file, a notebook or a folder.")
        if path.is_dir():
            files = _below(_absolute(path), _absolute(path), exclude)
        else:
            if path.suffix not in SUFFIXES and not path.is_symlink():
                raise UserError(
                    f"'{path}' is neither a .py nor a .ipynb file.",
                    "Name a Python file, a notebook or a folder.",
                )
            files = iter([_absolute(path)])
        for file in files:
            found.setdefault(os.path.realpath(file), file)
    return sorted(found.values())


def _absolute(path: Path) -> Path:
    """Makes a path absolute without following links, so that messages show the path as named."""
    return Path(os.path.normpath(path.absolute()))


def show(path: str | Path) -> str:
    """A path relative to the working directory, if it is below."""
    text = str(path)
    here = f"{Path.cwd()}{os.sep}"
    return text[len(here) :] if text.startswith(here) else text


def _below(
    folder: Path, top: Path, exclude: Sequence[str], seen: frozenset[str] = frozenset()
) -> Iterator[Path]:
    real = os.path.realpath(folder)
    is_above = folder != top and Path(real) in Path(os.path.realpath(top)).parents
    if real in seen or is_above:  # a link to a folder above
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda e: e.name)
    except OSError as error:
        if folder != top:  # an unreadable folder becomes a finding, and the others are still listed
            yield folder
            return
        raise UserError(
            f"Cannot list '{show(folder)}': {(error.strerror or str(error)).lower()}.",
            "Check its permissions, or leave it out with exclude.",
        ) from error
    for entry in entries:
        path = Path(entry.path)
        relative = path.relative_to(top).as_posix()
        if any(
            fnmatch.fnmatch(relative, p)
            or fnmatch.fnmatch(entry.name, p)
            or relative.startswith(p.rstrip("/") + "/")
            for p in exclude
        ):
            continue
        if _is_folder(entry):
            hidden = entry.name.startswith(".") or entry.name in _SKIPPED
            if not hidden and not _holds(path, COPY_MARK) and not _holds(path, Path("pyvenv.cfg")):
                yield from _below(path, top, exclude, seen | {real})
        elif path.suffix in SUFFIXES and not entry.name.startswith("."):
            yield path


def _holds(folder: Path, name: Path) -> bool:
    try:
        return (folder / name).exists()
    except OSError:  # no permission
        return False


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False
