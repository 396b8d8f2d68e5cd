"""`port --style layout` of a Keras script as one call: the script in, the five files out."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from portwright.port.apply import _imports_of
from portwright.port.check import UNREADABLE, Selection, unreadable
from portwright.port.files import show
from portwright.port.finding import Finding, Safety
from portwright.port.keras_layout.anatomy import read_anatomy
from portwright.port.keras_layout.plan import Plan, make_plan, settle
from portwright.port.keras_layout.script import RefusalError, Script
from portwright.port.keras_layout.write import Writer
from portwright.port.layout.trial import try_layout
from portwright.port.layout.written import Made, find_literals, finish, no_layout, refused, write_files
from portwright.port.look import look_at
from portwright.port.owners import Reader
from portwright.port.project import find_root, read_source
from portwright.port.request import PortResult
from portwright.port.source import Source, UnreadableError

_REFUSED = "PW702"
_LOADS = re.compile(
    rb"^[ \t]*(?:import|from)[ \t]+(tensorflow|tf_keras|keras(?:_\w+)?|torch)\b", re.MULTILINE
)


def is_tensorflow_script(path: Path) -> bool:
    """Whether TensorFlow or Keras owns the loop that a script starts, and where nobody is found, whether it loads them and no torch."""
    reader = Reader(find_root(path))
    look = look_at(path, reader)
    found = {owner.framework for owner, _ in look.owners}
    if not found:
        loaded = {
            name
            for each in look.files
            if (file := reader.file(each))
            for name in _LOADS.findall(file.source.data)
        }
        found = {"torch" if name == b"torch" else "tensorflow" for name in loaded}
    return found == {"tensorflow"}


def port_keras(
    script: Path,
    selection: Selection,
    allow: tuple[Safety, ...],
    out: Path,
    *,
    try_out: bool = False,
    only_plan: bool = False,
) -> PortResult:
    """Writes the layout into `out`, or says in one finding why there is none."""
    targets = tuple(sorted(selection.targets))
    try:
        made, plan = make_files(read_source(script), script.name)
        _copy_modules(script.absolute(), made)
    except UnreadableError as error:
        return no_layout([replace(unreadable(script, error, targets), path=show(script))])
    except RefusalError as refusal:
        finding = _finding(
            script, refusal.node, _REFUSED, f"no layout: {refusal.message}", refusal.cure, targets
        )
        return no_layout([finding])
    left = finish(made, out, selection, allow)
    broken = [f for f in left if f.code == UNREADABLE]
    if broken:  # never hand out what Python cannot read
        return no_layout([refused(script, f, selection) for f in broken])
    if not only_plan:
        write_files(made, out)
    own = [_finding(script, node, code, message, cure, targets) for node, code, message, cure in plan.left]
    return PortResult(
        changed=[show(out / name) for name in sorted(made.files)],
        fixed=[],
        left=sorted([*own, *(replace(f, path=show(f.path)) for f in left)], key=lambda f: f.place),
        diff="",
        not_copied=[],
        not_ported=[],
        placed=_rows(
            script,
            [(s.node, ", ".join(dict.fromkeys(s.places))) for s in plan.script.flow if s.places],
            "where",
        ),
        dissolved=_rows(script, plan.dissolved, "into"),
        style="layout",
        literals=find_literals(made.files),
        tried=try_layout(out, "tensorflow", script.parent, evaluates=made.evaluates) if try_out else None,
    )


def _copy_modules(script: Path, made: Made) -> None:
    """The project's own modules that the files import, and those that these import."""
    waiting, seen = [script], {script}
    while waiting:
        for module in _imports_of(waiting.pop()):
            if module in seen or script.parent not in module.parents:
                continue
            seen.add(module)
            waiting.append(module)
            name = module.relative_to(script.parent).as_posix()
            if name in made.files:
                raise RefusalError(
                    None, f"the script has a {name} of its own", f"Rename it: the layout has a {name}."
                )
            made.files[name] = module.read_bytes()


def make_files(source: Source, name: str) -> tuple[Made, Plan]:
    """The files' texts and the account of the script; raises RefusalError."""
    script = Script(source)
    plan = make_plan(script, read_anatomy(script))
    writer = Writer(plan, name)
    files = writer.files()
    settle(plan)
    for path, text in files.items():
        if path.endswith(".py"):
            assert isinstance(text, str)
            _check_names(path, text)
    return Made(files=files, evaluates=writer.has_evaluation()), plan


def _check_names(path: str, text: str) -> None:
    """No file may use a name that nothing in it gives a meaning to."""
    import builtins

    tree = ast.parse(text)
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    bound |= {
        a.arg
        for n in ast.walk(tree)
        if isinstance(n, ast.arguments)
        for a in [*n.posonlyargs, *n.args, *n.kwonlyargs]
    }
    bound |= {
        a.arg
        for n in ast.walk(tree)
        if isinstance(n, ast.arguments)
        for a in (n.vararg, n.kwarg)
        if a is not None
    }
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            bound.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {a.asname or a.name.partition(".")[0] for a in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    unknown = sorted(used - bound - set(dir(builtins)) - {"__file__", "__name__"})
    if unknown:
        raise RefusalError(
            None,
            f"{path} would use '{unknown[0]}', which was not followed",
            "Make it plain where this name comes from.",
        )


def _finding(
    path: Path, node: ast.AST | None, code: str, message: str, cure: str, targets: tuple[str, ...]
) -> Finding:
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
    end = getattr(node, "end_lineno", line) or line
    return Finding(code, show(path), line, column, message, cure, "manual", targets, end)


def _rows(script: Path, found: list[Any], key: str) -> list[dict[str, Any]]:
    rows = []
    for node, where in found:
        text = ast.unparse(node).splitlines()[0]
        statement = text if len(text) <= 100 else text[:97] + "..."
        rows.append(
            {"path": show(script), "line": getattr(node, "lineno", 1), "statement": statement, key: where}
        )
    return sorted(rows, key=lambda r: r["line"])
