"""The optimizer's class on the device: a vendor's own, where it keeps its state for checkpoints."""

from __future__ import annotations

import ast

from portwright.port.branches.anatomy import Anatomy
from portwright.port.branches.dialect import Dialect
from portwright.port.branches.home import Home
from portwright.port.branches.step_edits import indent_of_compound
from portwright.port.branches.switch import Switch
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

# What torch's classes and their namesakes in poptorch.optim both take.
_SHARED = frozenset(
    {
        "params", "lr", "momentum", "dampening", "weight_decay", "nesterov", "betas", "eps", "amsgrad", "alpha", "centered",
        "maximize", "foreach", "capturable", "differentiable", "fused",
    }
)  # fmt: skip


def kind_of(file: File, creation: ast.Call) -> str:
    return (file.resolve(creation.func) or "").rpartition(".")[2]


def check_optimizer(anatomy: Anatomy, dialect: Dialect) -> list[ast.Call]:
    """Refuses where the device has none of the optimizers that the file makes; else those that it has not."""
    file = anatomy.file
    absent = [c for c in anatomy.creations if not dialect.takes(kind_of(file, c), c)]
    if absent and len(absent) == len(anatomy.creations):
        raise Refusal(
            absent[-1],
            f"the {dialect.device} has no {kind_of(file, absent[-1])}{dialect.optimizer_limits}",
            f"Choose one of {', '.join(dialect.optimizers)}; another optimizer gives other numbers.",
        )
    return absent


def own_classes(anatomy: Anatomy, dialect: Dialect, switch: Switch, home: Home) -> list[Edit]:
    """Makes each optimizer as the vendor's class when its device is asked for; nothing where the vendor has none.

    Torch's class trains as well, but its state stays empty: a checkpoint would lose the moments.
    """
    file = anatomy.file
    chosen: list[tuple[ast.Assign, ast.Call]] = []
    for call in anatomy.creations:
        statement = file.tree.statement_of(call)
        known = all(k.arg in _SHARED for k in call.keywords)
        whole = isinstance(statement, ast.Assign) and len(statement.targets) == 1 and statement.value is call
        if not whole or not known or not dialect.takes(kind_of(file, call), call):
            continue
        assert isinstance(statement, ast.Assign)
        if switch.is_known(file, home.frame, statement):
            chosen.append((statement, call))
    if not dialect.optim or not chosen:
        return []
    edits = [_check_package(file, dialect, switch, [statement for statement, _ in chosen])]
    for statement, call in chosen:
        indent, unit = indent_of(file, statement), unit_of(file)
        script = Script(file, indent).line(f"if {switch.condition}:")
        own: dict[ast.AST, str] = {call.func: f"{dialect.optim}.{kind_of(file, call)}"}
        script.raw(rendered(file, statement, indent + unit, own))
        script.line("else:").raw(indented(file, [statement], unit))
        edits.append(replace_lines(file, [statement], script.text))
    return edits


def _check_package(file: File, dialect: Dialect, switch: Switch, statements: list[ast.Assign]) -> Edit:
    first: ast.stmt = statements[0]
    while not all(any(file.tree.is_within(s, b) for b in file.tree.block_of(first)) for s in statements):
        outer = file.tree.parents[first]
        assert isinstance(outer, ast.stmt)
        first = outer
    start, _ = file.source.span(first)
    if file.source.data[start : start + 4] == b"elif":
        raise Refusal(first, "the optimizer is chosen in an elif", "Write it as an if of its own.")
    script = Script(file, indent_of_compound(file, first))
    script.line(f"if {switch.condition} and {dialect.name} is None:").line(dialect.absent(), 1)
    return insert_before(file, first, script.text)
