"""hydra.main(version_base=...): asked for only where the installed Hydra has it.

Hydra takes version_base, and hydra.job.chdir, since 1.2; a vendor's image may hold an older one, and then the published ports
dropped the argument, which on a newer Hydra brings back the behaviour of 1.1.
"""

from __future__ import annotations

import ast

from portwright.port.branches.dialect import has_import
from portwright.port.branches.text import Script, insert_before
from portwright.port.finding import Edit
from portwright.port.patch import _insert_imports
from portwright.port.rule import File

_CHDIR = "hydra.job.chdir="


def handle_version(file: File) -> tuple[list[Edit], list[ast.AST]]:
    """Edits that let a file run with an old and a new Hydra, and the places that needed them."""
    name = file.free_name("HYDRA_VERSION")
    edits: list[Edit] = []
    places: list[ast.AST] = []
    for function in sorted(file.tree.all(ast.FunctionDef), key=lambda f: f.lineno):
        for call in function.decorator_list:
            if not isinstance(call, ast.Call) or file.resolve(call.func) != "hydra.main":
                continue
            keyword = next((k for k in call.keywords if k.arg == "version_base"), None)
            if keyword is None or file.tree.parents[function] is not file.tree.module:
                continue
            if not places:
                main = file.segment(call.func)
                script = Script(file).line("# version_base came with Hydra 1.2")
                given = f'{{"version_base": {file.segment(keyword.value)}}}'
                script.line(
                    f'{name} = {given} if "version_base" in inspect.signature({main}).parameters else {{}}'
                )
                edits.append(insert_before(file, function, script.text))
            places.append(call)
            edits.append(file.replace(keyword, f"**{name}"))
    if not places:
        return [], []
    for text in file.tree.all(ast.Constant):
        holder = file.tree.parents.get(text)
        if (
            isinstance(text.value, str)
            and text.value.startswith(_CHDIR)
            and isinstance(holder, (ast.List, ast.Tuple))
        ):
            places.append(text)
            edits.append(file.replace(text, f"*([{file.segment(text)}] if {name} else [])"))
    if not has_import(file, "inspect"):
        edits.append(
            _insert_imports(
                file.source, file.tree.module, ["import inspect"], min(edit.start for edit in edits)
            )
        )
    return edits, places
