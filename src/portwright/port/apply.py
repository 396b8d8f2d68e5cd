"""Ports whole projects: makes the patches of all files together, and writes them."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from portwright import __version__
from portwright.errors import UserError
from portwright.job.atomic import atomic_directory, atomic_write_bytes, explain_os_error
from portwright.port.callers import forget, remember_members
from portwright.port.check import UNREADABLE, Selection, check_source, unreadable
from portwright.port.files import COPY_MARK, show
from portwright.port.finding import Finding, Safety
from portwright.port.origin import STORE, Origin
from portwright.port.owners import Reader
from portwright.port.patch import Patch, make_patch
from portwright.port.project import Project, above_packages, find_root, group_by_root, read_source
from portwright.port.source import Source, UnreadableError
from portwright.port.undo import save_originals

_MAX_ROUNDS = 10
_MAX_COPIED_BYTES = 1_000_000  # larger files count as data and are not copied


@dataclass
class Port:
    """The result of a port: the changed files, the findings that were fixed, and those that are left."""

    changed: dict[Path, Patch] = field(default_factory=dict)
    fixed: list[Finding] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)

    def diff(self) -> str:
        return "".join(_diff(path, patch) for path, patch in sorted(self.changed.items()))


def make_port(files: Sequence[Path], selection: Selection, allow: Sequence[Safety]) -> Port:
    """Makes the patches of all files, each in view of the others'; a file that cannot be read becomes a finding."""
    port = Port()
    for root, members in group_by_root(files).items():
        _port_root(port, root, members, selection, allow)
    port.fixed.sort(key=lambda f: f.place)
    port.left.sort(key=lambda f: f.place)
    return port


def _port_root(
    port: Port, root: Path, files: Sequence[Path], selection: Selection, allow: Sequence[Safety]
) -> None:
    overlay: dict[Path, Source] = {}
    project = Project(root, overlay)
    remember_members(project, files)
    originals: dict[Path, Source] = {}
    fixed: dict[Path, list[Finding]] = {}
    left: dict[Path, list[Finding]] = {}
    needs: dict[Path, set[str]] = {}
    waiting = list(files)
    # A rewritten file can change what names mean in files that import it, so those are checked again.
    for _ in range(_MAX_ROUNDS):
        changed: set[str] = set()
        for path in waiting:
            project.consulted = {}
            try:
                before = overlay.get(path) or read_source(path)
                originals.setdefault(path, before)
                patch = make_patch(before, project, selection, allow)
                patch.after.to_bytes()
            except UnreadableError as error:
                left[path] = [unreadable(path, error, selection.targets)]
                if path in originals:  # it can be read but not written back: its findings are kept
                    overlay.pop(path, None)
                    found = check_source(originals[path], project, selection)
                    left[path] += [f for f in found if f.code != UNREADABLE]
                continue
            fixed[path] = [*fixed.get(path, []), *patch.fixed]
            left[path] = patch.left
            needs[path] = set(project.consulted)
            if patch.is_change:
                overlay[path] = patch.after
                project.forget(path)
                forget(project)
                changed.add(str(path))
        waiting = [path for path in files if needs.get(path, set()) & changed]
        if not waiting:
            break
    for path in files:
        port.left += left.get(path, [])
        after = overlay.get(path)
        if after is not None and after.data != originals[path].data:
            port.changed[path] = Patch(originals[path], after, fixed.get(path, []), left.get(path, []))
            port.fixed += fixed.get(path, [])


def write_in_place(port: Port, origin: Origin | None = None) -> None:
    """Replaces the changed files after saving the originals. A file that cannot be written becomes a finding."""
    by_root: dict[Path, dict[Path, Patch]] = {}
    for path, patch in port.changed.items():
        by_root.setdefault(find_root(path), {})[path] = patch
    saved: dict[Path, bytes] = {}
    for root, patches in by_root.items():
        contents = {}
        for path, patch in patches.items():
            try:
                if path.read_bytes() != patch.before.to_bytes():
                    raise UserError("it was changed while it was being ported.", "Call port again.")
                if not os.access(path, os.W_OK):
                    raise UserError("it is read-only.", "Ask for write permission, or use --out.")
                contents[path] = patch.after.to_bytes()
            except (UserError, OSError) as error:
                _report_unwritten(port, path, error)
        try:
            if contents:
                save_originals(root, contents, origin)
            saved.update(contents)
        except (UserError, OSError) as error:  # the originals cannot be saved: these files stay as they are
            reason = explain_os_error(error, root / STORE) if isinstance(error, OSError) else error
            for path in contents:
                _report_unwritten(port, path, reason)
    for path, content in saved.items():
        try:
            mode = path.stat().st_mode
            atomic_write_bytes(path, content)
            path.chmod(mode & 0o7777)
        except (UserError, OSError) as error:
            _report_unwritten(port, path, error)


def _report_unwritten(port: Port, path: Path, error: Exception) -> None:
    patch = port.changed.pop(path)
    port.fixed = [f for f in port.fixed if f.path != str(path)]
    blocked = unreadable(
        path, UnreadableError(str(error)), sorted({t for f in patch.fixed for t in f.targets})
    )
    blocked = replace(
        blocked, message=f"not rewritten: {error}", cure="See to it that it can be written, or use --out."
    )
    others = (f for f in port.left if f.path != str(path))
    port.left = sorted([*others, blocked, *patch.fixed], key=lambda f: f.place)


def write_copy(
    port: Port, paths: Sequence[Path], files: Sequence[Path], out: Path, origin: Origin | None = None
) -> list[Path]:
    """Writes a copy that runs by itself: the ported files, what they import, and small files beside them.

    Returns the files that were not copied, because they are too large or cannot be read.
    """
    _check_out(out, paths)
    top = common_folder(paths, files)
    wanted = _companions(paths, files, top, out)
    left_out = []
    written: dict[str, str] = {}
    with atomic_directory(out) as folder:
        for path in wanted:
            relative = path.relative_to(top)
            target = folder / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            patch = port.changed.get(path)
            if patch is not None:
                target.write_bytes(patch.after.to_bytes())
                target.chmod(path.stat().st_mode & 0o7777)
            elif not _is_readable(path) or (path not in files and path.stat().st_size > _MAX_COPIED_BYTES):
                left_out.append(path)
                continue
            else:
                shutil.copy2(path, target)
            written[relative.as_posix()] = hashlib.sha256(target.read_bytes()).hexdigest()
        mark = folder / COPY_MARK
        mark.parent.mkdir()
        made_from = {"origin": origin.as_dict()} if origin else {}
        mark.write_text(json.dumps({"portwright": __version__, "files": written, **made_from}, indent=2))
    return left_out


def _is_readable(path: Path) -> bool:
    """Whether it is a regular file that may be read."""
    return path.is_file() and os.access(path, os.R_OK)


def _check_out(out: Path, paths: Sequence[Path]) -> None:
    """Refuses an --out folder with anything in it but an unchanged earlier copy."""
    real = Path(os.path.realpath(out))
    if any(real in (here, *here.parents) for here in map(Path, map(os.path.realpath, paths))):
        raise UserError(
            f"--out {out} is or holds what is to be ported.", "Choose another folder, or use --write."
        )
    if not os.path.lexists(out):
        return
    if not out.is_dir():
        raise UserError(f"--out {out} is a file.", "Choose another folder.")
    if not any(out.iterdir()):
        return
    try:
        files = json.loads((out / COPY_MARK).read_text())["files"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"--out {out} exists and was not written by `portwright port`.",
            "Choose another folder, or empty it.",
        ) from None
    for path in sorted(out.rglob("*")):
        relative = path.relative_to(out)
        if path.is_dir() or relative == COPY_MARK or "__pycache__" in relative.parts:
            continue
        if hashlib.sha256(path.read_bytes()).hexdigest() != files.get(relative.as_posix()):
            raise UserError(
                f"{path} was changed or added since it was ported.",
                "Choose another folder, or remove this one.",
            )


def common_folder(paths: Sequence[Path], files: Sequence[Path]) -> Path:
    """The folder at the top of a copy: that of the files, or the one above a package that imports itself by name."""
    folders = [str(p.absolute() if p.is_dir() else p.absolute().parent) for p in paths]
    top = Path(os.path.normpath(os.path.commonpath(folders)))
    if not (top / "__init__.py").is_file():
        return top
    above = above_packages(top)
    name = top.relative_to(above).parts[0]
    by_name = re.compile(rb"^[ \t]*(from|import)[ \t]+" + re.escape(name).encode() + rb"\b", re.MULTILINE)
    return above if any(by_name.search(path.read_bytes()) for path in files if _is_readable(path)) else top


def _companions(paths: Sequence[Path], files: Sequence[Path], top: Path, out: Path) -> list[Path]:
    """The files to copy: those that were named, the modules below `top` that they import, and all of named folders."""
    wanted = set(files)
    skipped = {"__pycache__", "node_modules", "venv", "env"}
    for path in paths:
        if not path.is_dir():
            continue
        for folder, names, members in os.walk(path.absolute()):
            here = Path(os.path.normpath(folder))
            names[:] = [
                n for n in names
                if not n.startswith(".") and n not in skipped and not (here / n / COPY_MARK).exists()
                and (here / n) != out.absolute() and not (here / n / "pyvenv.cfg").exists() and not (here / n).is_symlink()
            ]  # fmt: skip
            wanted.update(here / m for m in members if (here / m).is_file())
    waiting = list(files)
    while waiting:
        new = {m for m in _imports_of(waiting.pop()) if m not in wanted and top in m.parents}
        wanted |= new
        waiting += new
    return sorted(wanted)


def _imports_of(path: Path) -> list[Path]:
    """The project's own modules that a file imports."""
    return sorted(Reader(find_root(path)).imports(path).files)


def not_ported(files: Sequence[Path]) -> list[Path]:
    """Modules of the project that the files import but that were not ported."""
    known = set(files)
    modules = {module for path in files for module in _imports_of(path)}
    return sorted(m for m in modules if m not in known and m.name != "__init__.py")


def _diff(path: Path, patch: Patch) -> str:
    before = patch.before.text.splitlines(keepends=True)
    after = patch.after.text.splitlines(keepends=True)
    lines = difflib.unified_diff(before, after, f"a/{show(path)}", f"b/{show(path)}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
