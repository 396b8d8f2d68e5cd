"""What settings are worth: defaults of argparse, constants, and arithmetic on them, read without running anything."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.port.layout.program import Frame, Given, Global, Item, Line, Program, Setting, Var, flatten
from portwright.port.layout.units import Unit
from portwright.port.tree import FUNCTIONS, pair

_MAX_DEPTH = 40
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "int": int, "float": float, "str": str, "bool": bool, "len": len, "min": min, "max": max, "abs": abs,
    "round": round, "sum": sum, "list": list, "tuple": tuple, "sorted": sorted,
    "math.ceil": math.ceil, "math.floor": math.floor, "math.sqrt": math.sqrt, "math.prod": math.prod,
}  # fmt: skip

_CHANGES = frozenset({"update", "pop", "setdefault", "clear", "popitem"})


class UnknownError(Exception):
    """A value that only a run would tell."""


@dataclass(frozen=True)
class Option:
    """One argument of the script's command line."""

    key: str
    default: Any
    help: str
    unit: Unit
    node: ast.expr
    is_known: bool = True


class Values:
    """Constant values of a program's names and settings."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.options: dict[Setting, Option] = {}
        self.definitions: dict[Var, list[tuple[ast.expr | None, Frame, Item]]] = {}
        self._stores: dict[Setting, list[tuple[ast.expr | None, Frame, Item]]] = {}
        self._asked: set[Item] = set()
        self.argparse_lines: set[Line] = set()
        self.alias_lines: set[Item] = set()
        self._find_arguments()
        program.forget()
        self._collect()
        for _ in range(6):  # a name of a name of a name
            if not self._find_aliases():
                break
        self._find_tables()

    # -- definitions ---------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        for item in flatten(self.program.items):
            if item in self.alias_lines or (isinstance(item, Line) and loads_checkpoint(item.node)):
                continue  # what a checkpoint would bring does not count: run() resumes by itself
            if isinstance(item, Line):
                if item.target is not None and item.value is not None:
                    self._define(item.target[0], item.target[1], item.value, item)
                elif isinstance(item.node, ast.Assign):
                    for target in item.node.targets:
                        self._define(target, item.frame, (item.node.value, item.frame), item)
                elif isinstance(item.node, ast.AnnAssign) and item.node.value is not None:
                    self._define(item.node.target, item.frame, (item.node.value, item.frame), item)
                else:
                    self._note_stores(item.node, item.frame, item)
            else:
                head = item.node
                parts = [
                    getattr(head, "target", None),
                    getattr(head, "iter", None),
                    *getattr(head, "items", []),
                ]
                for part in parts:
                    if part is not None:
                        self._note_stores(part, item.frame, item)

    def _find_aliases(self) -> bool:
        """Lines that only give an object another name, as `self.model = model` does; the first name stands for both."""
        order = {item: number for number, item in enumerate(flatten(self.program.items))}
        found: dict[Var, Var] = {}
        lines: set[Item] = set()
        for item in order:
            if not isinstance(item, Line) or item in self.alias_lines:
                continue
            leaves = self._leaves(item)
            pairs = []
            for target, value, frame, origin in leaves:
                a = self.program.reference(target, frame)
                b = self.program.reference(value, origin) if value is not None else None
                if (
                    not isinstance(a, Var)
                    or not isinstance(b, Var)
                    or a == b
                    or len(self.definitions.get(a, [])) != 1
                ):
                    break
                if any(order.get(other, 0) >= order[item] for _, _, other in self.definitions.get(b, [])):
                    break
                pairs.append((a, b))
            if leaves and len(pairs) == len(leaves):
                found.update(pairs)
                lines.add(item)
        if not found:
            return False
        self.program.aliases.update(found)
        for space in list(self.program.namespaces):
            self.program.namespaces.update(a for a, b in found.items() if b == space)
        self.alias_lines |= lines
        self.program.forget()
        self.definitions.clear()
        self._stores.clear()
        self._collect()
        return True

    def _leaves(self, line: Line) -> list[tuple[ast.expr, ast.expr | None, Frame, Frame]]:
        if line.target is not None and line.value is not None:
            return [(t, v, line.target[1], line.value[1]) for t, v in pair(line.target[0], line.value[0])]
        if isinstance(line.node, ast.Assign) and len(line.node.targets) == 1:
            return [(t, v, line.frame, line.frame) for t, v in pair(line.node.targets[0], line.node.value)]
        return []

    def _define(self, target: ast.expr, frame: Frame, value: tuple[ast.expr, Frame], item: Item) -> None:
        for leaf, own in pair(target, value[0]):
            for occurrence in self.program.occurrences(leaf, frame):
                if occurrence.node is not leaf:
                    continue
                if isinstance(occurrence.ref, Var):
                    self.definitions.setdefault(occurrence.ref, []).append((own, value[1], item))
                elif isinstance(occurrence.ref, Setting):
                    self._stores.setdefault(occurrence.ref, []).append((own, value[1], item))

    def _note_stores(self, node: ast.AST, frame: Frame, item: Item) -> None:
        for occurrence in self.program.occurrences(node, frame):
            if occurrence.stores and isinstance(occurrence.ref, Var):
                self.definitions.setdefault(occurrence.ref, []).append((None, frame, item))
            elif occurrence.stores and isinstance(occurrence.ref, Setting):
                self._stores.setdefault(occurrence.ref, []).append((None, frame, item))

    @property
    def stores(self) -> dict[Setting, list[tuple[ast.expr | None, Frame]]]:
        """Settings that the script changes, and to what; not those that it changes only with other settings."""
        found = {setting: self.stores_of(setting) for setting in self._stores}
        return {setting: rows for setting, rows in found.items() if rows}

    def stores_of(self, setting: Setting) -> list[tuple[ast.expr | None, Frame]]:
        return [(v, f) for v, f, i in self._stores.get(setting, []) if self._happens(i, setting)]

    def _happens(self, item: Item, setting: Setting) -> bool:
        """Whether a block that changes a setting does so with the script's own defaults, as far as its tests are known."""
        if not isinstance(item, Line) or not isinstance(item.node, ast.If) or item in self._asked:
            return True
        self._asked.add(item)
        try:
            return self._stored_in(item.node, item.frame, setting)
        finally:
            self._asked.discard(item)

    def _stored_in(self, node: ast.stmt, frame: Frame, setting: Setting) -> bool:
        if not any(o.stores and o.ref == setting for o in self.program.occurrences(node, frame)):
            return False
        if not isinstance(node, ast.If):
            return True
        try:
            taken = node.body if self.evaluate(node.test, frame) else node.orelse
        except UnknownError:
            taken = [*node.body, *node.orelse]
        return any(self._stored_in(statement, frame, setting) for statement in taken)

    def value_of(self, var: Var) -> tuple[ast.expr, Frame] | None:
        """The one expression that a variable is assigned, if there is only one."""
        found = self.definitions.get(var, [])
        if len(found) == 1 and found[0][0] is not None:
            return found[0][0], found[0][1]
        return None

    # -- argparse ------------------------------------------------------------------------------------------------

    def _find_arguments(self) -> None:
        program = self.program
        for item in flatten(program.items):
            if not isinstance(item, Line):
                continue
            frame = item.frame
            target: ast.expr | None = None
            if item.target is not None and item.value is not None:
                (target, target_frame), (value, frame) = item.target, item.value
            elif isinstance(item.node, (ast.Assign, ast.AnnAssign)) and item.node.value is not None:
                value, target_frame = item.node.value, item.frame
                target = item.node.targets[0] if isinstance(item.node, ast.Assign) else item.node.target
            else:
                continue
            if not isinstance(value, ast.Call):
                continue
            parsed, unit = self._parse_call(value, frame)
            if parsed:
                if isinstance(target, ast.Tuple):
                    target = target.elts[0]
                ref = program.reference(target, target_frame) if target is not None else None
                if isinstance(ref, Var):
                    program.namespaces.add(ref)
                    self.argparse_lines.add(item)
                    self._read_options(ref, unit, parsed)
        for item in flatten(program.items):
            if isinstance(item, Line) and _is_of_parser(item.node, item.frame.unit):
                self.argparse_lines.add(item)

    def _find_tables(self) -> None:
        """Settings that a script keeps in a dict of plain values, which nothing changes later."""
        program = self.program
        changed: set[Var] = set()
        for item in flatten(program.items):
            for node in ast.walk(item.node):
                target = (
                    node.func.value
                    if isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in _CHANGES
                    else node
                )
                if target is node and not (
                    isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
                ):
                    continue
                root = target.value if isinstance(target, ast.Subscript) else target
                ref = (
                    program.reference(root, item.frame)
                    if isinstance(root, (ast.Name, ast.Attribute))
                    else None
                )
                if isinstance(ref, Var):
                    changed.add(ref)
        found: dict[Var, tuple[dict[Any, Any], ast.expr, Line]] = {}
        for var, definitions in self.definitions.items():
            value, frame, line = definitions[0]
            if len(definitions) != 1 or var in changed or not isinstance(line, Line) or value is None:
                continue
            if not (
                isinstance(value, ast.Dict)
                or (
                    isinstance(value, ast.Call)
                    and isinstance(value.func, ast.Name)
                    and value.func.id == "dict"
                )
            ):
                continue
            known = self.try_evaluate(value, frame)
            if (
                isinstance(known, dict)
                and known
                and all(isinstance(k, str) and k.isidentifier() and is_plain(v) for k, v in known.items())
            ):
                found[var] = (known, value, line)
        for var, (known, value, line) in found.items():
            program.tables.add(var)
            program.namespaces.add(var)
            self.argparse_lines.add(line)
            for key, default in known.items():
                self.options[Setting(var, key)] = Option(key, default, "", line.frame.unit, value)
        if found:
            program.forget()
            self.definitions.clear()
            self._stores.clear()
            self._collect()

    def _parse_call(self, call: ast.Call, frame: Frame) -> tuple[list[ast.Call], Unit]:
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("parse_args", "parse_known_args"):
            scope = frame.node if not isinstance(frame.node, ast.Module) else frame.unit.tree.module
            found = _add_argument_calls(scope)
            if not found:  # a parser that another function made
                found = _add_argument_calls(frame.unit.tree.module)
            return found, frame.unit
        callee = self.program.callee(call, frame)
        if callee is not None and any(
            isinstance(n, ast.Attribute) and n.attr in ("parse_args", "parse_known_args")
            for n in ast.walk(callee[1])
        ):
            return _add_argument_calls(callee[1]), callee[0]
        return [], frame.unit

    def _read_options(self, space: Var, unit: Unit, calls: Sequence[ast.Call]) -> None:
        for call in calls:
            names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            keywords = {k.arg: k.value for k in call.keywords if k.arg}
            if not names:
                continue
            longest = next((n for n in names if n.startswith("--")), names[0])
            dest = keywords.get("dest")
            key = str(dest.value) if isinstance(dest, ast.Constant) else longest.lstrip("-").replace("-", "_")
            text = keywords.get("help")
            help_text = str(text.value) if isinstance(text, ast.Constant) else ""
            default, known = self._default(keywords, unit)
            self.options[Setting(space, key)] = Option(key, default, help_text, unit, call, known)

    def _default(self, keywords: dict[str, ast.expr], unit: Unit) -> tuple[Any, bool]:
        action = keywords.get("action")
        if "default" not in keywords:
            if isinstance(action, ast.Constant) and action.value in ("store_true", "store_false"):
                return action.value == "store_false", True
            return None, not _is_true(keywords.get("required"))
        try:
            value = self.evaluate(keywords["default"], self.program.module_frame(unit))
        except UnknownError:
            return None, False
        kind = keywords.get("type")
        if isinstance(value, str) and isinstance(kind, ast.Name) and kind.id in ("int", "float"):
            value = _FUNCTIONS[kind.id](value)
        elif (
            isinstance(value, int)
            and isinstance(kind, ast.Name)
            and kind.id == "float"
            and "nargs" not in keywords
        ):
            pass  # argparse leaves a default that is no text as it is
        return value, True

    # -- evaluation ------------------------------------------------------------------------------------------------

    def evaluate(self, node: ast.expr, frame: Frame, depth: int = 0) -> Any:
        """A plain value; UnknownError where only a run would tell."""
        if depth > _MAX_DEPTH:
            raise UnknownError
        try:
            return self._evaluate(node, frame, depth + 1)
        except (ArithmeticError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise UnknownError from error

    def try_evaluate(self, node: ast.expr | None, frame: Frame, default: Any = None) -> Any:
        if node is None:
            return default
        try:
            return self.evaluate(node, frame)
        except UnknownError:
            return default

    def is_known(self, node: ast.expr, frame: Frame) -> bool:
        try:
            self.evaluate(node, frame)
        except UnknownError:
            return False
        return True

    def _evaluate(self, node: ast.expr, frame: Frame, depth: int) -> Any:
        def get(part: ast.expr) -> Any:
            return self.evaluate(part, frame, depth)

        match node:
            case ast.Constant():
                return node.value
            case ast.UnaryOp(op=ast.USub()):
                return -get(node.operand)
            case ast.UnaryOp(op=ast.Not()):
                return not get(node.operand)
            case ast.BinOp() if type(node.op) in _BINARY:
                left, right = get(node.left), get(node.right)
                if isinstance(node.op, ast.Pow) and (abs(right) > 64 or isinstance(left, str)):
                    raise UnknownError
                if isinstance(node.op, ast.Mult) and not all(
                    isinstance(v, (int, float)) for v in (left, right)
                ):
                    raise UnknownError
                return _BINARY[type(node.op)](left, right)
            case ast.BoolOp():
                value: Any = None
                for part in node.values:
                    value = get(part)
                    if bool(value) == isinstance(node.op, ast.Or):
                        return value
                return value
            case ast.Compare(ops=[op], comparators=[right_node]):
                return _COMPARE[type(op)](get(node.left), get(right_node))
            case ast.IfExp():
                return get(node.body) if get(node.test) else get(node.orelse)
            case ast.List():
                return [get(e) for e in node.elts]
            case ast.Tuple():
                return tuple(get(e) for e in node.elts)
            case ast.Dict():
                return {get(k): get(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None}
            case ast.Subscript():
                return get(node.value)[get(node.slice)]
            case ast.Call():
                return self._call(node, frame, depth)
            case ast.Name() | ast.Attribute():
                return self._named(node, frame, depth)
        raise UnknownError

    def _call(self, node: ast.Call, frame: Frame, depth: int) -> Any:
        name = frame.unit.names.resolve(node.func) or (
            node.func.id if isinstance(node.func, ast.Name) else ""
        )
        if name == "dict" and not node.args:
            return {k.arg: self.evaluate(k.value, frame, depth) for k in node.keywords}
        if name == "getattr" and len(node.args) in (2, 3) and isinstance(node.args[1], ast.Constant):
            member = ast.Attribute(node.args[0], str(node.args[1].value), ast.Load())
            ref = self.program.reference(member, frame)
            if isinstance(ref, Setting) and (ref in self.options or ref in self._stores):
                return self._named(member, frame, depth)
            if isinstance(ref, Setting) and len(node.args) == 3:
                return self.evaluate(node.args[2], frame, depth)
        if name not in _FUNCTIONS or node.keywords:
            raise UnknownError
        return _FUNCTIONS[name](*(self.evaluate(a, frame, depth) for a in node.args))

    def _named(self, node: ast.Name | ast.Attribute, frame: Frame, depth: int) -> Any:
        ref = self.program.reference(node, frame)
        if isinstance(ref, Setting):
            stored = self.stores_of(ref)
            if stored:
                if len(stored) != 1 or stored[0][0] is None:
                    raise UnknownError
                return self.evaluate(stored[0][0], stored[0][1], depth)
            if ref in self.options and self.options[ref].is_known:
                return self.options[ref].default
            raise UnknownError
        if isinstance(ref, Given) and ref.expr is not node:
            return self.evaluate(ref.expr, ref.frame, depth)
        if isinstance(ref, Var):
            found = self.value_of(ref)
            if found is None:
                raise UnknownError
            return self.evaluate(*found, depth)
        if isinstance(ref, Global):
            return self._constant_of(ref.unit, ref.name, depth)
        if isinstance(node, ast.Attribute):
            return self._class_attribute(node, frame, depth)
        raise UnknownError

    def _constant_of(self, unit: Unit, name: str, depth: int) -> Any:
        """A constant of another file, or imported from one."""
        reference = None
        for binding in unit.tree.scope.bindings.get(name, ()):
            if binding.kind == "assign" and binding.value is not None and unit is not self.program.entry:
                return self.evaluate(binding.value, self.program.module_frame(unit), depth)
            if binding.kind == "import":
                reference = unit.names._imported(unit.path, binding.dotted, binding.level, 0)
        if reference and "::" in reference:
            path, _, own = reference.rpartition("::")
            other = self.program.workspace.unit(Path(path))
            if own and (other is not unit or own != name):
                return self._constant_of(other, own, depth)
        raise UnknownError

    def _class_attribute(self, node: ast.Attribute, frame: Frame, depth: int) -> Any:
        """`Config.lr`, and `config.lr` where config is a Config()."""
        program = self.program
        whole = frame.unit.names.resolve(node)
        if whole is not None and "::" in whole:  # config.lr, of a module of the project
            path, _, name = whole.rpartition("::")
            return self._constant_of(program.workspace.unit(Path(path)), name, depth)
        found = program.workspace.definition(frame.unit.names.resolve(node.value))
        if found is None and isinstance(node.value, (ast.Name, ast.Attribute)):
            ref = program.reference(node.value, frame)
            made = self.value_of(ref) if isinstance(ref, Var) else None
            if (
                made is not None
                and isinstance(made[0], ast.Call)
                and not made[0].args
                and not made[0].keywords
            ):
                found = program.workspace.definition(made[1].unit.names.resolve(made[0].func))
        if found is None or not isinstance(found[1], ast.ClassDef):
            raise UnknownError
        for statement in found[1].body:
            if isinstance(statement, ast.Assign):
                targets: list[ast.expr] = statement.targets
            elif isinstance(statement, ast.AnnAssign):
                targets = [statement.target]
            else:
                continue
            if (
                any(isinstance(t, ast.Name) and t.id == node.attr for t in targets)
                and statement.value is not None
            ):
                return self.evaluate(statement.value, program.module_frame(found[0]), depth)
        raise UnknownError


def loads_checkpoint(node: ast.AST) -> bool:
    """Whether a block takes weights or optimizer from a file, as in `if args.resume:`."""
    if not isinstance(node, ast.If):
        return False
    return any(isinstance(n, ast.Attribute) and n.attr == "load_state_dict" for n in ast.walk(node))


def is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _add_argument_calls(scope: ast.AST) -> list[ast.Call]:
    found = [
        n for n in ast.walk(scope)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "add_argument"
    ]  # fmt: skip
    return sorted(found, key=lambda c: (c.lineno, c.col_offset))


def _is_of_parser(node: ast.stmt, unit: Unit) -> bool:
    """Statements that only make the parser."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return False
    for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
        if isinstance(call.func, ast.Attribute) and call.func.attr in (
            "add_argument", "add_argument_group", "add_mutually_exclusive_group", "parse_args", "parse_known_args", "set_defaults",
        ):  # fmt: skip
            return True
        if unit.names.resolve(call.func) == "argparse.ArgumentParser":
            return True
    return False


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and bool(node.value)
