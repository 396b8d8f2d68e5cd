"""A step in two methods: one that calls the model and returns its outputs, and one that computes the loss of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from portwright.port.branches.anatomy import Anatomy
from portwright.port.branches.dialect import Names
from portwright.port.branches.graph_slice import (
    GraphSlice,
    Part,
    Setting,
    calls_model,
    cut,
    loaded,
    simple_statements,
    stored,
)
from portwright.port.branches.step_edits import call_executor, find_anchors, guard, indent_of_compound
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


@dataclass
class Through:
    """The method that calls the model for a step, and the graph that both methods' statements make."""

    anatomy: Anatomy
    method: ast.FunctionDef
    first: ast.stmt  # of the method: where its branch begins
    host: list[ast.stmt]  # statements behind it that need no output
    returned: list[str]
    requests: list[ast.stmt]  # in the step: `outputs = self.method(...)`
    graph: GraphSlice
    tail: GraphSlice  # the statements of it that stand in the step
    owned: set[int] = field(default_factory=set)  # statements that are dealt with

    @property
    def replaced(self) -> dict[ast.AST, str]:
        return self.graph.replaced

    def edits(self, names: Names, updates: Sequence[ast.stmt]) -> list[Edit]:
        return [self._branch(names), *self._requests(names), *self._skipped(names, updates)]

    def _branch(self, names: Names) -> Edit:
        file = self.anatomy.file
        script = Script(file, indent_of_compound(file, self.first))
        training, model = names.training, self.anatomy.model
        script.line(f"if {names.inference or training} is not None:")
        depth = 1
        if not names.inference:  # evaluation goes on below, on the host
            script.line(f"if not {model}.training:", 1).line(f"{training}.to_host()", 2).line("else:", 1)
            depth = 2
        inner = script.indent + script.unit * depth
        for statement in self.host:
            script.raw(rendered(file, statement, inner))
        if names.inference:
            script.line(f"if {training} is not None and {model}.training:", 1)
            depth = 2
        call_executor(script, self.graph, names, depth)
        script.line(f"return {', '.join([*self.returned, self.graph.loss])}", depth)
        if names.inference:
            inputs = ", ".join(p.text for p in self.graph.inputs[: self.graph.num_model_inputs])
            script.line(f"{self.graph.outputs[0]} = {names.inference}({inputs})", 1)
            script.line(f"return {', '.join(self.returned)}", 1)
        return insert_before(file, self.first, script.text)

    def _requests(self, names: Names) -> list[Edit]:
        file, edits = self.anatomy.file, []
        for statement in self.requests:
            assert isinstance(statement, ast.Assign)
            script = Script(file, indent_of(file, statement))
            target = statement.targets[0]
            listed = [file.segment(e) for e in (target.elts if isinstance(target, ast.Tuple) else [target])]
            script.line(f"if {names.training} is not None:")
            script.line(f"{', '.join([*listed, self.graph.loss])} = {file.segment(statement.value)}", 1)
            script.line("else:").raw(indented(file, [statement], unit_of(file)))
            edits.append(replace_lines(file, [statement], script.text))
        return edits

    def _skipped(self, names: Names, updates: Sequence[ast.stmt]) -> list[Edit]:
        rest = [s for s in (*self.tail.statements, *self.tail.twins) if s not in self.requests]
        return guard(self.anatomy, [], [*rest, *updates], names)


def find_through(anatomy: Anatomy) -> Through | None:
    """None where the step calls the model itself."""
    file, info = anatomy.file, anatomy.info
    direct = Setting(file, anatomy.body, anatomy.frame, frozenset({anatomy.model}), lambda _: True)
    if any(calls_model(direct, s) for s in simple_statements(anatomy.body)):
        return None
    for statement in simple_statements(anatomy.body):
        for call in ast.walk(statement):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or info is None:
                continue
            method = info.methods.get(call.func.attr)
            if (
                file.segment(call.func) == f"self.{call.func.attr}"
                and isinstance(method, ast.FunctionDef)
                and method is not anatomy.function
                and calls_model(_setting_of(anatomy, method), method)
            ):
                return _make(anatomy, method)
    raise Refusal(
        anatomy.backward[0],
        f"the step does not call {anatomy.model}, directly or through a method that does",
        "Call the model in the step's own function.",
    )


def _setting_of(anatomy: Anatomy, method: ast.FunctionDef) -> Setting:
    """The method's own view: a parameter that is None by default and is called stands for the model too."""
    args = method.args
    optional = {
        a.arg
        for a, d in zip(reversed(args.args), reversed(args.defaults), strict=False)
        if isinstance(d, ast.Constant) and d.value is None
    }
    called = {n.func.id for n in ast.walk(method) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    models = frozenset({anatomy.model, *(optional & called)})
    scope = anatomy.file.tree.scopes[method]
    return Setting(
        anatomy.file,
        method.body,
        method,
        models,
        lambda name: name in scope.bindings and name not in models and name != "self",
    )


def _make(anatomy: Anatomy, method: ast.FunctionDef) -> Through:
    file = anatomy.file
    setting = _setting_of(anatomy, method)
    returned = _returned(method)
    marked: list[ast.stmt] = []
    tainted: set[str] = set()
    for statement in simple_statements(method.body):
        if calls_model(setting, statement) or loaded(statement) & tainted:
            marked.append(statement)
            tainted |= stored(statement)
    outputs = [name for name in returned if name in tainted]
    if len(outputs) != 1:
        raise Refusal(
            method,
            "it cannot be told which of its values come from the model",
            "Return the model's output by name.",
        )
    first = _first(file, method, marked)
    head = _head(setting, marked, outputs[0])
    host = []
    for statement in _behind(file, method, first):
        alone = all(s in marked for s in simple_statements([statement]))  # an `if` around two ways to call it
        if not isinstance(statement, ast.Return) and not (alone and any(simple_statements([statement]))):
            if any(file.tree.is_within(m, statement) for m in marked):
                raise Refusal(
                    statement,
                    "the model's call is mixed with other work here",
                    "Call the model in a line of its own.",
                )
            host.append(statement)
    requests, tail = _tail(anatomy, method, returned)
    graph = _joined(anatomy, head, tail, requests, returned, outputs)
    owned = {id(s) for s in ast.walk(method) if isinstance(s, ast.stmt)} | {id(s) for s in requests}
    return Through(anatomy, method, first, host, returned, requests, graph, tail, owned)


def _returned(method: ast.FunctionDef) -> list[str]:
    returns = [n for n in ast.walk(method) if isinstance(n, ast.Return)]
    value = returns[0].value if len(returns) == 1 else None
    listed = value.elts if isinstance(value, ast.Tuple) else [value]
    names = [e.id for e in listed if isinstance(e, ast.Name)]
    if not names or len(names) != len(listed):
        raise Refusal(
            returns[0] if returns else method,
            f"{method.name}() returns more than names, or in more than one place",
            "Let it end with one return of the model's output and what else is needed, by name.",
        )
    return names


def _first(file: File, method: ast.FunctionDef, marked: Sequence[ast.stmt]) -> ast.stmt:
    """The statement that all of the model's calls stand in or behind, in one block."""
    statement = marked[0]
    while not all(any(file.tree.is_within(m, s) for s in file.tree.block_of(statement)) for m in marked):
        outer = file.tree.parents[statement]
        if not isinstance(outer, ast.stmt) or outer is method:
            break
        statement = outer
    return statement


def _behind(file: File, method: ast.FunctionDef, first: ast.stmt) -> Iterator[ast.stmt]:
    """What runs from a statement to the end of its method."""
    inner: ast.stmt = first
    yield inner
    while True:
        block = file.tree.block_of(inner)
        yield from block[block.index(inner) + 1 :]
        outer = file.tree.parents[inner]
        if outer is method or not isinstance(outer, ast.stmt):
            return
        if not isinstance(outer, (ast.With, ast.If)):
            raise Refusal(outer, "the model is called in a loop here", "Call it once a batch.")
        inner = outer


def _head(setting: Setting, marked: list[ast.stmt], output: str) -> GraphSlice:
    anchor = [s for s in marked if output in stored(s)][-1]
    head = cut(setting, output, anchor)
    texts = {_plain(setting, s) for s in head.statements}
    for statement in marked:
        if statement not in head.statements:
            if _plain(setting, statement) not in texts:
                raise Refusal(
                    statement,
                    "the model is called in another way here",
                    "Call it in one way, with one output.",
                )
            head.twins.append(statement)
    return head


def _plain(setting: Setting, statement: ast.stmt) -> str:
    text = setting.file.segment(statement)
    for model in sorted(setting.models, key=len, reverse=True):
        text = text.replace(f"{model}(", "MODEL(")
    return "".join(text.split())


def _tail(
    anatomy: Anatomy, method: ast.FunctionDef, returned: list[str]
) -> tuple[list[ast.stmt], GraphSlice]:
    anchors = find_anchors(anatomy)
    if len(anchors) > 1:
        raise Refusal(anchors[1], "the loss is computed in two places", "Compute it in one.")
    asked = f"self.{method.name}"
    setting = Setting(
        anatomy.file, anatomy.body, anatomy.frame, frozenset({asked}), lambda name: _is_local(anatomy, name)
    )
    tail = cut(setting, anatomy.loss, anchors[0])
    requests = [s for s in (*tail.statements, *tail.twins) if calls_model(setting, s)]
    for statement in requests:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        listed = target.elts if isinstance(target, ast.Tuple) else [target]
        whole = isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)
        names = [e.id if isinstance(e, ast.Name) else "" for e in listed]
        if not whole or names != returned:
            raise Refusal(
                statement,
                f"the values of {method.name}() are not taken under the names that it returns: {', '.join(returned)}",
                "Use the same names in both methods.",
            )
    return requests, tail


def _is_local(anatomy: Anatomy, name: str) -> bool:
    return (
        name in anatomy.file.tree.scopes.get(anatomy.frame, anatomy.file.tree.scope).bindings
        and name != "self"
    )


def _joined(
    anatomy: Anatomy, head: GraphSlice, tail: GraphSlice, requests: list[ast.stmt], returned: list[str], outputs: list[str]
) -> GraphSlice:  # fmt: skip
    """One graph of both methods' statements; what the first method prepares for the loss becomes an input."""
    rest = [s for s in tail.statements if s not in requests]
    asked = {text for s in requests for text in loaded(s)}
    inputs = list(head.inputs)
    for part in tail.inputs:
        if not loaded(part.node) <= asked:
            raise Refusal(
                part.node,
                f"the loss needs '{part.text}', which the method that calls the model does not return",
                "Return it from there, with the model's output.",
            )
    used = {name for s in rest for name in loaded(s)}
    for name in returned:
        if name not in outputs and name in used:
            if any(p.name == name and p.text != name for p in inputs):
                raise Refusal(anatomy.backward[0], f"two values are called '{name}'", "Give them two names.")
            if not any(p.text == name for p in inputs):
                inputs.append(Part(name, name, ast.Name(name)))
    captured = list(head.captured)
    captured += [
        p for p in tail.captured if p.text not in {c.text for c in captured} and p.text != anatomy.model
    ]
    extra = [name for name in tail.outputs if name not in returned]
    if extra:
        raise Refusal(
            tail.anchor,
            f"'{extra[0]}' is used after the loss, and only the graph has it",
            "Compute it anew there.",
        )
    return GraphSlice(
        anatomy.loss,
        tail.anchor,
        [*head.statements, *rest],
        [*head.twins, *tail.twins],
        [],
        inputs,
        [p for p in captured if not p.text.startswith("self.") or p.text.removeprefix("self.") != ""],
        outputs,
        {**head.replaced, **tail.replaced},
        head.num_model_inputs,
    )
