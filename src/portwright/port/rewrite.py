"""Edits that many rules make: removing a statement, unwrapping a call, setting an argument."""

from __future__ import annotations

import ast
import re
from itertools import takewhile

from portwright.port.finding import Edit
from portwright.port.rule import File
from portwright.port.tree import MethodCall

_TIGHT = (
    ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set,
    ast.ListComp, ast.DictComp, ast.SetComp, ast.JoinedStr,
)  # fmt: skip
# An argument's own closing parentheses after it, also behind comments.
_OWN_PARENTHESES = re.compile(rb"(?:(?:[^#,)]|#[^\n\r]*(?=[\n\r]|\Z))*\))+")


def text_of(file: File, node: ast.expr) -> str:
    """A node's text, in parentheses if operators beside it could split it."""
    text = file.segment(node)
    if isinstance(node, ast.Tuple) and not text.startswith("("):
        return f"({text})"
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return f"({text})"  # 1.real is no attribute
    return text if isinstance(node, _TIGHT) else f"({text})"


def remove_statement(file: File, statement: ast.stmt) -> list[Edit]:
    """Removes a statement with its lines; leaves `pass` if it was alone in its block or shared its line."""
    source, tree = file.source, file.tree
    start, end = source.span(statement)
    line_start, line_end = source.line_span(statement.lineno, statement.end_lineno)
    before, after = source.data[line_start:start], source.data[end:line_end]
    shares_line = bool(before.strip()) or (bool(after.strip()) and not after.lstrip().startswith(b"#"))
    if shares_line or len(tree.block_of(statement)) == 1:
        return [Edit(start, end, "pass")]
    return [Edit(line_start, line_end, "")]


def unwrap(file: File, call: ast.Call, inner: ast.expr) -> list[Edit]:
    """Replaces a call by its part `inner`; removes the whole statement if it then does nothing."""
    statement = file.tree.parents[call]
    if (isinstance(statement, ast.Expr) and isinstance(inner, (ast.Name, ast.Attribute))) or (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and file.segment(statement.targets[0]) == file.segment(inner)
    ):
        return remove_statement(file, statement)
    text = text_of(file, inner)
    if "\n" in text and inner in call.args and not text.startswith("("):
        text = f"({text})"  # the call's parentheses allowed several lines
    return [file.replace(call, text)]


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    return next((k for k in call.keywords if k.arg == name), None)


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """An argument by its position or name; None if it is not given, or may be in a `*`."""
    given = keyword(call, name)
    if given is not None:
        return given.value
    known = list(takewhile(lambda a: not isinstance(a, ast.Starred), call.args))
    return known[position] if 0 <= position < len(known) else None


def has_star(call: ast.Call) -> bool:
    """Whether a call has `*` or `**` arguments."""
    return any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)


def set_keyword(file: File, call: ast.Call, name: str, text: str) -> list[Edit]:
    """Sets a keyword argument, or adds it after the others."""
    given = keyword(call, name)
    if given is not None:
        return [file.replace(given.value, text)]
    _, end = file.source.span(call)
    last: ast.AST | None = max(
        [*call.args, *call.keywords], key=lambda a: file.source.span(a)[1], default=None
    )
    if last is None:
        return [Edit(end - 1, end - 1, f"{name}={text}")]
    if isinstance(last, ast.GeneratorExp):
        return []  # it may share its parentheses with the call
    # An argument in its own parentheses ends after them.
    at = file.source.span(last)[1]
    closing = _OWN_PARENTHESES.match(file.source.data[at : end - 1])
    at += closing.end() if closing else 0
    return [Edit(at, at, f", {name}={text}")]


def is_constant(node: ast.AST | None, *values: object) -> bool:
    return isinstance(node, ast.Constant) and any(
        node.value is v or (node.value == v and type(node.value) is type(v)) for v in values
    )


def const(node: ast.AST | None) -> object:
    """The value of a literal, also of a negative number; None for anything else."""
    if (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
    ):
        value = node.operand.value
        return -value if isinstance(value, (int, float)) else None
    return node.value if isinstance(node, ast.Constant) else None


def legal_import(file: File) -> tuple[str, tuple[str, ...]]:
    """The name of the module of legal forms in this file, and the import to add for it."""
    return _our_module(file, "portwright.layers", "legal")


def layers_import(file: File) -> tuple[str, tuple[str, ...]]:
    """The name of portwright.layers in this file, and the import to add for it."""
    return _our_module(file, "portwright", "layers")


def _our_module(file: File, package: str, module: str) -> tuple[str, tuple[str, ...]]:
    known = imported_as(file, f"{package}.{module}")
    if known is not None:
        return known, ()
    name = file.free_name(module, f"portwright_{module}")
    renamed = f" as {name}" if name != module else ""
    return name, (f"from {package} import {module}{renamed}",)


def imported_as(file: File, dotted: str) -> str | None:
    """The name by which a file imports a module at top level, if the whole file uses that name for nothing else."""
    for name, bindings in file.tree.scope.bindings.items():
        if (
            bindings[0].dotted == dotted
            and bindings[0].node in file.tree.module.body
            and not any(use.id == name and isinstance(use.ctx, ast.Del) for use in file.tree.all(ast.Name))
            and sum(len(scope.bindings.get(name, ())) for scope in file.tree.scopes.values()) == 1
        ):
            return name
    return None


def swap_method(file: File, call: MethodCall, method: str) -> list[Edit]:
    """Calls another method of the same value: `loss.item()` to `loss.detach()`."""
    _, start = file.source.span(call.func)
    _, end = file.source.span(call)
    return [Edit(start - len(call.func.attr.encode()), end, method)]


def insert_after(file: File, node: ast.expr, text: str) -> list[Edit]:
    """Appends to an expression, for example `.prefetch(1)`, with parentheses around it if needed."""
    start, end = file.source.span(node)
    if isinstance(node, _TIGHT):
        return [Edit(end, end, text)]
    return [Edit(start, start, "("), Edit(end, end, ")" + text)]


def writes_in_place(file: File) -> list[ast.expr]:
    """The expressions that a file changes in place, other than parameters: there it matters which tensors share memory."""
    return file.once(_written_in_place)


def _written_in_place(file: File) -> list[ast.expr]:
    written: list[ast.expr] = []
    for call in file.tree.all(ast.Call):
        given = {k.arg: k.value for k in call.keywords}
        if is_constant(given.get("inplace"), True) or not is_constant(
            given.get("out", ast.Constant(None)), None
        ):
            written.append(call)
        if isinstance(call.func, ast.Attribute) and file.resolve(call.func) is None:
            name = call.func.attr
            if name.endswith("_") and not name.startswith("_") and not _is_of_parameter(call.func.value):
                written.append(call.func.value)
    stores = [t for node in file.tree.all(ast.Assign) for t in node.targets if isinstance(t, ast.Subscript)]
    written += [
        t.value for t in stores if _may_be_tensor(file, t.value) and not isinstance(const(t.slice), str)
    ]
    return [*written, *(n.target for n in file.tree.all(ast.AugAssign) if _may_be_tensor(file, n.target))]


def _may_be_tensor(file: File, node: ast.expr) -> bool:
    return file.flow.kind(node) in ("tensor", None)


def _is_of_parameter(node: ast.expr) -> bool:
    """Whether it is a weight or bias such as `layer.weight.data`, which initialisation writes."""
    while isinstance(node, ast.Attribute) and node.attr == "data":
        node = node.value
    return isinstance(node, ast.Attribute) and node.attr in ("weight", "bias")


def torch_name(file: File, node: ast.AST) -> str | None:
    """The name that means torch at a node; None if there is none."""
    for name, bindings in file.tree.scope.bindings.items():
        if bindings and all(b.kind == "import" and b.dotted == "torch" for b in bindings):
            found = file.tree.scope_of(node).lookup(name)
            if found is not None and found[0] is file.tree.scope:
                return name
    return None
