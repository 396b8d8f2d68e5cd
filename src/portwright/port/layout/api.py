"""`port --style layout` as one call: a script in, the five files out."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from portwright.errors import UserError
from portwright.port.apply import _check_out, make_port
from portwright.port.check import UNREADABLE, unreadable
from portwright.port.files import show
from portwright.port.finding import Finding, Safety
from portwright.port.layout.account import REFUSED, Account
from portwright.port.layout.definitions import Definitions
from portwright.port.layout.duration import describe_run, fix_settings
from portwright.port.layout.modules import copied, imported_modules, reached_modules
from portwright.port.layout.otherwise import refuse_rounds
from portwright.port.layout.plan import Plan, finish_plan, make_plan
from portwright.port.layout.program import Program, flatten
from portwright.port.layout.settings import SECTIONS
from portwright.port.layout.settle import settle, tell_evaluations
from portwright.port.layout.trial import try_layout
from portwright.port.layout.units import RefusalError, Unit, Workspace
from portwright.port.layout.write import RUN, Writer
from portwright.port.layout.written import Made, find_literals, finish, no_layout, refused, write_files
from portwright.port.project import find_root
from portwright.port.request import PortResult, find_strangers, of_part, select_for_port, shown
from portwright.port.source import Source, UnreadableError
from portwright.port.tree import FUNCTIONS

# The layout is their cure: the loop, its optimizer, schedule and checkpoints are run()'s now.
_CURED = ("PW401", "PW402", "PW403", "PW404", "PW405", "PW406", "PW407", "PW505", "PW507")


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
    try_out: bool = False,
    only_plan: bool = False,
) -> PortResult:
    """Makes model.py, data.py, utils.py, configs/params.yaml and run.py of a script, in `out`; a plan writes nothing."""
    if write or out is None:
        raise UserError(
            "--style layout writes new files, so it needs a folder.", "Give --out DIR, and leave --write out."
        )
    if len(paths) != 1:
        raise UserError(
            f"a layout is made of one script, and {len(paths)} paths were given.",
            "Name the script that trains.",
        )
    files, selection = select_for_port(paths, targets, select, ignore)
    allow: tuple[Safety, ...] = ("safe", "unsafe") if unsafe else ("safe",)
    from portwright.port.keras_layout.api import is_tensorflow_script, port_keras

    if not only_plan:
        _check_out(out, paths)
    if paths[0].suffix == ".py" and is_tensorflow_script(files[0]):
        if part is not None:
            raise UserError("a Keras script has no --part.", "Leave it out: all five files are made.")
        return port_keras(files[0], selection, allow, out, try_out=try_out, only_plan=only_plan)
    script = _find_script(paths[0], files)
    # TensorFlow's loops are refused below
    if strange := find_strangers([script], [script], selection, ("torch", "jax")):
        return no_layout([replace(f, code=REFUSED, message=f"no layout: {f.message}") for f in strange])
    rules = of_part(selection, part) if part is not None else selection
    root = find_root(script)
    workspace = Workspace(root, {})
    try:
        reached = [script, *imported_modules(workspace, workspace.unit(script))]
    except UnreadableError as error:
        return no_layout([shown(unreadable(script, error, selection.targets))])
    ported = make_port(reached, rules, allow)
    overlay = {path: patch.after for path, patch in ported.changed.items()}
    try:
        made = make_layout(script, root, overlay, tuple(sorted(selection.targets)), part)
    except RefusalError as refusal:
        account = Account(tuple(sorted(selection.targets)))
        account.leave(refusal.unit, refusal.node, f"no layout: {refusal.message}", refusal.cure, REFUSED)
        return no_layout([shown(f) for f in account.left])
    fixed = [*ported.fixed, *(f for f in ported.left if f.code in _CURED)]
    left = finish(made, out, rules, allow)
    broken = [f for f in left if f.code == UNREADABLE]
    if broken:  # never hand out what Python cannot read
        return no_layout([refused(script, f, selection) for f in broken])
    if not only_plan:
        write_files(made, out)
    assert made.account is not None
    left = sorted([*_original_lines(made.account.left, overlay), *left], key=lambda f: f.place)
    return PortResult(
        changed=[show(out / name) for name in sorted(made.files)],
        fixed=[shown(f) for f in fixed],
        left=[shown(f) for f in left],
        diff="",
        not_copied=[],
        not_ported=[],
        placed=_rows(made.account.placed.values(), overlay),
        dissolved=_rows(made.account.dissolved.values(), overlay),
        style="layout",
        literals=find_literals(made.files) if part is None else [],
        tried=try_layout(out, "torch", root, evaluates=made.evaluates) if try_out and part is None else None,
    )


def make_layout(
    script: Path, root: Path, overlay: dict[Path, Source], targets: tuple[str, ...], part: str | None = None
) -> Made:
    """The files' texts; RefusalError where the script has another shape than run() has room for."""
    workspace = Workspace(root, overlay)
    entry = workspace.unit(script)
    program = Program(workspace, entry)
    plan = make_plan(program, targets)
    refuse_rounds(plan)
    fix_settings(plan)
    finish_plan(plan)
    describe_run(plan)
    writer = Writer(plan)
    plan.definitions.moved = imported_modules(workspace, entry)
    writer.model()
    writer.data()
    writer.utils()
    frames = {item.frame for item in flatten(program.items)} | {e.frame for e in plan.kept}
    opened = {frame.node for frame in frames} | {
        frame.instance.info.node for frame in frames if frame.instance is not None
    }
    writer.distribute(opened)
    evaluates = plan.evaluation is not None or plan.eval_phase is not None
    made = Made(account=plan.account, evaluates=evaluates)
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
    _refuse_command_line(plan, workspace, made, entry)
    settle(plan)
    _keep_part(made, plan, part, head)
    return made


def _copy_modules(plan: Plan, workspace: Workspace, made: Made) -> None:
    """Modules that the files import, and those that these import."""
    definitions: Definitions = plan.definitions
    texts = [text for name, text in made.files.items() if name.endswith(".py")]
    for path in reached_modules(workspace, definitions.moved, texts):
        target, source = copied(definitions, workspace.unit(path), definitions.moved[path])
        made.files[target] = source.to_bytes()


def _refuse_command_line(plan: Plan, workspace: Workspace, made: Made, entry: Unit) -> None:
    """sys.argv is run.py's in the written folder: its first word there is a target."""
    kept = "".join(str(made.files[name]) for name in ("model.py", "data.py", "utils.py"))
    for unit in workspace.units():
        for node in unit.tree.all(ast.Attribute, ast.Name) if b"argv" in unit.source.data else ():
            at_once = unit.path in plan.definitions.moved and not any(
                isinstance(outer, (*FUNCTIONS, ast.If)) for outer in unit.tree.ancestors(node)
            )
            is_kept = unit is entry and unit.text(node) in kept
            if (at_once or is_kept) and unit.names.resolve(node) == "sys.argv":
                cure = "Read it with argparse, whose options become params."
                raise RefusalError("the script's own command line is read here", cure, unit, node)


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
    if part == "data":
        tell_evaluations(plan)
    account.dissolved.clear()
    account.placed = {
        node: row
        for node, row in account.placed.items()
        if own in row["where"] or any(f": {s}." in row["where"] for s in sections)
    }


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


def _original_lines(findings: Sequence[Finding], overlay: dict[Path, Source]) -> list[Finding]:
    return [replace(f, line=_before(f.line, Path(f.path), overlay)[0]) for f in findings]


def _rows(rows: Any, overlay: dict[Path, Source]) -> list[dict[str, Any]]:
    """The account with the lines and words that the script has, and not those of its rewritten text."""
    found = []
    for row in rows:
        line, text = _before(row["line"], Path(row["path"]), overlay)
        own = row["statement"] if row["statement"].removesuffix("...") in text else text.strip()
        found.append({**row, "path": show(row["path"]), "line": line, "statement": own})
    return sorted(found, key=lambda r: (r["path"], r["line"]))


def _before(line: int, path: Path, overlay: dict[Path, Source]) -> tuple[int, str]:
    """The line that a line of the rewritten text had in the file itself, and what it says there."""
    after = overlay[path].text.splitlines() if path in overlay else []
    encoding = overlay[path].encoding if path in overlay else "utf-8"
    before = path.read_text(encoding=encoding, errors="replace").splitlines()
    if path in overlay:
        codes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        tag, a0, a1, b0, _ = next(
            (c for c in codes if c[3] <= line - 1 < c[4]), ("equal", line - 1, line, line - 1, line)
        )
        line = a0 + 1 + (min(line - 1 - b0, max(a1 - a0 - 1, 0)) if tag != "equal" else line - 1 - b0)
    return line, before[line - 1] if 0 < line <= len(before) else ""
