"""Where an executor is made: after the network, its loss and its optimizer are known, before the first step."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from portwright.port.branches.anatomy import Anatomy, argument_of, bound_in
from portwright.port.branches.graph_slice import GraphSlice, loaded
from portwright.port.branches.text import Refusal
from portwright.port.rule import File
from portwright.port.tree import ClassInfo

_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass
class Home:
    """A place for the executor, and what model, optimizer and captured values are called there."""

    frame: ast.AST  # the function, or the module
    statement: ast.stmt
    is_after: bool
    model: str
    optimizer: str
    captured: list[str] = field(default_factory=list)
    training_only: str = ""  # the condition under which there is an optimizer


def find_home(anatomy: Anatomy, graph: GraphSlice) -> Home:
    if anatomy.origin == "attribute":
        return _in_class(anatomy, graph)
    if anatomy.origin == "global":
        return _at_top(anatomy, graph)
    if anatomy.origin == "parameter":
        return _in_caller(anatomy, graph)
    return _before_loop(anatomy, graph)


def outermost_loop(file: File, node: ast.AST, without: ast.AST | None = None) -> ast.stmt | None:
    """The outermost loop of a node's function around it, that does not also hold `without`."""
    loops = [
        loop for loop in file.tree.loops_of(node) if without is None or not file.tree.is_within(without, loop)
    ]
    return loops[-1] if loops else None  # type: ignore[return-value]


def _before_loop(anatomy: Anatomy, graph: GraphSlice) -> Home:
    file = anatomy.file
    loop = outermost_loop(file, anatomy.backward[0], anatomy.creation)
    if loop is None:
        raise Refusal(
            anatomy.backward[0],
            "the optimizer is made in each step",
            "Make model and optimizer once, before the loop.",
        )
    changing = bound_in([loop]) - {anatomy.model, anatomy.optimizer}
    for part in graph.captured:
        if loaded(part.node) & changing:
            raise Refusal(
                part.node,
                f"'{part.text}' is set anew within the loop, and a graph is fixed",
                "Set it before the loop.",
            )
    if anatomy.model in bound_in([loop]):
        raise Refusal(
            loop, f"'{anatomy.model}' is assigned within the loop of its training", "Make it before the loop."
        )
    return Home(
        anatomy.frame, loop, False, anatomy.model, anatomy.optimizer, [p.text for p in graph.captured]
    )


def _in_caller(anatomy: Anatomy, graph: GraphSlice) -> Home:
    file, function = anatomy.file, anatomy.function
    assert function is not None
    call = anatomy.calls[0]
    frame = file.tree.function_of(call) or file.tree.module
    statement = outermost_loop(file, call, anatomy.creation) or file.tree.statement_of(call)
    assert statement is not None
    changing = bound_in([statement]) if isinstance(statement, _LOOPS) else set()

    def there(name: str, node: ast.AST) -> str:
        bindings = file.tree.scopes[function].bindings.get(name)
        if bindings is None:
            return name  # the script's own
        if any(b.kind != "parameter" for b in bindings):
            raise Refusal(
                node,
                f"'{name}' is made inside {function.name}(), and the graph is made where the optimizer is",
                f"Make it where {function.name}() is called, and give it as an argument.",
            )
        given = argument_of(function, call, name)
        if given is None or loaded(given) & changing:
            raise Refusal(
                node,
                f"the graph needs '{name}', which changes from call to call of {function.name}()",
                "Give it to the model with the batch, or keep it fixed.",
            )
        return file.segment(given)

    captured = []
    for part in graph.captured:
        if not isinstance(part.node, ast.Name):
            raise Refusal(part.node, f"the graph needs '{part.text}'", "Give it to the step as an argument.")
        captured.append(there(part.node.id, part.node))
    return Home(frame, statement, False, there(anatomy.model, call), there(anatomy.optimizer, call), captured)


def _at_top(anatomy: Anatomy, graph: GraphSlice) -> Home:
    """After the last of the names that are needed, at the script's own level."""
    file = anatomy.file
    needed = {anatomy.model, anatomy.optimizer}
    for part in graph.captured:
        if isinstance(part.node, ast.Name):
            found = file.tree.scope_of(part.node).lookup(part.node.id)
            if found is not None and found[0].parent is not None:
                raise Refusal(
                    part.node,
                    f"'{part.text}' is made inside the function that trains, and the graph is made outside of it",
                    "Make it beside the model.",
                )
        needed |= {part.text.partition(".")[0]}
    places = []
    for name in needed:
        for binding in file.tree.scope.bindings.get(name, []):
            statement = file.tree.statement_of(binding.node)
            if statement is not None and binding.kind in ("assign", "unpack", "other", "with"):
                places.append(statement)
    if not places:
        raise Refusal(
            anatomy.backward[0],
            f"'{anatomy.optimizer}' is not made in this file",
            "Port the file that makes model and optimizer, with the step in it.",
        )
    last = _common_child(file, places)
    if isinstance(last, _LOOPS):
        raise Refusal(last, "model and optimizer are made in a loop", "Make them once.")
    return Home(
        file.tree.module, last, True, anatomy.model, anatomy.optimizer, [p.text for p in graph.captured]
    )


def _common_child(file: File, places: Iterable[ast.stmt]) -> ast.stmt:
    """In the innermost block that holds all these statements, the one with the last of them."""
    listed = sorted(places, key=lambda s: s.lineno)
    child = listed[-1]
    while not all(any(file.tree.is_within(p, s) for s in file.tree.block_of(child)) for p in listed):
        outer = file.tree.statement_of(file.tree.parents[child])
        if outer is None:
            break
        child = outer
    return child


def _in_class(anatomy: Anatomy, graph: GraphSlice) -> Home:
    file, info = anatomy.file, anatomy.info
    assert info is not None
    needed = {anatomy.model.removeprefix("self."), anatomy.optimizer.removeprefix("self.")}
    for part in graph.captured:
        if not part.text.startswith("self."):
            raise Refusal(
                part.node,
                f"the graph needs '{part.text}'",
                "Make it an attribute of self, set before training.",
            )
        name = part.text.removeprefix("self.")
        if name in info.attributes:
            needed.add(name)
    own = anatomy.optimizer.removeprefix("self.")
    method = _binder(info, own)
    if method is None:
        raise Refusal(
            anatomy.backward[0], f"{anatomy.optimizer} is set nowhere in this class", "Set it in __init__."
        )
    for _ in range(4):  # the method that calls the one that makes the optimizer, up to where all is made
        missing = needed - _bound_by(info, method)
        if (
            not missing
            or method.name == "__init__"
            or missing <= _bound_by(info, info.methods.get("__init__"))
        ):
            break
        caller = next((m for m in info.methods.values() if method.name in _called(m)), None)
        if not isinstance(caller, ast.FunctionDef):
            raise Refusal(
                method,
                f"nothing in this class calls {method.name}() after {', '.join(sorted(missing))} was set",
                "Set network, loss and optimizer in one method.",
            )
        method = caller
    binders = [
        s for s in ast.walk(method) if isinstance(s, (ast.Assign, ast.Expr)) and _binds(info, s) & needed
    ]
    last = _common_child(file, binders)
    block = file.tree.block_of(last)
    guard = ""
    for statement in binders:
        if own in _binds(info, statement):
            for outer in file.tree.ancestors(statement):
                if outer in block:
                    if isinstance(outer, ast.If) and not outer.orelse:
                        guard = file.segment(outer.test)
                    break
    return Home(
        method,
        last,
        True,
        anatomy.model,
        anatomy.optimizer,
        [p.text for p in graph.captured],
        training_only=guard,
    )


def _binder(info: ClassInfo, attribute: str) -> ast.FunctionDef | None:
    for method in info.methods.values():
        if isinstance(method, ast.FunctionDef) and any(
            attribute in _assigned(s) for s in ast.walk(method) if isinstance(s, ast.Assign)
        ):
            return method
    return None


def _assigned(statement: ast.AST) -> set[str]:
    if not isinstance(statement, ast.Assign):
        return set()
    return {
        node.attr
        for target in statement.targets
        for node in ast.walk(target)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def _called(method: ast.AST) -> set[str]:
    return {
        node.func.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
    }


def _bound_by(info: ClassInfo, method: ast.AST | None, depth: int = 0) -> set[str]:
    """Attributes that a method sets, itself or through methods that it calls."""
    if method is None or depth > 4:
        return set()
    found = {name for s in ast.walk(method) for name in _assigned(s)}
    for name in _called(method):
        found |= _bound_by(info, info.methods.get(name), depth + 1)
    return found


def _binds(info: ClassInfo, statement: ast.stmt) -> set[str]:
    found = _assigned(statement)
    for name in _called(statement):
        found |= _bound_by(info, info.methods.get(name))
    return found
