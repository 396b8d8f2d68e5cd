"""The texts of a layout, whichever framework it is of: the rules asked about them, and written."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from portwright import __version__
from portwright.job.atomic import atomic_directory
from portwright.port.check import Selection, unreadable
from portwright.port.files import COPY_MARK, show
from portwright.port.finding import Finding, Safety
from portwright.port.layout.account import REFUSED, Account
from portwright.port.patch import make_patch
from portwright.port.project import Project
from portwright.port.request import PortResult
from portwright.port.source import Source, UnreadableError

# set_defaults runs the script's scheduler on the host, before the first step; nothing imports left_over.py.
_AHEAD, _OFF_THE_DEVICE = ("PW403", "PW404"), ("utils.py", "left_over.py")


@dataclass
class Made:
    """The texts of a layout, and the account of the script's statements."""

    files: dict[str, str | bytes] = field(default_factory=dict)
    account: Account | None = None
    left: list[Finding] = field(default_factory=list)
    evaluates: bool = False  # whether there are evaluation data


def no_layout(left: list[Finding]) -> PortResult:
    """Nothing was written, for the reasons given."""
    return PortResult([], [], left, "", [], [], style="layout")


def find_literals(files: dict[str, str | bytes]) -> list[str]:
    """Numbers in what data.py and model.py make of params, such as a batch size: params.yaml does not reach them."""
    found: list[str] = []
    for name in ("data.py", "model.py"):
        text = files[name]
        tree = ast.parse(text)
        makers = [
            n
            for n in ast.walk(tree)
            if isinstance(n, ast.FunctionDef)
            and (n.name == "get_optimizer" or any(a.arg == "params" for a in n.args.args))
        ]
        for node in (n for maker in makers for n in ast.walk(maker)):
            named: list[tuple[object, ast.expr]] = []
            if isinstance(node, ast.Call):
                function = ast.unparse(node.func).rpartition(".")[2]
                for i, value in enumerate(node.args):
                    if name == "model.py" and _is_number(value) and function[:1].isupper():
                        found.append(
                            f"{ast.unparse(value)} of {function}(), argument {i + 1}, in {name}:{value.lineno}"
                        )
                named = [(word.arg, word.value) for word in node.keywords]
            elif isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                named = [(key.value, value) for key, value in pairs if isinstance(key, ast.Constant)]
            found += [f"{key} {ast.unparse(v)} in {name}:{v.lineno}" for key, v in named if _is_number(v)]
    return found


def _is_number(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, (int, float))
        and not isinstance(node.value, bool)
    )


def finish(made: Made, out: Path, rules: Selection, allow: Sequence[Safety]) -> list[Finding]:
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


def write_files(made: Made, out: Path) -> None:
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


def refused(script: Path, broken: Finding, selection: Selection) -> Finding:
    where = Path(broken.path).name
    message = f"no layout: {where} would not be Python ({broken.message})"
    cure = "Report this script to Portwright's authors, and use --style in-place."
    return Finding(REFUSED, show(script), 1, 1, message, cure, "manual", tuple(sorted(selection.targets)), 1)
