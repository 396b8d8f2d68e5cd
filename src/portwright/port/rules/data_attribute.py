from __future__ import annotations

import ast

from portwright.port.finding import Edit
from portwright.port.rewrite import writes_in_place
from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import last_name, words

_TENSOR_NAMES = words("loss output out logits pred grad weight bias param p hidden v")


def _is_of_tensor(file: File, node: ast.Attribute) -> bool:
    kind = file.flow.kind(node.value)
    if kind is not None:
        return kind == "tensor"
    last = last_name(node.value)
    return last in _TENSOR_NAMES or last.endswith(("_loss", "_grad", ".grad"))


def _is_written(file: File, node: ast.Attribute) -> bool:
    """Whether the attribute is assigned or changed in place."""
    if not isinstance(node.ctx, ast.Load):
        return True
    parent: ast.AST = file.tree.parents[node]
    if isinstance(parent, ast.Subscript) and parent.value is node:
        return not isinstance(parent.ctx, ast.Load)
    if isinstance(parent, ast.AugAssign):
        return parent.target is node
    return isinstance(parent, ast.Attribute) and parent.attr.endswith("_")


def _is_surely_tensor(file: File, node: ast.Attribute) -> bool:
    """Whether the value is known to be a tensor, such as a gradient, or calls backward()."""
    owner = node.value
    return (
        file.flow.kind(owner) == "tensor"
        or (isinstance(owner, ast.Attribute) and owner.attr == "grad")
        or any(ast.dump(call.func.value) == ast.dump(owner) for call in file.flow.backward_calls)
    )


def _may_be_written(file: File, node: ast.Attribute) -> bool:
    """Whether the file writes in place, other than through `.data`, so that this value may be written to."""
    if isinstance(file.tree.parents.get(node), (ast.BinOp, ast.Compare)):
        return False  # a new value
    return any(not (isinstance(w, ast.Attribute) and w.attr == "data") for w in writes_in_place(file))


class DataAttribute(Rule):
    """Replaces .data of a tensor by .detach() where it is read in a step.

    ## Why
    .data slips past the tracer: the Cerebras front end refuses it, and others lose the value.

    ## Example
    ```python
    def train(model, loader, criterion, optimizer):
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            history.append(loss.data)
    ```

    ## Instead
    ```python
    def train(model, loader, criterion, optimizer):
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            history.append(loss.detach())
    ```

    ## Safety
    Safe where it is read, from what is certainly a tensor, in a file that changes no tensor in place: both share the values
    and have no gradient, and only autograd's count of writes could tell them apart. Otherwise unsafe: other objects
    have a `.data` too (a packed sequence, a batch of graphs). Where it is written in a step, it is left to you;
    initialisation outside of a step is not reported.
    """

    code = "PW408"
    needs = ("no_data_attribute",)
    safety = "safe"
    words = (".data",)
    cure = "Read with .detach(); let an optimizer, or code under torch.no_grad(), do the writing."

    def find(self, file: File) -> Findings:
        for node in file.attributes("data"):
            if not file.flow.in_step(node) or not _is_of_tensor(file, node):
                continue
            if _is_written(file, node):
                yield self.report(file, node, f"{file.segment(node)} is written past the tracer")
            else:
                _, end = file.source.span(node)
                edits = [Edit(end - len("data"), end, "detach()")]
                yield self.report(
                    file,
                    node,
                    f"{file.segment(node)} is read past the tracer",
                    edits,
                    safety="safe"
                    if _is_surely_tensor(file, node) and not _may_be_written(file, node)
                    else "unsafe",
                )
