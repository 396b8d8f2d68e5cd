"""Reads one entry script: the files that it imports, the imports not followed, and who owns the training loop."""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from portwright.port.files import show
from portwright.port.owners import Owner, Reach, Reader, find_owners

_MOST_FILES = 2000
_CONDITIONS = (ast.If, ast.IfExp, ast.BoolOp, ast.Compare)
_RUNS_CODE = re.compile(
    rb"^(?:if[ \t]+__name__|for |while |with |\w[\w.]*\(|\w[^\n#]*=[^\n#]*\w\()", re.MULTILINE
)
_FOR_A_GPU = re.compile(rb"\bcuda\b|\bdevice\b|accelerator|\bgpus?\b", re.IGNORECASE)


@dataclass(frozen=True)
class Place:
    """A line of a file; in a notebook, the line of a cell."""

    path: str
    line: int
    cell: str = ""

    def __str__(self) -> str:
        where = f", {self.cell}line " if self.cell else ":"
        return f"{show(self.path)}{where}{self.line}"


# an import, why it was not followed, and its place
NotFollowed = tuple[str, str, Place]


@dataclass(frozen=True)
class Look:
    """What the text of an entry script and of the files that it imports says."""

    entry: Path
    files: tuple[Path, ...]  # the entry first
    not_followed: tuple[NotFollowed, ...]
    owners: tuple[tuple[Owner, Place], ...]
    uses_gpu: Place | None  # a line that uses a GPU unconditionally
    names_device: bool  # whether any file mentions a device


def look_at(entry: Path, reader: Reader, exclude: Sequence[str] = (), deep: bool = True) -> Look:
    """Follows the imports of an entry, and finds who owns the loop in the code that it reaches."""
    files, not_followed = _follow(entry, reader, exclude)
    reach = Reach(reader, entry, files, deep)
    seen = find_owners(reach)
    return Look(
        entry,
        tuple(files),
        tuple(not_followed),
        tuple((each.owner, _place(reader, each.path, each.line)) for each in seen),
        next((p for path in reach.files if (p := _unconditional_gpu(reader, reach, path)) is not None), None),
        any(_FOR_A_GPU.search(file.source.data) for file in reach.files.values()),
    )


def find_entries(files: Sequence[Path], reader: Reader, exclude: Sequence[str] = ()) -> list[Look]:
    """Reads the files of a folder that start a training when they are run."""
    looks = []
    for path in files:
        file = reader.file(path)
        if file is not None and _RUNS_CODE.search(file.source.data):
            look = look_at(path, reader, exclude, deep=b"__main__" in file.source.data)
            looks += [look] if look.owners else []
    return looks


def _follow(entry: Path, reader: Reader, exclude: Sequence[str]) -> tuple[list[Path], list[NotFollowed]]:
    files: list[Path] = [entry]
    not_followed: list[NotFollowed] = []
    known = {entry}
    for path in files:  # grows in the loop
        imports = reader.imports(path)
        not_followed += [
            (each.what, each.why, _place(reader, path, each.line)) for each in imports.not_followed
        ]
        for module in sorted(imports.files - known):
            known.add(module)
            if _is_excluded(module, reader.project.root, exclude):
                not_followed.append((show(module), "pyproject.toml excludes it", Place(str(path), 1)))
            elif len(files) < _MOST_FILES:
                files.append(module)
            else:
                why = f"more than {_MOST_FILES} files are imported"
                not_followed.append((show(module), why, Place(str(path), 1)))
    return files, not_followed


def _is_excluded(path: Path, root: Path, exclude: Sequence[str]) -> bool:
    if root not in path.parents:
        return False
    relative = path.relative_to(root)
    parts = [*(p.as_posix() for p in relative.parents), relative.as_posix(), *relative.parts]
    return any(fnmatch.fnmatch(part, pattern.rstrip("/")) for pattern in exclude for part in parts)


def _unconditional_gpu(reader: Reader, reach: Reach, path: Path) -> Place | None:
    """A line of this file that uses a GPU, or what only a GPU has, under no condition."""
    tree = reach.files[path].tree
    for node in sorted((n for n in reach.nodes(path) if _uses_gpu(n)), key=lambda n: n.lineno):  # type: ignore[attr-defined]
        if not any(isinstance(a, _CONDITIONS) for a in tree.ancestors(node)):
            return _place(reader, path, node.lineno)  # type: ignore[attr-defined]
    return None


def _uses_gpu(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        given = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
        is_call = isinstance(node.func, ast.Attribute) and node.func.attr == "cuda"
        return is_call or given.get("fp16") is True or given.get("accelerator") in ("gpu", "cuda")
    return isinstance(node, ast.Constant) and re.fullmatch(r"cuda(:\d+)?", str(node.value)) is not None


def _place(reader: Reader, path: Path, line: int) -> Place:
    file = reader.file(path)
    shown, _, cell = file.source.place(line, 1) if file is not None else (line, 1, "")
    return Place(str(path), shown, cell)
