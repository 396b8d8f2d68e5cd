"""Finds the functions of a file that training steps in other files call, such as a loss in a utils.py."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from portwright.errors import UserError
from portwright.port.files import find_files
from portwright.port.project import Project, digest, is_marked, read_source
from portwright.port.source import Source, UnreadableError, read_bytes

MOST_HOPS = 2  # a step calls a function in another file, which calls one in a third
_MOST_FILES = 2000
_FEW_FILES = 200  # in larger projects only files with a step are read for the second hop
_IMPORT = re.compile(rb"^[ \t]*(?:from|import)\b([^#\n(]*(?:\([^)]*\))?[^#\n]*)", re.MULTILINE)
_WORD = re.compile(rb"\w+")
_STEP_SIGNS = (b".backward(", b"def forward", b"def training_step")


@dataclass
class _Known:
    members: tuple[Path, ...] = ()
    importing: dict[bytes, list[Path]] | None = None
    num_files: int = 0
    with_step: set[Path] = field(default_factory=set)
    digests: dict[Path, str] = field(default_factory=dict)
    called: dict[tuple[Path, int], frozenset[str]] = field(default_factory=dict)
    seen: dict[tuple[Path, Any], bool] = field(default_factory=dict)


_known: WeakKeyDictionary[Project, _Known] = WeakKeyDictionary()


def remember_members(project: Project, files: Iterable[Path]) -> None:
    """Remembers the files that are checked together; without a pyproject.toml or the like they are the project."""
    _known.setdefault(project, _Known()).members = tuple(files)


def forget(project: Project) -> None:
    """Forgets what was read from steps, after the text of a file has changed."""
    known = _known.get(project)
    if known is not None:
        known.called.clear()
        known.seen.clear()


def functions_called_from_steps(
    project: Project, path: Path, hops: int, calls_of: Callable[[Path], Iterable[str]]
) -> set[str]:
    """Names of a file's top-level functions that a step of another file calls, through at most `hops` files.

    `calls_of` gives the functions in other files that the steps of a file call.
    """
    known = _known.setdefault(project, _Known())
    found: set[str] = set()
    for importer in importers(project, path):
        if importer not in known.with_step and (hops < MOST_HOPS or known.num_files > _FEW_FILES):
            continue
        key = (importer, hops - 1)
        if key not in known.called:
            # Only names are kept, since syntax trees in memory slow down garbage collection.
            known.called[key] = frozenset(calls_of(importer))
        project.consulted[str(importer)] = known.digests[importer]
        prefix = f"{path}::"
        found.update(name[len(prefix) :] for name in known.called[key] if name.startswith(prefix))
    return found


def is_named_elsewhere(project: Project, path: Path, pattern: str, only_importers: bool) -> bool:
    """Whether a pattern occurs in another file of the project, or only in one that imports this file."""
    known, nearby = _known.setdefault(project, _Known()), importers(project, path)
    asked = [file for file in (nearby if only_importers else sorted(known.digests)) if file != path]
    project.consulted.update({str(file): known.digests[file] for file in asked})
    return any(re.search(pattern.encode(), _data(project, file)) for file in asked)


def importers(project: Project, path: Path) -> Sequence[Path]:
    """The project's files that may import this one."""
    known = _known.setdefault(project, _Known())
    if known.importing is None:
        known.importing = {}
        files = _list_files(project, known, path)
        known.num_files = len(files)
        for file in files:
            try:
                data = _data(project, file)
            except UnreadableError:
                continue
            known.digests[file] = digest(data)
            if any(sign in data for sign in _STEP_SIGNS):
                known.with_step.add(file)
            for word in {word for line in _IMPORT.findall(data) for word in _WORD.findall(line)}:
                known.importing.setdefault(word, []).append(file)
    stem = path.parent.name if path.name == "__init__.py" else path.stem
    return [file for file in known.importing.get(os.fsencode(stem), ()) if file != path]


def any_has(project: Project, paths: Iterable[Path], has: Callable[[Source, Project], bool]) -> bool:
    """Whether `has` is true for one of the files; answers are kept until a file changes."""
    known = _known.setdefault(project, _Known())
    for path in paths:
        key = (path, has)
        try:
            data = _data(project, path)
            project.consulted[str(path)] = digest(data)
            if key not in known.seen:
                known.seen[key] = False  # ends recursion where two files import each other
                known.seen[key] = has(project.overlay.get(path) or read_source(path, data), project)
        except UnreadableError:
            continue
        if known.seen[key]:
            return True
    return False


def _data(project: Project, path: Path) -> bytes:
    written = project.overlay.get(path)
    return written.data if written is not None else read_bytes(path)


def _list_files(project: Project, known: _Known, path: Path) -> list[Path]:
    if is_marked(project.root):
        named = [project.root]
    else:
        folders = {member.parent for member in (*known.members, path)}
        beside = (file for folder in sorted(folders) for file in sorted(folder.glob("*")))
        named = [file for file in beside if file.suffix == ".py" and file.is_file()]
    try:
        return find_files(named)[:_MOST_FILES]
    except UserError:
        return list(known.members)
