"""Edits inside a training step: the vendor's call, and what the host skips when it is taken."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from portwright.port.branches.anatomy import Anatomy
from portwright.port.branches.dialect import Names
from portwright.port.branches.graph_slice import (
    GraphSlice,
    Setting,
    branch_path,
    cut,
    simple_statements,
    stored,
)
from portwright.port.branches.text import (
    Refusal,
    Script,
    indent_of,
    indented,
    insert_before,
    rendered,
    replace_lines,
    unit_of,
)
from portwright.port.finding import Edit
from portwright.port.rule import File


def find_anchors(anatomy: Anatomy) -> list[ast.stmt]:
    """The last statements that give the loss before backward(): one, or one in each branch of an `if`."""
    file = anatomy.file
    first = min(call.lineno for call in anatomy.backward)
    made = [s for s in simple_statements(anatomy.body) if s.lineno < first and anatomy.loss in stored(s)]
    if not made:
        raise Refusal(
            anatomy.backward[0],
            f"'{anatomy.loss}' is not made in the step that calls backward()",
            "Compute the loss in the same function.",
        )
    last = made[-1]
    home = branch_path(file, _statement(file, anatomy.backward[0]))
    path = {i: side for i, side in branch_path(file, last).items() if i not in home}
    path = {i: side for i, side in path.items() if file.tree.is_within(i, anatomy.region)}
    if not path:
        return [last]
    outer = list(path)[-1]
    anchors = []
    for side in ("body", "orelse"):
        inside = [s for s in made if branch_path(file, s).get(outer) == side]
        if not inside:
            raise Refusal(
                last, "the loss is made only under a condition", "A graph is fixed: compute it always."
            )
        anchors.append(inside[-1])
    return anchors


def _statement(file: File, node: ast.AST) -> ast.stmt:
    statement = file.tree.statement_of(node)
    assert statement is not None
    return statement


def cut_all(setting: Setting, anatomy: Anatomy) -> list[GraphSlice]:
    """A slice for each anchor; all must say the same, since there is one graph."""
    slices = [cut(setting, anatomy.loss, anchor) for anchor in find_anchors(anatomy)]
    texts = {tuple(setting.file.segment(s) for s in each.statements) for each in slices}
    if len(texts) > 1:
        raise Refusal(
            slices[1].anchor,
            "two branches compute the loss in different ways",
            "Keep one of them for the graph.",
        )
    return slices


def host_updates(anatomy: Anatomy) -> list[ast.stmt]:
    """backward(), step(), zero_grad() and a gradient scaler's calls: what the vendor's step does itself."""
    file = anatomy.file
    found: list[ast.stmt] = [_statement(file, call) for call in anatomy.backward]
    for call in file.methods("step", "zero_grad", "update", "unscale_"):
        assert isinstance(call.func, ast.Attribute)
        if file.tree.function_of(call) is not anatomy.function:
            continue
        receiver = file.segment(call.func.value)
        is_scaler = file.flow.kind(call.func.value) == "scaler" or "scaler" in receiver.lower()
        is_optimizer = receiver == anatomy.optimizer and call.func.attr in ("step", "zero_grad")
        if is_scaler or is_optimizer or (receiver == anatomy.model and call.func.attr == "zero_grad"):
            found.append(_statement(file, call))
    for statement in found:
        if not isinstance(statement, ast.Expr):
            raise Refusal(statement, "more than an update is done here", "Give the update a line of its own.")
    return found


def call_executor(script: Script, graph: GraphSlice, names: Names, depth: int) -> None:
    inputs = ", ".join(part.text for part in graph.inputs)
    script.line(f"{', '.join([*graph.outputs, graph.loss])} = {names.training}({inputs})", depth)
    if names.averages:
        script.line(
            f"{graph.loss} = {graph.loss}.mean()  # one number to log, whatever the options make of it", depth
        )


def guard(
    anatomy: Anatomy, slices: Sequence[GraphSlice], skipped: Sequence[ast.stmt], names: Names
) -> list[Edit]:
    """Puts what the host computes under a condition, neighbours together, and the vendor's call beside the loss."""
    file = anatomy.file
    anchors = {id(each.anchor): each for each in slices}
    guarded = {id(s) for s in skipped}
    for each in slices:
        guarded |= {id(s) for s in (*each.statements, *each.twins, *each.late)}
    every = {id(s): s for s in _statements_of(anatomy) if id(s) in guarded}
    edits, done = [], set[int]()
    for key, statement in every.items():
        if key in done:
            continue
        block = file.tree.block_of(statement)
        position = block.index(statement)
        group = [statement]
        while position + 1 < len(block) and id(block[position + 1]) in every:
            position += 1
            if not _follows(file, group[-1], block[position]):
                break
            group.append(block[position])
        done |= {id(s) for s in group}
        edits.append(_guarded(file, group, anchors, names))
    return edits


def _follows(file: File, one: ast.stmt, other: ast.stmt) -> bool:
    """Whether nothing but comments stands between two statements: what another device runs may, where it is not seen."""
    start, end = file.source.span(one)[1], file.source.span(other)[0]
    between = file.source.data[start:end].decode().splitlines()
    return one.col_offset == other.col_offset and not any(
        line.strip() and not line.strip().startswith("#") for line in between
    )


def _statements_of(anatomy: Anatomy) -> list[ast.stmt]:
    body = anatomy.function.body if anatomy.function else anatomy.file.tree.module.body
    return sorted(simple_statements(body), key=lambda s: s.lineno)


def _guarded(file: File, group: list[ast.stmt], anchors: dict[int, GraphSlice], names: Names) -> Edit:
    indent, unit = indent_of(file, group[0]), unit_of(file)
    script = Script(file, indent)
    graph = next((anchors[id(s)] for s in group if id(s) in anchors), None)
    if graph is None:
        script.line(f"if {names.training} is None:")
    else:
        script.line(f"if {names.training} is not None:")
        call_executor(script, graph, names, 1)
        for late in graph.late:
            script.raw(rendered(file, late, indent + unit))
        script.line("else:")
    script.raw(indented(file, group, unit))
    return replace_lines(file, group, script.text)


def refuse_accumulation(anatomy: Anatomy, training: str) -> list[Edit]:
    """The loop over the pieces of a step may only have one, where the vendor's step updates at each call."""
    if anatomy.accumulation is None or not isinstance(anatomy.region, ast.For):
        return []
    script = Script(anatomy.file, indent_of_compound(anatomy.file, anatomy.region))
    number = anatomy.file.segment(anatomy.accumulation)
    script.line(f"if {training} is not None and {number} != 1:")
    script.line(
        'raise NotImplementedError("the vendor\'s step updates at each call: set its own gradient accumulation")',
        1,
    )
    return [insert_before(anatomy.file, anatomy.region, script.text)]


def indent_of_compound(file: File, statement: ast.stmt) -> str:
    start, _ = file.source.span(statement)
    line, _ = file.source.line_span(statement.lineno)
    before = file.source.data[line:start].decode()
    if before.strip():
        raise Refusal(statement, "this statement shares its line with others", "Give it a line of its own.")
    return before
