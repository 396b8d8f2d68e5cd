"""`portwright port --style branches`: finds each file's training step, and adds the target's branch to it."""

from __future__ import annotations

import ast
import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from portwright.errors import UserError, suggest
from portwright.port.apply import Port, not_ported, write_copy, write_in_place
from portwright.port.branches.branch import add_branch
from portwright.port.branches.dialect import Dialect, find_dialects
from portwright.port.branches.hydra_main import handle_version
from portwright.port.branches.seen import SeenFile
from portwright.port.branches.switch import add_member
from portwright.port.branches.text import Refusal
from portwright.port.check import Selection, as_seen, check_source, unreadable
from portwright.port.files import show
from portwright.port.finding import Edit, Finding
from portwright.port.patch import Patch, places_before
from portwright.port.project import Project, find_root, read_source
from portwright.port.request import PortResult, find_strangers, select_for_port, shown
from portwright.port.rule import File
from portwright.port.source import Source, UnreadableError

NO_BRANCH = "PW003"
BRANCH = "PW004"
# Of the other rules, those about what the model and its batches are: the host's own branch keeps its devices, and its reads
# outside of the model.
_ABOUT_THE_GRAPH = ("PW1", "PW2", "PW3", "PW406", "PW6")


def port_branches(
    paths: Sequence[Path],
    targets: Sequence[str],
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    unsafe: bool = False,
    write: bool = False,
    out: Path | None = None,
) -> PortResult:
    """Adds each target's branch to the training scripts among these files; what it cannot do is a finding."""
    if write and out is not None:
        raise UserError(
            "--write and --out were both given.", "--write edits in place, --out writes a copy: choose one."
        )
    files, selection = select_for_port(paths, targets, select, ignore, several=True)
    known = find_dialects()
    for target in sorted(selection.targets - set(known)):
        raise UserError(
            f"there are no branches for '{target}'.",
            f"{suggest(target, known)} For others use --style in-place or --style layout.",
        )
    made = make_branches(files, [known[target] for target in sorted(selection.targets)], selection)
    too_large: list[Path] = []
    if write:
        write_in_place(made)
    elif out is not None:
        too_large = write_copy(made, paths, files, out)
    return PortResult(
        changed=[show(path) for path in sorted(made.changed)],
        fixed=[shown(f) for f in made.fixed],
        left=[*find_strangers(paths, files, selection), *(shown(f) for f in made.left)],
        diff=made.diff(),
        not_copied=[show(path) for path in too_large],
        not_ported=[show(path) for path in not_ported(files)],
    )


def make_branches(files: Sequence[Path], dialects: Sequence[Dialect], selection: Selection) -> Port:
    """Patches for all files; a target's branch changes a file whole or not at all, with the enumeration that it asks."""
    port, trains = Port(), False
    for path in files:
        root = _root_of(path, files)
        try:
            for dialect in dialects:
                source, project = _so_far(port, root, path)
                num_fixed, num_left = len(port.fixed), len(port.left)
                earlier = port.changed.get(path, Patch(source, source))
                trains |= _port_file(port, project, source, files, dialect)
                # An earlier branch moved the lines: a place is told where it was in the file before.
                port.fixed[num_fixed:] = places_before(replace(earlier, left=port.fixed[num_fixed:]))
                port.left[num_left:] = places_before(replace(earlier, left=port.left[num_left:]))
            asked = tuple(rule for rule in selection.rules if rule.code.startswith(_ABOUT_THE_GRAPH))
            source, project = _so_far(port, root, path)
            found = check_source(source, project, replace(selection, rules=asked))
            port.left += _in_the_graph(File(source, project, selection.targets), found)
        except UnreadableError as error:
            port.left.append(unreadable(path, error, selection.targets))
    if port.changed:
        for path in files:
            _let_old_hydra_run(port, path, files, dialects[0], selection)
    if not trains and not port.left:
        raise UserError(
            "no training step was found: no file calls backward() and an optimizer's step().",
            "Name the file with the training loop.",
        )
    port.fixed.sort(key=lambda f: f.place)
    port.left.sort(key=lambda f: f.place)
    return port


def _in_the_graph(file: File, findings: list[Finding]) -> list[Finding]:
    reads = any(f.code.startswith("PW2") for f in findings)
    nodes = ast.walk(file.tree.module) if reads else ()
    inside = {n.lineno for n in nodes if isinstance(n, ast.expr) and file.flow.in_forward(n)}
    return [f for f in findings if not f.code.startswith("PW2") or f.line in inside]


def _so_far(port: Port, root: Path, path: Path) -> tuple[Source, Project]:
    """A file, and its project, with the branches that were added before."""
    project = Project(root, {p: patch.after for p, patch in port.changed.items()})
    return project.overlay.get(path) or read_source(path), project


def _root_of(path: Path, files: Sequence[Path]) -> Path:
    """Where the project's imports start: its own signs, or else above the packages that were named."""
    root = find_root(path)
    top = Path(os.path.commonpath([str(file.parent) for file in files]))
    while (top / "__init__.py").exists() and top != top.parent:
        top = top.parent
    return top if root == path.parent and top in path.parents else root


def _port_file(
    port: Port,
    project: Project,
    source: Source,
    files: Sequence[Path],
    dialect: Dialect,
) -> bool:
    """Whether the file trains; adds its patch and its findings to the port."""
    file = File(source, project, frozenset({dialect.target}))
    left: list[Finding] = []
    try:
        if source.path.suffix == ".ipynb" and file.flow.backward_calls:
            raise Refusal(
                file.flow.backward_calls[0],
                "a notebook's cells run in any order",
                "Write the training as a script (jupyter nbconvert --to script), and port that.",
            )
        trains = _has_branch(file, dialect)
        branch = None if trains else add_branch(_as_seen_by(source, project, dialect), dialect)
        if branch is not None:
            trains = True
            patches = {source.path: _patched(source, branch.edits)}
            if branch.switch.enum is not None:
                path, name = branch.switch.enum
                member = _add_member(project, path, name, files, dialect, patches)
                patches[path] = member
            for path, after in patches.items():
                before = port.changed[path].before if path in port.changed else read_source(path)
                port.changed[path] = Patch(before, after)
            port.fixed += [
                _finding(
                    file, BRANCH, node, message, f"Ask for it with {branch.switch.how}.", dialect, "safe"
                )
                for node, message in branch.made
            ]
            left += [_finding(file, NO_BRANCH, n, m, cure, dialect, "manual") for n, m, cure in branch.notes]
    except Refusal as refusal:
        trains = True
        left.append(
            _finding(
                file,
                NO_BRANCH,
                refusal.node,
                f"no {dialect.target.upper()} branch was added: {refusal.message}",
                refusal.cure,
                dialect,
                "manual",
            )
        )
    port.left += left
    return trains


def _let_old_hydra_run(
    port: Port, path: Path, files: Sequence[Path], dialect: Dialect, selection: Selection
) -> None:
    """A vendor's image may have an older Hydra than the project's."""
    try:
        source, project = _so_far(port, _root_of(path, files), path)
        if b"version_base" not in source.data or path.suffix == ".ipynb":
            return
        file = File(source, project, selection.targets)
        edits, places = handle_version(file)
        if edits:
            before = port.changed[path].before if path in port.changed else source
            port.changed[path] = Patch(before, _patched(source, edits))
            message = "Hydra's version_base is given only to a Hydra that has it, from 1.2 on"
            port.fixed.append(_finding(file, BRANCH, places[0], message, "Nothing.", dialect, "safe"))
    except UnreadableError:
        return  # told when the file was first looked at
    except Refusal as refusal:
        port.left.append(
            _finding(file, NO_BRANCH, refusal.node, refusal.message, refusal.cure, dialect, "manual")
        )


def _as_seen_by(source: Source, project: Project, dialect: Dialect) -> SeenFile:
    others = [d for d in find_dialects().values() if d is not dialect]
    return SeenFile(source, project, dialect.target, [d.target for d in others], [d.name for d in others])


def _has_branch(file: File, dialect: Dialect) -> bool:
    """A file that runs the vendor's step already: its author's work, or of an earlier port."""
    return bool(file.calls(*dialect.step_calls))


def _patched(source: Source, edits: Sequence[Edit]) -> Source:
    ordered = sorted(edits)
    for one, other in itertools.pairwise(ordered):
        if other.start < one.end:
            line, _ = source.position(other.start)
            place = ast.Pass(lineno=line, col_offset=0, end_lineno=line, end_col_offset=0)
            raise Refusal(place, "two changes meet in this place", "Give each statement its own line.")
    after = source.with_edits(edits)
    try:
        after.parse()
        after.to_bytes()
    except (UnreadableError, UnicodeEncodeError) as error:
        place = ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)
        raise Refusal(place, f"the result would not be valid: {error}", "Report this file.") from None
    return after


def _add_member(
    project: Project,
    path: Path,
    name: str,
    files: Sequence[Path],
    dialect: Dialect,
    patches: dict[Path, Source],
) -> Source:
    if path not in files:
        raise Refusal(
            ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0),
            f"{name} is defined in {show(path)}, which was not named",
            "Name that file too, or the folder of the project.",
        )
    source = patches.get(path) or project.overlay.get(path) or read_source(path)
    other = File(source, project, frozenset({dialect.target}))
    return _patched(source, [add_member(other, name, dialect.target)])


def _finding(
    file: File, code: str, node: ast.AST, message: str, cure: str, dialect: Dialect, safety: str
) -> Finding:
    start = file.source.span(node)[0] if hasattr(node, "lineno") else 0
    line, column = file.source.position(start)
    finding = Finding(
        code=code,
        path=str(file.source.path),
        line=line,
        column=column,
        message=message,
        cure=cure,
        safety=safety,  # type: ignore[arg-type]
        targets=(dialect.target,),
        end_line=getattr(node, "end_lineno", line) or line,
    )
    return as_seen(file.source, finding)
