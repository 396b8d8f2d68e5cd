"""Which of the files that are looked at together belong to one project."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from portwright.port.project import _ROOT_SIGNS, find_root


def group_by_root(files: Sequence[Path]) -> dict[Path, list[Path]]:
    """The files by the folder that their project's absolute imports start from.

    Where no pyproject.toml or the like says where that is, a package's folder belongs to the one above it, and a folder to the
    nearest one above it from which a file was named too.
    """
    folders = {path.parent for path in files}
    roots = {folder: _root(folder, folders) for folder in folders}
    grouped: dict[Path, list[Path]] = {}
    for path in files:
        grouped.setdefault(roots[path.parent], []).append(path)
    return grouped


def is_marked(folder: Path) -> bool:
    """Whether a folder says of itself that a project begins there."""
    return any((folder / sign).exists() for sign in _ROOT_SIGNS)


def _root(folder: Path, named: set[Path]) -> Path:
    root = find_root(folder)
    if is_marked(root):
        return root
    while True:
        above = [parent for parent in folder.parents if parent in named]
        if above:
            folder = above[-1]
        elif (folder / "__init__.py").is_file() and folder.parent != folder:
            folder = folder.parent
        else:
            return folder
