"""Statements written out elsewhere: their own text, comments and all, with names put in for what they stand for."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from portwright.port.finding import Edit
from portwright.port.layout.anatomy import PLACERS, Anatomy, is_device
from portwright.port.layout.program import Frame, Given, Global, Line, Ref, Setting, Var
from portwright.port.layout.units import RefusalError, Unit
from portwright.port.source import Source, apply_edits
from portwright.port.tree import FUNCTIONS

_ATOMS = (ast.Name, ast.Attribute, ast.Constant, ast.Subscript, ast.Call, ast.Tuple, ast.List, ast.Dict)


@dataclass
class Naming:
    """How one function of the layout calls things: each variable's name there, settings, and the device."""

    names: dict[Var, str] = field(default_factory=dict)
    setting: Callable[[Setting], str] = lambda setting: setting.key
    device: str | None = None  # what stands for the device; None: calls that only move to it go away
    moves: bool = False  # whether .to(device) stays
    hook: Callable[[Frame, ast.AST], str | None] = lambda frame, node: None  # a text for a whole node
    globals: set[Global] = field(default_factory=set)  # definitions and imports that the text needs
    uses_device: bool = False

    def name(self, var: Var) -> str:
        if var not in self.names:
            taken, name = set(self.names.values()), var.name
            while name in taken:
                name += "_"
            self.names[var] = name
        return self.names[var]


class Renderer:
    def __init__(self, anatomy: Anatomy) -> None:
        self.anatomy, self.program = anatomy, anatomy.program

    def line(self, line: Line, naming: Naming, indent: str) -> str:
        """A statement of its own, indented, with a newline at the end."""
        if line.target is not None and line.value is not None:
            left = self.expression(*line.target, naming)
            right = self.expression(*line.value, naming)
            return "" if left == right else f"{indent}{left} = {right}\n"
        edits = self.edits(line.node, line.frame, naming)
        text = statement_text(line.frame.unit.source, line.node, edits, indent)
        return "" if edits and _says_nothing(text) else text

    def expression(self, node: ast.expr, frame: Frame, naming: Naming) -> str:
        if not hasattr(node, "lineno"):  # a parameter's name, made by us
            ref = self.program.reference(node, frame)
            return naming.name(ref) if isinstance(ref, Var) else getattr(node, "id", "")
        source = frame.unit.source
        start, end = source.span(node)
        edits = [Edit(e.start - start, e.end - start, e.text) for e in self.edits(node, frame, naming)]
        return apply_edits(source.data[start:end], edits).decode("utf-8")

    def edits(self, node: ast.AST, frame: Frame, naming: Naming) -> list[Edit]:
        source = frame.unit.source
        edits: list[Edit] = []
        gone: list[tuple[int, int]] = []
        for each in ast.walk(node):
            text = naming.hook(frame, each)
            if text is not None:
                span = source.span(each)
                if not any(a <= span[0] and span[1] <= b for a, b in gone):
                    edits.append(Edit(*span, text))
                    gone.append(span)
                continue
            if isinstance(each, ast.Call) and self._only_moves(each, frame):
                assert isinstance(each.func, ast.Attribute)
                kept, end = source.span(each.func.value)[1], source.span(each)[1]
                if not naming.moves:
                    edits.append(Edit(kept, end, ""))
                    gone.append((kept, end))
                elif each.func.attr == "cuda":
                    edits.append(Edit(kept, end, f".to({naming.device})"))
                    gone.append((kept, end))
            elif (
                isinstance(each, ast.Attribute)
                and each.attr in ("type", "index")
                and self._is_device(each.value, frame)
            ):
                edits.append(Edit(*source.span(each), '"cpu"' if each.attr == "type" else "0"))
                gone.append(source.span(each))
        quotes = {
            inner: source.segment(each).lstrip("fFrR")[:1]
            for each in ast.walk(node) if isinstance(each, ast.JoinedStr) for inner in ast.walk(each)
        }  # fmt: skip
        for occurrence in self.program.occurrences(node, frame):
            if not hasattr(occurrence.node, "lineno"):
                continue
            start, end = source.span(occurrence.node)
            if any(a <= start and end <= b for a, b in gone):
                continue
            if (
                occurrence.stores
                and isinstance(occurrence.ref, Var)
                and self._is_device(occurrence.node, frame)
            ):
                continue
            text = self._text(occurrence.ref, occurrence.node, frame, naming)
            # before Python 3.12 an f-string's own quote ends it
            if text is not None and occurrence.node in quotes:
                text = text.replace(quotes[occurrence.node], "\"'".replace(quotes[occurrence.node], ""))
            if text is not None and text != source.data[start:end].decode("utf-8"):
                edits.append(Edit(start, end, text))
        return edits

    def _text(self, ref: Ref, node: ast.expr, frame: Frame, naming: Naming) -> str | None:
        if isinstance(ref, (Var, Setting)) and naming.device is not None and self._is_device(node, frame):
            naming.uses_device = True
            return naming.device
        if isinstance(ref, Var):
            self._check_object(ref, node, frame)
            return naming.name(ref)
        if isinstance(ref, Setting):
            return naming.setting(ref)
        if isinstance(ref, Global):
            naming.globals.add(ref)
            return None
        if ref.expr is node:
            return None
        if naming.device is not None and is_device(self.anatomy, ref.expr, ref.frame):
            naming.uses_device = True
            return naming.device
        inner = self.expression(ref.expr, ref.frame, naming)
        return inner if isinstance(ref.expr, _ATOMS) and not isinstance(ref.expr, ast.Tuple) else f"({inner})"

    def _check_object(self, ref: Var, node: ast.expr, frame: Frame) -> None:
        """An object of the script's own cannot come along: only its attributes can, as far as they are assigned."""
        if frame.instance is None:
            return
        whole = ref == Var(frame.number, frame.own)
        method = ref.owner == frame.instance.number and ref not in self.anatomy.values.definitions
        if whole or method:
            raise RefusalError(
                f"the step needs {'the object itself' if whole else f'the method {ref.name}()'} of {frame.instance.info.node.name}",
                "Make it a function, or a statement of its own. Or use --style in-place, which keeps the script's own loop.",
                frame.unit,
                node,
            )

    def _is_device(self, node: ast.expr, frame: Frame) -> bool:
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return False
        ref = self.program.reference(node, frame)
        if isinstance(ref, Given) and ref.expr is not node:
            return is_device(self.anatomy, ref.expr, ref.frame)
        return is_device(self.anatomy, node, frame)

    def _only_moves(self, call: ast.Call, frame: Frame) -> bool:
        """`.to(device)` and `.cuda()`, which run() does."""
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr not in PLACERS or func.attr == "cpu":
            return False
        if self.program.callee(call, frame) is not None:
            return False
        if func.attr == "cuda":
            return True
        places = [*call.args, *(k.value for k in call.keywords if k.arg == "device")]
        others = [k for k in call.keywords if k.arg not in ("device", "non_blocking")]
        if len(places) != 1 or others:
            return False
        place = places[0]
        return (isinstance(place, ast.Constant) and is_device(self.anatomy, place, frame)) or self._is_device(
            place, frame
        )


def _says_nothing(text: str) -> bool:
    """`x = x`, which is what is left of `x = x.to(device)`."""
    try:
        body = ast.parse(text.strip()).body
    except SyntaxError:
        return False
    if len(body) != 1 or not isinstance(body[0], ast.Assign) or len(body[0].targets) != 1:
        return False
    return ast.unparse(body[0].targets[0]) == ast.unparse(body[0].value)


def statement_text(source: Source, node: ast.stmt, edits: Iterable[Edit], indent: str) -> str:
    """A statement's whole lines with the comments above and behind it, moved to another indentation."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    last = node.end_lineno or node.lineno
    start, end = source.line_span(first, last)
    own_start, own_end = source.span(node)
    if first != node.lineno:
        own_start = source.offset(first, node.col_offset)
    before = source.data[start:own_start]
    behind = source.data[own_end:end].strip()
    changes = list(edits)
    if before.strip() or (behind and not behind.startswith(b"#")):  # shares its lines with other statements
        changes = [Edit(e.start - own_start, e.end - own_start, e.text) for e in changes]
        return indent + apply_edits(source.data[own_start:own_end], changes).decode("utf-8") + "\n"
    width = len(before)
    while first > 1:
        above = source.data[slice(*source.line_span(first - 1))]
        if not above.strip().startswith(b"#") or above.lstrip().startswith((b"#!", b"# -*-", b"# %%")):
            break
        if len(above) - len(above.lstrip()) != width:
            break
        first -= 1
    raw = _raw_lines(node)
    start, _ = source.line_span(first)
    for number in range(first, last + 1):
        at, line_end = source.line_span(number)
        line = source.data[at:line_end]
        if number in raw or not line.strip():
            continue
        space = len(line) - len(line.lstrip(b" \t"))
        changes.append(Edit(at, at + min(space, width), indent))
    moved = [Edit(e.start - start, e.end - start, e.text) for e in changes]
    text = (
        apply_edits(source.data[start:end], moved).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    )
    return text if text.endswith("\n") else text + "\n"


def _raw_lines(node: ast.AST) -> set[int]:
    """Lines that begin inside a string."""
    found: set[int] = set()
    for each in ast.walk(node):
        is_text = isinstance(each, ast.JoinedStr) or (
            isinstance(each, ast.Constant) and isinstance(each.value, (str, bytes))
        )
        if is_text:
            found.update(range(each.lineno + 1, (each.end_lineno or 0) + 1))  # type: ignore[attr-defined]
    return found


def definition_globals(unit: Unit, node: ast.AST) -> set[str]:
    """Names of a file's top level that a function, class or statement uses."""
    found = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            home = unit.tree.scope_of(each).lookup(each.id)
            if home is None or home[0] is unit.tree.scope:
                found.add(each.id)
        elif isinstance(each, FUNCTIONS):
            found.update(unit.tree.scopes[each].declared_global)
    return found
