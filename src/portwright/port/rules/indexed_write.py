from __future__ import annotations

import ast

from portwright.port.finding import Finding
from portwright.port.legal_form import LegalForm, method_as_function
from portwright.port.rewrite import legal_import
from portwright.port.rule import File, Findings
from portwright.port.tree import MethodCall, is_method_call, words

_IN_PLACE = ("index_add_", "index_fill_", "index_copy_", "index_put_")
_FRESH = words("zeros ones empty full zeros_like ones_like empty_like full_like")


def _is_fresh(file: File, value: ast.expr) -> bool:
    """Whether an expression makes a new tensor that shares no memory."""
    if not isinstance(value, ast.Call):
        return False
    head, _, last = (file.resolve(value.func) or "").rpartition(".")
    return (head == "torch" and last in _FRESH) or is_method_call(
        value, "new_zeros", "new_ones", "new_empty", "new_full", "clone"
    )


def _has_no_other_name(file: File, statement: ast.stmt, name: str) -> bool:
    """Whether a tensor was made in the same block and only written into since, so that its name can be reassigned."""
    block = file.tree.block_of(statement)
    for before in reversed(block[: block.index(statement)]):
        if isinstance(before, ast.Assign) and [file.segment(t) for t in before.targets] == [name]:
            return _is_fresh(file, before.value) and not _mentions(before.value, name)
        if _written_name(before) != name and _mentions(before, name):
            return False
    return False


def _written_name(statement: ast.stmt) -> str | None:
    """The name in a statement `name.index_add_(...)`, unless its arguments mention the name."""
    match statement:
        case ast.Expr(ast.Call(func=ast.Attribute(ast.Name(name), attr), args=args, keywords=keywords)):
            kept = any(_mentions(a, name) for a in [*args, *(k.value for k in keywords)])
            return name if attr in _IN_PLACE and not kept else None
    return None


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(inner, ast.Name) and inner.id == name for inner in ast.walk(node))


class IndexedWrite(LegalForm):
    """Puts legal forms in the place of index_select, index_add, index_fill, index_copy, index_put and take.

    ## Why
    The Cerebras front end lowers gathers and scatters, and refuses the backward pass of an index in a later dimension.

    ## Example
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return x.index_select(1, self.order)
    ```

    ## Instead
    ```python
    from portwright.layers import legal

    class Net(nn.Module):
        def forward(self, x):
            return legal.index_select(x, 1, self.order)
    ```

    ## Safety
    Safe: a gather or scatter of the same elements. A method that writes in place (`x.index_add_()`) becomes an assignment:
    safe where the tensor was made just before, unsafe where another name of it could keep the old values, and
    left to you where its result is used.
    """

    code = "PW334"
    reason = "its backward pass is not lowered there"
    forms = "index_select index_put index_fill index_copy index_add take scatter_reduce"

    def find(self, file: File) -> Findings:
        yield from super().find(file)
        for call in file.methods(*_IN_PLACE):
            if file.flow.in_step(call) and self._is_tensor(file, call):
                yield self._in_place(file, call)

    def _in_place(self, file: File, call: MethodCall) -> Finding:
        receiver, form = call.func.value, call.func.attr.removesuffix("_")
        legal, imports = legal_import(file)
        text = method_as_function(file, call, f"{legal}.{form}")
        statement = file.tree.parents[call]
        edits, safe = [file.replace(call, text)], _is_fresh(file, receiver)
        if isinstance(statement, ast.Expr) and isinstance(receiver, ast.Name):
            edits = [file.replace(call, f"{receiver.id} = {text}")]
            safe = _has_no_other_name(file, statement, receiver.id)
        elif not safe:
            edits = []
        return self.report(
            file, call, f".{call.func.attr}(): {self.reason}", edits, imports if edits else (),
            cure=f"Assign the result of legal.{form}, which computes the same.", safety="safe" if safe else "unsafe",
        )  # fmt: skip
