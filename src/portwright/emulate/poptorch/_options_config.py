"""Options from a file: one call of a method of Options a line, e.g. `Training.gradientAccumulation(4)`."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType
from typing import Any

from portwright.emulate import is_emulated


def parseAndSetOptions(options, filepath):
    """Makes the calls of a file; its lines are read, not executed as Python."""
    from portwright.emulate import poptorch
    from portwright.emulate.poptorch.options import ConfigFileError

    known = {"options": options, "poptorch": poptorch}
    path = Path(filepath)
    for number, line in enumerate(path.read_text().splitlines(), 1):
        call = line.strip()
        if not call or call.startswith("#"):
            continue
        where = f"at line {number} of {path.name}"
        try:
            expression = ast.parse(f"options.{call}", mode="eval").body
        except SyntaxError as error:
            raise ConfigFileError(f"SyntaxError {where}: {error.msg}\n> options.{call}") from None
        if not isinstance(expression, ast.Call):
            raise ConfigFileError(f"not a call of a method of Options {where}\n> options.{call}")
        try:
            _evaluate(expression, known)
        except _Unknown as error:
            raise ConfigFileError(f"{error} {where}\n> options.{call}") from None


class _Unknown(Exception):
    """Something other than calls, attributes of poptorch, and literals."""


def _evaluate(node: ast.expr, known: dict[str, Any]) -> Any:
    if isinstance(node, ast.Call):
        named = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise _Unknown("** is not understood")
            named[keyword.arg] = _evaluate(keyword.value, known)
        return _evaluate(node.func, known)(*(_evaluate(arg, known) for arg in node.args), **named)
    if isinstance(node, ast.Attribute):
        if node.attr.startswith("__"):
            raise _Unknown(f"'{node.attr}' is not understood")
        found = getattr(_evaluate(node.value, known), node.attr)
        if isinstance(found, ModuleType) and not is_emulated(
            found
        ):  # os, for one, can be reached from anywhere
            raise _Unknown(f"'{node.attr}' is not understood")
        return found
    if isinstance(node, ast.Name):
        if node.id not in known:
            raise _Unknown(f"'{node.id}' is not known here, only poptorch is;")
        return known[node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        parts = [_evaluate(part, known) for part in node.elts]
        return parts if isinstance(node, ast.List) else tuple(parts)
    if isinstance(node, ast.Dict):
        if None in node.keys:
            raise _Unknown("** is not understood")
        items = [(key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None]
        return {_evaluate(key, known): _evaluate(value, known) for key, value in items}
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise _Unknown(f"'{ast.unparse(node)}' is not understood") from None
