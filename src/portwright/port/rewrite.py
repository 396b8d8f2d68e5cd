"""Edits that many rules make: dropping a statement, taking a call away from its argument, setting an argument."""

from __future__ import annotations

import ast

from portwright.port.finding import Edit
from portwright.port.rule import File

_TIGHT = (
    ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set,
    ast.ListComp, ast.DictComp, ast.SetComp, ast.JoinedStr,
)  # fmt: skip


def text_of(file: File, node: ast.expr) -> str:
    """A node's text, in parentheses where it could fall apart elsewhere."""
    text = file.segment(node)
    if isinstance(node, ast.Tuple) and not text.startswith("("):
        return f"({text})"
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return f"({text})"  # 1.real is no attribute
    return text if isinstance(node, _TIGHT) else f"({text})"


def remove_statement(file: File, statement: ast.stmt) -> list[Edit]:
    """Takes a statement away with its lines; `pass` stays where it was alone, or shared its line."""
    source, tree = file.source, file.tree
    start, end = source.span(statement)
    line_start, line_end = source.line_span(statement.lineno, statement.end_lineno)
    before, after = source.data[line_start:start], source.data[end:line_end]
    shares_line = bool(before.strip()) or (bool(after.strip()) and not after.lstrip().startswith(b"#"))
    if shares_line or len(tree.block_of(statement)) == 1:
        return [Edit(start, end, "pass")]
    return [Edit(line_start, line_end, "")]


def unwrap(file: File, call: ast.Call, inner: ast.expr) -> list[Edit]:
    """Puts `inner`, a part of a call, in the call's place; the whole statement goes where nothing is left to do."""
    statement = file.tree.statement_of(call)
    if (
        isinstance(statement, ast.Expr)
        and statement.value is call
        and isinstance(inner, (ast.Name, ast.Attribute))
    ):
        return remove_statement(file, statement)
    if (
        isinstance(statement, ast.Assign)
        and statement.value is call
        and len(statement.targets) == 1
        and file.segment(statement.targets[0]) == file.segment(inner)
    ):
        return remove_statement(file, statement)
    text = text_of(file, inner)
    if "\n" in text and inner in call.args and not text.startswith("("):
        text = f"({text})"  # the call's own parentheses held its lines together
    return [file.replace(call, text)]


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    return next((k for k in call.keywords if k.arg == name), None)


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """An argument by its position or name; None where it is not given, or hidden in a `*`."""
    given = keyword(call, name)
    if given is not None:
        return given.value
    if (
        position >= 0
        and len(call.args) > position
        and not any(isinstance(a, ast.Starred) for a in call.args[: position + 1])
    ):
        return call.args[position]
    return None


def has_star(call: ast.Call) -> bool:
    """Whether arguments come from a list or dict that cannot be seen here."""
    return any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)


def set_keyword(file: File, call: ast.Call, name: str, text: str) -> list[Edit]:
    """Sets a keyword argument, behind the others where it is new."""
    given = keyword(call, name)
    if given is not None:
        return [file.replace(given.value, text)]
    _, end = file.source.span(call)
    last: ast.AST | None = max(
        [*call.args, *call.keywords], key=lambda a: file.source.span(a)[1], default=None
    )
    if last is None:
        return [Edit(end - 1, end - 1, f"{name}={text}")]
    at = file.source.span(last)[1]
    if isinstance(last, ast.GeneratorExp):
        return []  # its parentheses may be the call's own
    # An argument in parentheses of its own ends behind them.
    tail = file.source.data[at : end - 1]
    closing = _closing(tail)
    at += closing
    return [Edit(at, at, f", {name}={text}")]


def _closing(tail: bytes) -> int:
    """How far behind an argument its own closing parentheses reach; comments do not count."""
    reach, i = 0, 0
    while i < len(tail):
        if tail[i : i + 1] == b"#":
            while i < len(tail) and tail[i : i + 1] not in (b"\n", b"\r"):
                i += 1
        elif tail[i : i + 1] == b")":
            reach = i + 1
        elif tail[i : i + 1] == b",":
            break
        i += 1
    return reach


def is_constant(node: ast.AST | None, *values: object) -> bool:
    return isinstance(node, ast.Constant) and any(
        node.value is v or (node.value == v and type(node.value) is type(v)) for v in values
    )


def const(node: ast.AST | None) -> object:
    """The value of a literal, signed numbers too; None for anything else."""
    if (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
    ):
        value = node.operand.value
        return -value if isinstance(value, (int, float)) else None
    return node.value if isinstance(node, ast.Constant) else None


def legal_import(file: File) -> tuple[str, tuple[str, ...]]:
    """What the legal forms are called in this file, and the import that this needs."""
    for name, bindings in file.tree.scope.bindings.items():
        if any(b.kind == "import" and b.dotted == "portwright.layers.legal" for b in bindings):
            return name, ()
    if file.binds("legal"):
        return "portwright_legal", ("from portwright.layers import legal as portwright_legal",)
    return "legal", ("from portwright.layers import legal",)


def layers_import(file: File) -> tuple[str, tuple[str, ...]]:
    """What the layers API is called in this file, and the import that this needs."""
    for name, bindings in file.tree.scope.bindings.items():
        if any(b.kind == "import" and b.dotted == "portwright.layers" for b in bindings):
            return name, ()
    if file.binds("layers"):
        return "portwright_layers", ("from portwright import layers as portwright_layers",)
    return "layers", ("from portwright import layers",)


def swap_method(file: File, call: ast.Call, method: str) -> list[Edit]:
    """Calls another method of the same value: `loss.item()` to `loss.detach()`."""
    assert isinstance(call.func, ast.Attribute)
    _, start = file.source.span(call.func)
    _, end = file.source.span(call)
    return [Edit(start - len(call.func.attr.encode()), end, method)]


def drop_underscore(file: File, call: ast.Call) -> list[Edit]:
    """Drops the underscore of an in-place method: `x.add_(1)` to `x.add(1)`."""
    assert isinstance(call.func, ast.Attribute)
    _, end = file.source.span(call.func)
    return [Edit(end - 1, end, "")]


def insert_before(file: File, node: ast.AST, text: str) -> Edit:
    start, _ = file.source.span(node)
    return Edit(start, start, text)


def insert_after(file: File, node: ast.expr, text: str) -> list[Edit]:
    """Appends to an expression, `.prefetch(1)` for one, in parentheses where it could fall apart."""
    start, end = file.source.span(node)
    if isinstance(node, _TIGHT):
        return [Edit(end, end, text)]
    return [Edit(start, start, "("), Edit(end, end, ")" + text)]


def writes_in_place(file: File, node: ast.AST) -> bool:
    """Whether the function around a node changes tensors in place, so that it matters which of them share memory."""
    function = file.tree.function_of(node) or file.tree.module
    for part in ast.walk(function):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            name = part.func.attr
            if name.endswith("_") and not name.startswith("_"):
                return True
        targets = (
            part.targets
            if isinstance(part, ast.Assign)
            else [part.target]
            if isinstance(part, ast.AugAssign)
            else []
        )
        if any(isinstance(target, ast.Subscript) for target in targets):
            return True
    return False
