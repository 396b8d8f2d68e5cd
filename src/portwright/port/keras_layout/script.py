"""A Keras script as one list of statements, with what each of them reads and changes."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field

from portwright.port.source import Source
from portwright.port.tree import FUNCTIONS, MethodCall, dotted_chain, is_method_call, last_name


class RefusalError(Exception):
    """This script has another shape than a layout has room for."""

    def __init__(self, node: ast.AST | None, message: str, cure: str) -> None:
        super().__init__(message)
        self.node, self.message, self.cure = node, message, cure


@dataclass(eq=False)
class Statement:
    """One statement of the script's flow, at whatever depth it was written."""

    node: ast.stmt
    text: str  # without the indentation that it had
    reads: frozenset[str]
    changes: frozenset[str]  # names that it binds, or whose values it may change
    places: list[str] = field(default_factory=list)  # files that it went into


class Script:
    """The flow of a script: its top level, what `if __name__ == "__main__"` guards, and a main() that is called there."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.module = source.parse()
        self.imports: list[Statement] = []
        self.definitions: dict[str, Statement] = {}
        self.flow: list[Statement] = []
        self._read(self.module.body, frozenset())

    def _read(self, body: list[ast.stmt], open_functions: frozenset[str]) -> None:
        for node in body:
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue  # docstrings
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.imports.append(self._statement(node))
            elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                self.definitions[node.name] = self._statement(node)
            elif isinstance(node, ast.If) and _is_main(node.test):
                self._read(node.body, open_functions)
            elif (opened := self._opened(node, open_functions)) is not None:
                self._read(opened[1], open_functions | {opened[0]})
            elif isinstance(node, ast.With) and _is_scope(node):
                self._read(node.body, open_functions)
            elif not isinstance(node, ast.Pass):
                self.flow.append(self._statement(node))

    def _opened(self, node: ast.stmt, open_functions: frozenset[str]) -> tuple[str, list[ast.stmt]] | None:
        """The body of a function of the script that compiles or trains, in place of the statement that calls it."""
        call = node.value if isinstance(node, (ast.Expr, ast.Assign)) else None
        if (
            not isinstance(call, ast.Call)
            or not isinstance(call.func, ast.Name)
            or call.func.id in open_functions
        ):
            return None
        found = self.definitions.get(call.func.id)
        if found is None or not isinstance(found.node, ast.FunctionDef):
            return None
        function = found.node
        if not any(is_method_call(part, "fit", "compile") for part in ast.walk(function)):
            return None
        body = _without_docstring(function.body)
        if any(isinstance(part, ast.Return) for statement in body[:-1] for part in ast.walk(statement)):
            raise RefusalError(node, f"{function.name}() returns early", "Let it return at its end only.")
        targets = node.targets if isinstance(node, ast.Assign) else []
        return function.name, [*_bind(node, call, function), *_with_result(body, targets)]

    def _statement(self, node: ast.stmt) -> Statement:
        return Statement(node, self._text(node), frozenset(_reads(node)), frozenset(_changes(node)))

    def _text(self, node: ast.stmt) -> str:
        """Its lines as they are written, moved to the left; written anew where that would change it."""
        line = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        start, end = self.source.line_span(line, node.end_lineno)
        first = self.source.line_span(line)[0]
        lead = self.source.data[first : self.source.span(node)[0]]
        text = self.source.data[start:end].decode("utf-8").rstrip()
        if not lead.strip() or isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            moved = textwrap.dedent(text)
            try:
                body = ast.parse(moved).body
                if len(body) == 1 and ast.dump(body[0]) == ast.dump(node):
                    return moved
            except SyntaxError:
                pass
        return ast.unparse(node)

    def text_of(self, node: ast.expr) -> str:
        """An expression as it is written, on one line."""
        try:
            text = self.source.segment(node)
            if "\n" not in text and ast.dump(ast.parse(text, mode="eval").body) == ast.dump(node):
                return text
        except (SyntaxError, ValueError, AttributeError, IndexError):
            pass
        return ast.unparse(node)

    def needed_definitions(self, names: set[str]) -> list[Statement]:
        """Functions and classes that names stand for, and those that they use in turn, in the script's order."""
        waiting, found = set(names), set[str]()
        while waiting:
            name = waiting.pop()
            if name in self.definitions and name not in found:
                found.add(name)
                waiting |= self.definitions[name].reads
        return [s for name, s in self.definitions.items() if name in found]

    def slice(self, names: set[str], until: int) -> list[int]:
        """Positions of the statements before `until` that decide what names mean there."""
        wanted = set(names)
        chosen: list[int] = []
        for definition in self.needed_definitions(wanted):
            wanted |= definition.reads
        for position in range(until - 1, -1, -1):
            statement = self.flow[position]
            if statement.changes & wanted or is_seed(statement, wanted):
                chosen.append(position)
                wanted |= statement.reads
                for definition in self.needed_definitions(set(statement.reads)):
                    wanted |= definition.reads
        return chosen[::-1]


_SEEDS = ("set_random_seed", "set_seed", "seed")
_DRAWS = frozenset({"np", "numpy", "random", "tf", "keras", "layers", "tensorflow"})


def is_seed(statement: Statement, wanted: set[str] | None = None) -> bool:
    """Whether a statement seeds generators, of which those that use `wanted` names may draw."""
    call = statement.node.value if isinstance(statement.node, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return False
    return last_name(call.func) in _SEEDS and (wanted is None or bool(wanted & _DRAWS))


def calls_of(statement: Statement, *methods: str) -> Iterator[MethodCall]:
    yield from (node for node in ast.walk(statement.node) if is_method_call(node, *methods))


def _is_main(test: ast.expr) -> bool:
    return (
        isinstance(test, ast.Compare) and "__name__" in ast.unparse(test) and "__main__" in ast.unparse(test)
    )


def _is_scope(node: ast.With) -> bool:
    """`with strategy.scope():`, which a run on one device has no need of."""
    return all(is_method_call(item.context_expr, "scope") for item in node.items)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1:] if is_text else body


def _bind(node: ast.stmt, call: ast.Call, function: ast.FunctionDef) -> list[ast.stmt]:
    """Assignments that give a function's parameters what it is called with."""
    arguments = function.args
    if arguments.vararg or arguments.kwarg or any(isinstance(a, ast.Starred) for a in call.args):
        raise RefusalError(node, f"{function.name}() takes any arguments", "Name its parameters.")
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    positional = [*arguments.posonlyargs, *arguments.args]
    values: dict[str, ast.expr] = {}
    for parameter, default in zip(reversed(positional), reversed(arguments.defaults), strict=False):
        values[parameter.arg] = default
    for parameter, given in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if given is not None:
            values[parameter.arg] = given
    values.update({p.arg: a for p, a in zip(positional, call.args, strict=False)})
    values.update({k.arg: k.value for k in call.keywords if k.arg is not None})
    missing = [p.arg for p in parameters if p.arg not in values]
    if missing:
        raise RefusalError(
            node, f"{function.name}() is called without {missing[0]}", "Give it its arguments."
        )
    return [
        _assign(name, value, node)
        for name, value in values.items()
        if not (isinstance(value, ast.Name) and value.id == name)
    ]


def _with_result(body: list[ast.stmt], targets: list[ast.expr]) -> list[ast.stmt]:
    """A body whose last statement assigns what it would return."""
    last = body[-1]
    if not isinstance(last, ast.Return):
        return body
    if last.value is None or not targets or ast.unparse(targets[0]) == ast.unparse(last.value):
        return body[:-1]
    made = ast.Assign(targets, last.value)
    return [*body[:-1], _placed(made, last)]


def _assign(name: str, value: ast.expr, node: ast.stmt) -> ast.stmt:
    return _placed(ast.Assign([ast.Name(name, ast.Store())], value), node)


def _placed(made: ast.stmt, at: ast.stmt) -> ast.stmt:
    """At the place of a statement of the script, for reports; its text is written anew."""
    ast.copy_location(made, at)
    return ast.fix_missing_locations(made)


def _reads(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            yield part.id


# Calls that show or keep something and change nothing.
_SHOWS = frozenset(
    {"print", "len", "type", "repr", "str", "list", "isinstance", "np.save", "plt.plot", "plt.show"}
)
_KEEPS = frozenset(
    {
        "summary",
        "fit",
        "evaluate",
        "predict",
        "save",
        "save_weights",
        "compile",
        "to_json",
        "get_weights",
        "info",
        "debug",
    }
)


def _changes(node: ast.stmt) -> Iterator[str]:
    """Names bound anywhere in a statement, and those whose values a call may change."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((a.asname or a.name.partition(".")[0]) for a in node.names)
        return
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        yield node.name
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, (ast.Store, ast.Del)):
            yield part.id
        elif isinstance(part, (ast.Attribute, ast.Subscript)) and isinstance(part.ctx, (ast.Store, ast.Del)):
            inner: ast.expr = part
            while isinstance(inner, (ast.Attribute, ast.Subscript)):
                inner = inner.value
            if isinstance(inner, ast.Name):
                yield inner.id
        elif isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
            yield from _touched(part.value)


def _touched(call: ast.Call) -> Iterator[str]:
    """Of a call whose result is not used: its object and its arguments, which it was called to change."""
    if isinstance(call.func, ast.Attribute):
        if call.func.attr in _KEEPS:
            return
        inner: ast.expr = call.func.value
        while isinstance(inner, (ast.Attribute, ast.Subscript, ast.Call)):
            inner = inner.func if isinstance(inner, ast.Call) else inner.value
        if isinstance(inner, ast.Name):
            yield inner.id
    chain = dotted_chain(call.func)
    name = ".".join([chain[0].id, *chain[1]]) if chain else ""
    if name in _SHOWS or name.startswith(("plt.", "print", "logging.")):
        return
    for argument in (*call.args, *(k.value for k in call.keywords)):
        if isinstance(argument, ast.Name):
            yield argument.id
