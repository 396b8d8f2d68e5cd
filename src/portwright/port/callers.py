"""Which functions of a file the training steps of other files call: a loss, a mask, a dropout of their own in a utils.py."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from portwright.errors import UserError
from portwright.port.files import find_files
from portwright.port.names import Names
from portwright.port.project import Project, digest, read_source
from portwright.port.roots import is_marked
from portwright.port.source import UnreadableError, read_bytes
from portwright.port.tree import Tree

if TYPE_CHECKING:
    from portwright.port.steps import Steps

MOST_HOPS = 2  # a step calls a function in another file, which calls one in a third
_MOST_FILES = 2000
_FEW_FILES = 200  # up to so many, files without a step of their own are looked into for the second hop
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


_known: WeakKeyDictionary[Project, _Known] = WeakKeyDictionary()


def remember_members(project: Project, files: Iterable[Path]) -> None:
    """The files that are looked at together; without a sign of where a project begins, they are the project."""
    _known.setdefault(project, _Known()).members = tuple(files)


def forget(project: Project) -> None:
    """Looks at steps anew; the text of a file has changed."""
    known = _known.get(project)
    if known is not None:
        known.called.clear()


def functions_called_from_steps(steps: Steps, hops: int) -> set[str]:
    """Names of the file's top-level functions that a step of another file calls, through at most `hops` files."""
    project, path = steps.names.project, steps.names.path
    known = _known.setdefault(project, _Known())
    found: set[str] = set()
    for importer in _importers(project, known, path):
        if importer not in known.with_step and (hops < MOST_HOPS or known.num_files > _FEW_FILES):
            continue
        key = (importer, hops - 1)
        if key not in known.called:
            steps_there = _make_steps(project, importer)
            # Only names are kept: trees that stay alive make every collection of garbage slower.
            known.called[key] = frozenset(steps_there.calls_to_other_files(hops - 1) if steps_there else ())
        project.consulted[str(importer)] = known.digests[importer]
        prefix = f"{path}::"
        found.update(name[len(prefix) :] for name in known.called[key] if name.startswith(prefix))
    return found


def _make_steps(project: Project, path: Path) -> Steps | None:
    from portwright.port.steps import Steps

    try:
        tree = Tree((project.overlay.get(path) or read_source(path)).parse())
    except UnreadableError:
        return None
    return Steps(tree, Names(path, tree, project))


def _importers(project: Project, known: _Known, path: Path) -> Sequence[Path]:
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
    return [file for file in known.importing.get(stem.encode(), ()) if file != path]


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
