"""The module that holds model and loss: what a vendor compiles as one graph."""

from __future__ import annotations

import ast

from portwright.port.branches.dialect import Dialect, Names
from portwright.port.branches.graph_slice import GraphSlice
from portwright.port.branches.text import Script, rendered, unit_of
from portwright.port.rule import File


def write_wrapper(
    file: File, dialect: Dialect, names: Names, graph: GraphSlice, replaced: dict[ast.AST, str]
) -> str:
    """A class whose forward() is the step's own statements, and returns what the step uses, and the loss."""
    script = Script(file)
    script.line(f"class {names.wrapper}({names.module}):")
    script.line(f'"""The model and its loss in one graph, as the {dialect.device} runs them."""', 1).line("")
    captured = [part.name for part in graph.captured]
    script.line(f"def __init__(self, {', '.join(['model', *captured])}):", 1)
    script.line("super().__init__()", 2)
    for name in ("model", *captured):
        script.line(f"self.{name} = {name}", 2)
    script.line("")
    parts = [part.name for part in graph.inputs]
    evaluates = dialect.evaluates and bool(names.inference) and graph.can_evaluate
    if evaluates:
        assert graph.num_model_inputs is not None
        parts = [n if i < graph.num_model_inputs else f"{n}=None" for i, n in enumerate(parts)]
    script.line(f"def forward({', '.join(['self', *parts])}):", 1)
    inner = unit_of(file) * 2
    for position, statement in enumerate(graph.statements):
        script.raw(rendered(file, statement, inner, replaced))
        if position == 0 and evaluates:
            first = graph.statements[0]
            assert isinstance(first, ast.Assign)
            missing = graph.inputs[graph.num_model_inputs or 0].name
            script.line(f"if {missing} is None:", 2)
            script.line(f"return {file.segment(first.targets[0])}", 3)
    loss = dialect.loss(graph.loss)
    returned = [loss, *graph.outputs] if dialect.is_loss_first() else [*graph.outputs, loss]
    script.line(f"return {', '.join(returned)}", 2).line("").line("")
    return script.text
