"""`port --style layout` as one call: a script in, the five files out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from portwright import __version__
from portwright.errors import UserError
from portwright.job.atomic import atomic_directory
from portwright.port.api import PortResult, of_part, select_files
from portwright.port.apply import _check_out, make_port
from portwright.port.check import UNREADABLE, Selection, unreadable
from portwright.port.files import COPY_MARK, show
from portwright.port.finding import Finding, Safety
from portwright.port.layout.account import REFUSED, Account
from portwright.port.layout.definitions import Definitions
from portwright.port.layout.duration import describe_run, fix_settings
from portwright.port.layout.modules import copied, imported_modules
from portwright.port.layout.plan import Plan, finish_plan, make_plan
from portwright.port.layout.program import Program, flatten
from portwright.port.layout.settings import SECTIONS
from portwright.port.layout.settle import settle
from portwright.port.layout.units import RefusalError, Unit, Workspace
from portwright.port.layout.write import RUN, Writer
from portwright.port.patch import make_patch
from portwright.port.project import Project, find_root
from portwright.port.source import Source, UnreadableError

# The layout is their cure: the loop, its optimizer, schedule and checkpoints are run()'s now.
_CURED = ("PW401", "PW402", "PW403", "PW404", "PW405", "PW406", "PW407", "PW505", "PW507")
# set_defaults runs the script's scheduler on the host, before the first step; nothing imports left_over.py.
_AHEAD, _OFF_THE_DEVICE = ("PW403", "PW404"), ("utils.py", "left_over.py")


@dataclass
class Made:
    """The texts of a layout, and the account of the script's statements."""

    files: dict[str, str | bytes] = field(default_factory=dict)
    account: Account | None = None
    left: list[Finding] = field(default_factory=list)


def port_layout(
    paths: Sequence[Path],
    targets: Sequence[str],
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    *,
    unsafe: bool = False,
    write: bool = False,
    out: Path | None = None,
    part: str | None = None,
) -> PortResult:
    """Makes model.py, data.py, utils.py, configs/params.yaml and run.py of a script, in `out`."""
    if write or out is None:
        raise UserError(
            "--style layout writes new files, so it needs a folder.", "Give --out DIR, and leave --write out."
        )
    if len(paths) != 1:
        raise UserError(
            f"a layout is made of one script, and {len(paths)} paths were given.",
            "Name the script that trains.",
        )
    files, selection = select_files(paths, targets, select, ignore)
    if len(selection.targets) != 1:
        raise UserError(
            f"a port is for one target, and there are {len(selection.targets)} (all where none is named): {', '.join(sorted(selection.targets))}.",
            "Give one with --target.",
        )
    allow: tuple[Safety, ...] = ("safe", "unsafe") if unsafe else ("safe",)
    from portwright.port.keras_layout.api import is_keras_script, port_keras

    if paths[0].suffix == ".py" and is_keras_script(files[0]):
        _check_out(out, paths)
        if part is not None:
            raise UserError("a Keras script has no --part.", "Leave it out: all five files are made.")
        return port_keras(files[0], selection, allow, out)
    script = _find_script(paths[0], files)
    _check_out(out, paths)
    rules = of_part(selection, part) if part is not None else selection
    root = find_root(script)
    workspace = Workspace(root, {})
    try:
        reached = [script, *imported_modules(workspace, workspace.unit(script))]
    except UnreadableError as error:
        return PortResult([], [], [_shown(unreadable(script, error, selection.targets))], "", [], [])
    ported = make_port(reached, rules, allow)
    overlay = {path: patch.after for path, patch in ported.changed.items()}
    try:
        made = make_layout(script, root, overlay, tuple(sorted(selection.targets)), part)
    except RefusalError as refusal:
        account = Account(tuple(sorted(selection.targets)))
        account.leave(refusal.unit, refusal.node, f"no layout: {refusal.message}", refusal.cure, REFUSED)
        return PortResult([], [], [_shown(f) for f in account.left], "", [], [])
    fixed = [*ported.fixed, *(f for f in ported.left if f.code in _CURED)]
    left = _finish(made, out, rules, allow)
    broken = [f for f in left if f.code == UNREADABLE]
    if broken:  # never hand out what Python cannot read
        return PortResult([], [], [_refused(script, f, selection) for f in broken], "", [], [])
    _write(made, out)
    assert made.account is not None
    left = sorted([*_original_lines(made.account.left, script, overlay), *left], key=lambda f: f.place)
    return PortResult(
        changed=[show(out / name) for name in sorted(made.files)],
        fixed=[_shown(f) for f in fixed],
        left=[_shown(f) for f in left],
        diff="",
        not_copied=[],
        not_ported=[],
        placed=_rows(made.account.placed.values(), script, overlay),
        dissolved=_rows(made.account.dissolved.values(), script, overlay),
    )


def make_layout(
    script: Path, root: Path, overlay: dict[Path, Source], targets: tuple[str, ...], part: str | None = None
) -> Made:
    """The files' texts; RefusalError where the script has another shape than run() has room for."""
    workspace = Workspace(root, overlay)
    entry = workspace.unit(script)
    program = Program(workspace, entry)
    plan = make_plan(program, targets)
    fix_settings(plan)
    finish_plan(plan)
    describe_run(plan)
    writer = Writer(plan)
    plan.definitions.moved = imported_modules(workspace, entry)
    writer.model()
    writer.data()
    writer.utils()
    frames = {item.frame for item in flatten(program.items)} | {e.frame for e in plan.evaluations}
    opened = {frame.node for frame in frames} | {
        frame.instance.info.node for frame in frames if frame.instance is not None
    }
    writer.distribute(opened)
    made = Made(account=plan.account)
    made.files["model.py"] = writer.text("model", f"The model of {script.name}, with its loss.")
    made.files["data.py"] = writer.text("data", f"The data of {script.name}.")
    made.files["utils.py"] = writer.text(
        "utils", f"Defaults of params.yaml, and what model.py and data.py of {script.name} share."
    )
    if writer.parts["left_over"].definitions:
        made.files["left_over.py"] = writer.text(
            "left_over", f"What {script.name} defines and neither model nor data use; nothing imports it."
        )
    made.files["run.py"] = RUN.format(model=writer.base_name)
    head = [f"Settings of {script.name}, with the defaults of its command line and its constants."]
    made.files["configs/params.yaml"] = plan.settings.write(head)
    _copy_modules(plan, workspace, made)
    settle(plan)
    _keep_part(made, plan, part, head)
    return made


def _copy_modules(plan: Plan, workspace: Workspace, made: Made) -> None:
    """Modules that the files import, and those that these import."""
    definitions: Definitions = plan.definitions
    for path, dotted in definitions.moved.items():
        unit: Unit = workspace.unit(path)
        target, source = copied(definitions, unit, dotted)
        made.files[target] = source.to_bytes()


def _keep_part(made: Made, plan: Plan, part: str | None, head: list[str]) -> None:
    """Of a part: its file, the sections that it reads, and utils.py where it imports from it."""
    if part is None:
        return
    own = f"{part}.py"
    text = made.files[own]
    assert isinstance(text, str)
    others = {"model.py", "data.py", "run.py", "left_over.py", "utils.py"} - {own}
    if "from utils import" in text:
        others.discard("utils.py")
    made.files = {path: content for path, content in made.files.items() if path not in others}
    plan.settings.own["optimizer"] = {}
    named = {"data": ("train_input", "eval_input"), "model": ("model",)}[part]
    sections = [s for s in SECTIONS if s in named or f'params["{s}"]' in text]
    made.files["configs/params.yaml"] = plan.settings.write(head, sections)
    account = plan.account
    # The loop and its optimizer stay in the script, and with them what has no place elsewhere.
    account.left = []
    account.dissolved.clear()
    account.placed = {
        node: row
        for node, row in account.placed.items()
        if own in row["where"] or any(f": {s}." in row["where"] for s in sections)
    }


def _finish(made: Made, out: Path, rules: Selection, allow: Sequence[Safety]) -> list[Finding]:
    """Asks the rules about the files as they are now; what can still be rewritten is."""
    folder = out.absolute()
    overlay = {
        folder / name: Source(folder / name, t.encode() if isinstance(t, str) else t)
        for name, t in made.files.items()
        if name.endswith(".py")
    }
    project = Project(folder, overlay)
    left: list[Finding] = []
    for path, source in list(overlay.items()):
        try:
            patch = make_patch(source, project, rules, allow)
            if patch.is_change:
                overlay[path] = patch.after
                project.forget(path)
                made.files[path.relative_to(folder).as_posix()] = patch.after.to_bytes()
            is_host = path.parent == folder and path.name in _OFF_THE_DEVICE
            left += [f for f in patch.left if not is_host or f.code not in _AHEAD]
        except UnreadableError as error:
            left.append(unreadable(path, error, rules.targets))
    return left


def _write(made: Made, out: Path) -> None:
    written: dict[str, str] = {}
    with atomic_directory(out) as folder:
        for name, text in made.files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            data = text.encode("utf-8") if isinstance(text, str) else text
            target.write_bytes(data)
            written[name] = hashlib.sha256(data).hexdigest()
        mark = folder / COPY_MARK
        mark.parent.mkdir()
        mark.write_text(
            json.dumps({"portwright": __version__, "style": "layout", "files": written}, indent=2)
        )


def _find_script(path: Path, files: Sequence[Path]) -> Path:
    """The script that trains: the path itself, or the one file of a folder that does."""
    if not path.is_dir():
        if path.suffix != ".py":
            raise UserError(
                f"a layout is made of a .py file, and '{path}' is none.", "Export the notebook as a script."
            )
        return files[0]
    texts = {file: file.read_bytes() for file in files if file.suffix == ".py"}
    found = [file for file, text in texts.items() if b"__main__" in text and _trains(file)]
    found = found or [file for file in texts if _trains(file)]
    if len(found) != 1:
        listed = ", ".join(show(f) for f in found[:6]) or "none"
        raise UserError(f"'{path}' has {len(found)} scripts that train: {listed}.", "Name the one to port.")
    return found[0]


def _trains(file: Path) -> bool:
    workspace = Workspace(find_root(file), {})
    try:
        program = Program(workspace, workspace.unit(file))
    except (RefusalError, UnreadableError):
        return False
    return any(program.trains(item.node, item.frame) for item in program.items)


def _original_lines(findings: Sequence[Finding], script: Path, overlay: dict[Path, Source]) -> list[Finding]:
    return [replace(f, line=_line_before(f.line, Path(f.path), overlay)) for f in findings]


def _rows(rows: Any, script: Path, overlay: dict[Path, Source]) -> list[dict[str, Any]]:
    found = [
        {**r, "path": show(r["path"]), "line": _line_before(r["line"], Path(r["path"]), overlay)}
        for r in rows
    ]
    return sorted(found, key=lambda r: (r["path"], r["line"]))


def _line_before(line: int, path: Path, overlay: dict[Path, Source]) -> int:
    """The line that a line of the rewritten text had in the file itself."""
    if path not in overlay:
        return line
    import difflib

    before = path.read_text(encoding=overlay[path].encoding, errors="replace").splitlines()
    after = overlay[path].text.splitlines()
    for tag, a0, a1, b0, b1 in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if b0 <= line - 1 < b1:
            return a0 + 1 + (min(line - 1 - b0, max(a1 - a0 - 1, 0)) if tag != "equal" else line - 1 - b0)
    return line


def _refused(script: Path, broken: Finding, selection: Selection) -> Finding:
    where = Path(broken.path).name
    message = f"no layout: {where} would not be Python ({broken.message})"
    cure = "Report this script to Portwright's authors, and use --style in-place."
    return Finding(REFUSED, show(script), 1, 1, message, cure, "manual", tuple(sorted(selection.targets)), 1)


def _shown(finding: Finding) -> Finding:
    return replace(finding, path=show(finding.path))
