"""Draws small programs around a piece of code that a rule rewrites: other names, imports, places and surroundings each time."""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
# Names of the user's that a rewrite could want for itself, among harmless ones.
NAMES = (
    "legal",
    "layers",
    "portwright",
    "portwright_legal",
    "portwright_layers",
    "turned",
    "matmul",
    "finfo",
    "tensor",
)
NAMES += ("_x", "x0", "keep", "Value", "h", "state", "mask", "dtype", "device")  # fmt: skip
STARRED = re.compile(r"torch\.nn\.functional\.\w+$")


@dataclass
class Piece:
    """What a pattern contributes: an expression over inputs and layers, which the program makes first."""

    expression: str
    inputs: dict[str, str] = field(default_factory=dict)  # name: how it is made
    layers: dict[str, str] = field(default_factory=dict)  # attribute of the model: how it is made
    setup: list[str] = field(default_factory=list)  # statements at the top
    statement: str = ""  # in place of `{out} = expression`, where the rule looks at a statement
    anywhere: bool = False  # whether the rule looks outside of steps too
    after: list[str] = field(default_factory=list)  # statements at the end, about `model`


class Draw:
    """The choices of one program, all from one seed."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.style = self.one("plain", "alias", "from", "assigned", "star", "nn")
        self.imports: dict[str, None] = {}
        self.setup: list[str] = []
        self.taken: set[str] = {"torch", "nn", "F", "total", "note", "copy", "Net", "model", "self"}

    def one(self, *choices: T) -> T:
        return self.random.choice(choices)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def name(self) -> str:
        """A name that this program does not have yet, often one that a rewrite could want."""
        free = [n for n in NAMES if n not in self.taken]
        found = self.one(*free) if free and self.chance(0.4) else f"v{len(self.taken)}"
        self.taken.add(found)
        return found

    def need(self, statement: str) -> None:
        self.imports[statement] = None

    def of(self, dotted: str) -> str:
        """One of torch's names as this program spells it."""
        module, _, last = dotted.rpartition(".")
        self.need("import torch")
        if self.style == "alias":
            self.need("import torch as T")
            return f"T.{dotted.removeprefix('torch.')}"
        if self.style == "from" and last not in self.taken:
            self.need(f"from {module} import {last} as {last}_")
            return f"{last}_"
        if self.style == "assigned":
            self.setup.append(f"{last}_own = {dotted}")
            return f"{last}_own"
        if self.style == "star" and STARRED.match(dotted):
            self.need("from torch.nn.functional import *")
            return last
        if self.style == "nn" and dotted.startswith("torch.nn.functional."):
            self.need("import torch.nn.functional as F")
            return f"F.{last}"
        if self.style == "nn" and dotted.startswith("torch.nn."):
            self.need("from torch import nn as N")
            return dotted.replace("torch.nn", "N")
        return dotted


def write(draw: Draw, piece: Piece) -> str:
    """The program: it trains a model of which the piece is a part, and leaves what can be compared in its namespace."""
    expression, statement = piece.expression, piece.statement
    for name in piece.inputs:
        if not statement and draw.chance(0.08):  # the order in which arguments are evaluated shows
            expression = re.sub(rf"(?<![\w.\"']){name}\b(?!\s*=[^=])", f'note("{name}", {name})', expression)
    out = draw.name()
    body = statement.format(out=out) if statement else draw.one(*FORMS)(draw, expression, out)
    local, shadow = "", draw.name()
    if draw.chance(0.3):
        local = f"{shadow} = len('abc')\n"
        body += f"\nprint({shadow})"
    if draw.chance(0.1):
        body += "  # the end; of it"
    text = draw.one(*(PLACES if not piece.anywhere else (*PLACES, _top)))(draw, piece, local + body, out)
    head = [*draw.imports, "import copy", "from audit.support import note, total"]
    if draw.chance(0.2):
        head.insert(0, draw.one('"""A program."""', "# A program.", "from __future__ import annotations"))
    if draw.chance(0.2):
        head.append(f"{shadow} = 'mine'")
    end = [*piece.after]
    end += [f"print({shadow})"] if any(shadow in line for line in head) else []
    return "\n".join([*head, *draw.setup, *piece.setup, text, *end, ""])


def _plain(draw: Draw, expression: str, out: str) -> str:
    return f"{out} = {expression}"


def _twice(draw: Draw, expression: str, out: str) -> str:
    return f"{out} = [{expression}, {expression}]"


def _lambda(draw: Draw, expression: str, out: str) -> str:
    return f"{out} = (lambda: {expression})()"


def _listed(draw: Draw, expression: str, out: str) -> str:
    return f"{out} = [{expression} for {draw.name()} in range(2)]"


def _chosen(draw: Draw, expression: str, out: str) -> str:
    return f"{out} = {expression} if note('if', True) else {expression}"


def _branch(draw: Draw, expression: str, out: str) -> str:
    return (
        f"if note('if', {draw.one(True, False)}):\n    {out} = {expression}\nelse:\n    {out} = {expression}"
    )


def _tried(draw: Draw, expression: str, out: str) -> str:
    return f"try:\n    {out} = {expression}\nexcept ZeroDivisionError:\n    {out} = None\nfinally:\n    note('end', 1)"


def _looped(draw: Draw, expression: str, out: str) -> str:
    return f"for {draw.name()} in range(2):\n    {out} = {expression}"


def _managed(draw: Draw, expression: str, out: str) -> str:
    draw.need("import contextlib")
    return f"with contextlib.nullcontext():\n    {out} = {expression}"


def _without_gradients(draw: Draw, expression: str, out: str) -> str:
    draw.need("import torch")
    return f"with torch.no_grad():\n    {out} = {expression}"


def _one_line(draw: Draw, expression: str, out: str) -> str:
    return f"{draw.name()} = 1; {out} = {expression}; note('line', 2)"


def _broken_line(draw: Draw, expression: str, out: str) -> str:
    return f"{out} = \\\n    {expression}"


def _in_parentheses(draw: Draw, expression: str, out: str) -> str:
    return f"{out} = (  # why\n    {expression}  # and (so\n)"


def _named(draw: Draw, expression: str, out: str) -> str:
    return f"note('named', ({out} := {expression}))"


def _nested(draw: Draw, expression: str, out: str) -> str:
    inner, default = draw.name(), draw.name()
    return f"def {inner}({default}=3):\n    return {expression}\n{out} = {inner}()"


FORMS: tuple[Callable[[Draw, str, str], str], ...] = (
    _plain, _twice, _lambda, _listed, _chosen, _branch, _tried, _looped, _managed, _without_gradients, _one_line,
    _broken_line, _in_parentheses, _named, _nested,
)  # fmt: skip


def _indent(text: str, levels: int) -> str:
    return textwrap.indent(text, "    " * levels)


def _given(piece: Piece) -> str:
    return "".join(f"{name} = {made}\n" for name, made in piece.inputs.items())


def _model(draw: Draw, piece: Piece, forward: str, more: str = "") -> str:
    """A model with a forward of these statements, and the loop that trains it."""
    names = list(piece.inputs)
    base = "torch.nn.Module"
    layers = "".join(f"        self.{name} = {made}\n" for name, made in piece.layers.items())
    steps = f"""
for step in range(2):
    optimizer.zero_grad()
    result = model({", ".join(names)})
    loss = total(result) + model.scale.sum()
    loss.backward()
    optimizer.step()
"""
    if draw.chance(0.4):
        steps = f"def train():\n    global result, loss\n{_indent(steps.strip(), 1)}\ntrain()\n"
    decorated = draw.one("", "", "    @copy.copy\n")
    return f"""
class Net({base}):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(2))
{layers}
{decorated}    def forward(self{"".join(f", {n}" for n in names)}):
{_indent(forward, 2)}
{_indent(more, 1)}
{_given(piece)}model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{steps}"""


def _forward(draw: Draw, piece: Piece, body: str, out: str) -> str:
    return _model(draw, piece, f"{body}\nreturn {out}")


def _method(draw: Draw, piece: Piece, body: str, out: str) -> str:
    names = ", ".join(piece.inputs)
    more = f"def own(self, {names}):\n{_indent(body, 1)}\n    return {out}"
    return _model(draw, piece, f"return self.own({names})", more)


def _helper(draw: Draw, piece: Piece, body: str, out: str) -> str:
    if piece.layers:
        return _forward(draw, piece, body, out)
    names = ", ".join(piece.inputs)
    helper = f"def helper({names}):\n{_indent(body, 1)}\n    return {out}\n"
    return helper + _model(draw, piece, f"return helper({names})")


def _function_in_forward(draw: Draw, piece: Piece, body: str, out: str) -> str:
    return _model(draw, piece, f"def inner():\n{_indent(body, 1)}\n    return {out}\nreturn inner()")


def _loop(draw: Draw, piece: Piece, body: str, out: str) -> str:
    if piece.layers:
        return _forward(draw, piece, body, out)
    step = f"for step in range(2):\n{_indent(body, 1)}\n    loss = total({out}) + weight.sum()\n    loss.backward()\n"
    if draw.chance(0.5):
        step = f"def train():\n{_indent(step, 1)}    return {out}\nresult = train()\n"
    return f"weight = torch.ones(2, requires_grad=True)\n{_given(piece)}{step}"


def _top(draw: Draw, piece: Piece, body: str, out: str) -> str:
    place = draw.one("top", "class", "function")
    given = _given(piece)
    if place == "class":
        return f"{given}class Holder:\n{_indent(body, 1)}\nresult = Holder.{out}\n"
    if place == "function":
        names = ", ".join(piece.inputs)
        return f"def made({names}):\n{_indent(body, 1)}\n    return {out}\n{given}result = made({names})\n"
    return f"{given}{body}\n"


PLACES = (_forward, _method, _helper, _function_in_forward, _loop)
