"""What else is done with a model that trains on a device: evaluation, checkpoints, and a changing learning rate."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field

from portwright.port.branches.anatomy import Anatomy
from portwright.port.branches.dialect import Dialect, Names
from portwright.port.branches.graph_slice import GraphSlice
from portwright.port.branches.home import Home
from portwright.port.branches.step_edits import indent_of_compound
from portwright.port.branches.text import Refusal, Script, insert_after, insert_before
from portwright.port.finding import Edit
from portwright.port.rewrite import set_keyword
from portwright.port.rule import File
from portwright.port.tree import FUNCTIONS, FunctionNode

_HARMLESS = frozenset({"print", "len", "isinstance", "type", "sum", "id", "repr", "str", "hasattr", "super"})
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass
class Uses:
    """Edits at the places that use the model on the host, each made once."""

    anatomy: Anatomy
    graph: GraphSlice
    home: Home
    dialect: Dialect
    names: Names
    skipped: set[int]  # statements that the host does not run on the device
    dealt_with: str = ""  # a method with a branch of its own
    edits: list[Edit] = field(default_factory=list)
    evaluated: list[ast.AST] = field(default_factory=list)
    _done: set[object] = field(default_factory=set)
    _evaluated_data: tuple[str, set[str]] | None = None

    @property
    def file(self) -> File:
        return self.anatomy.file

    def find(self) -> None:
        for frame, model in self._frames():
            for node in ast.walk(frame):
                if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
                    continue
                if self.file.segment(node) != model or not self._is_same(node, frame):
                    continue
                statement = self.file.tree.statement_of(node)
                if (
                    statement is not None
                    and id(statement) not in self.skipped
                    and not self._is_before(statement)
                ):
                    self._use(node, statement)
            self._rates(frame)

    def _frames(self) -> Iterator[tuple[ast.AST, str]]:
        """Functions that see the executor, with what the model is called there."""
        file, anatomy, home = self.file, self.anatomy, self.home
        if anatomy.origin == "attribute":
            assert anatomy.info is not None
            yield from ((m, anatomy.model) for m in anatomy.info.methods.values())
            return
        yield home.frame, home.model
        if anatomy.origin == "parameter" and anatomy.function is not None:
            yield anatomy.function, anatomy.model
        if home.frame is file.tree.module:
            yield from ((f, home.model) for f in file.tree.all(*FUNCTIONS) if f is not anatomy.function)
            if anatomy.function is not None and anatomy.origin == "global":
                yield anatomy.function, home.model

    def _is_same(self, node: ast.expr, frame: ast.AST) -> bool:
        """Whether a name in this very frame is the model, and not another of the same name."""
        inside = self.file.tree.function_of(node)
        if (inside or self.file.tree.module) is not frame:
            return False
        if isinstance(node, ast.Attribute):
            return True
        assert isinstance(node, ast.Name)
        found = self.file.tree.scope_of(node).lookup(node.id)
        if found is None:
            return False
        if self.anatomy.origin == "parameter" and frame is self.anatomy.function:
            return True
        owner = self.file.tree.scopes[self.home.frame].lookup(node.id)
        return owner is not None and owner[0] is found[0]

    def _is_before(self, statement: ast.stmt) -> bool:
        inside = self.file.tree.function_of(statement) or self.file.tree.module
        if inside is self.home.frame:
            last = self.home.statement.end_lineno if self.home.is_after else self.home.statement.lineno - 1
            return statement.lineno <= (last or 0)
        return self.anatomy.origin == "attribute" and getattr(inside, "name", "") == "__init__"

    def _use(self, node: ast.expr, statement: ast.stmt) -> None:
        parent = self.file.tree.parents.get(node)
        if isinstance(parent, ast.Call) and parent.func is node:
            if self._can_evaluate(parent):
                self._evaluate(node)
            else:
                self._sync(statement, climb=True)
        elif isinstance(parent, ast.IfExp):  # called as one of two, as in another vendor's branch
            outer = self.file.tree.parents.get(parent)
            if isinstance(outer, ast.Call) and outer.func is parent:
                self._sync(statement, climb=True)
        elif isinstance(parent, ast.Attribute):
            counts = any(
                word in self.file.segment(statement) for word in (".shape", "numel(", "requires_grad")
            )
            if parent.attr in ("state_dict", "save_pretrained", "generate") or (
                parent.attr == "named_parameters" and not counts
            ):
                self._sync(statement, climb=False)
        elif isinstance(parent, (ast.Call, ast.keyword)):
            call = parent if isinstance(parent, ast.Call) else self.file.tree.parents.get(parent)
            if isinstance(call, ast.Call):
                self._passed(node, call, statement)

    def _can_evaluate(self, call: ast.Call) -> bool:
        plain = not call.keywords and not any(isinstance(a, ast.Starred) for a in call.args)
        return (
            bool(self.names.inference) and self.graph.can_evaluate and plain
            and len(call.args) == self.graph.num_model_inputs and self._is_of_one_shape(call)
        )  # fmt: skip

    def _is_of_one_shape(self, call: ast.Call) -> bool:
        """Whether it is the first data that are evaluated: the executor is compiled for one shape, others are for the host."""
        given: set[str] = set()
        function = self.file.tree.function_of(call)
        if isinstance(function, FUNCTIONS) and function is not self.home.frame:
            for use in self.file.tree.all(ast.Call):
                if getattr(use.func, "id", getattr(use.func, "attr", "")) == function.name:
                    given.add(", ".join(map(self.file.segment, (*use.args, *use.keywords))))
        loops = [
            each
            for each in self.file.tree.ancestors(call)
            if isinstance(each, ast.For) and not self._holds_step(each)
        ]
        data = self.file.segment(loops[0].iter) if loops else ", ".join(map(self.file.segment, call.args))
        if len(given) > 1:
            return False
        self._evaluated_data = self._evaluated_data or (data, given)
        return self._evaluated_data == (data, given)

    def _holds_step(self, outer: ast.AST) -> bool:
        return any(self.file.tree.is_within(c, outer) for c in (*self.anatomy.backward, *self.anatomy.calls))

    def _evaluate(self, callee: ast.expr) -> None:
        if id(callee) in self._done:
            return
        self._done.add(id(callee))
        start, end = self.file.source.span(callee)
        text, inference = self.file.segment(callee), self.names.inference
        self.edits.append(Edit(start, end, f"({text} if {inference} is None else {inference})"))
        self.evaluated.append(callee)

    def _passed(self, node: ast.expr, call: ast.Call, statement: ast.stmt) -> None:
        """The model as an argument: a function of the file that evaluates it gets the executor beside it."""
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if call in self.anatomy.calls or name in _HARMLESS or self.file.segment(call.func) == self.dealt_with:
            return
        if (self.file.resolve(call.func) or "").startswith("torch.nn.") or name == self.names.wrapper:
            return
        function = self._function(call)
        parameter = self._parameter(function, call, node) if function is not None else None
        if isinstance(function, ast.FunctionDef) and parameter is not None:
            calls = [
                c for c in ast.walk(function)
                if isinstance(c, ast.Call) and isinstance(c.func, ast.Name) and c.func.id == parameter
            ]  # fmt: skip
            if calls and all(self._can_evaluate(c) for c in calls) and "." not in self.names.inference:
                inference = self.names.inference
                self.edits += set_keyword(self.file, call, inference, inference)
                if id(function) not in self._done:
                    self._done.add(id(function))
                    self.edits.append(add_parameter(self.file, function, f"{inference}=None"))
                    for each in calls:
                        self._evaluate(each.func)
                return
        self._sync(statement, climb=False)

    def _function(self, call: ast.Call) -> FunctionNode | None:
        if not isinstance(call.func, ast.Name):
            return None
        found = self.file.tree.scope_of(call.func).lookup(call.func.id)
        node = found[1][0].node if found and len(found[1]) == 1 else None
        return node if isinstance(node, FUNCTIONS) and node is not self.anatomy.function else None

    def _parameter(self, function: FunctionNode, call: ast.Call, node: ast.expr) -> str | None:
        names = [a.arg for a in function.args.args]
        if node in call.args and not any(isinstance(a, ast.Starred) for a in call.args):
            position = call.args.index(node)
            return names[position] if position < len(names) else None
        return next((k.arg for k in call.keywords if k.value is node), None)

    def _sync(self, statement: ast.stmt, climb: bool) -> None:
        """Brings the weights back before a statement, or before the loop of an evaluation."""
        if climb:
            for outer in self.file.tree.ancestors(statement):
                if isinstance(outer, (*FUNCTIONS, ast.ClassDef)):
                    break
                if isinstance(outer, _LOOPS) and not self._holds_step(outer):
                    statement = outer
        self._at(statement, self.dialect.to_host(self.names), after=False)

    def _rates(self, frame: ast.AST) -> None:
        text = self.dialect.rate_changed(self.names, self._optimizer_in(frame))
        if text is None:
            return
        optimizer = self._optimizer_in(frame)
        for node in ast.walk(frame):
            if (self.file.tree.function_of(node) or self.file.tree.module) is not frame:
                continue
            statement: ast.stmt | None = None
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "step"
            ):
                kind = self.file.flow.kind(node.func.value)
                if kind == "scheduler" or (
                    kind is None and "sched" in self.file.segment(node.func.value).lower()
                ):
                    statement = self.file.tree.statement_of(node)
            elif isinstance(node, ast.For) and f"{optimizer}.param_groups" in self.file.segment(node.iter):
                statement = node
            elif isinstance(node, ast.Call) and any(
                isinstance(a, (ast.Name, ast.Attribute)) and self.file.segment(a) == optimizer
                for a in (*node.args, *(k.value for k in node.keywords))
            ):
                called = self._function(node)
                if called is not None and any(
                    isinstance(n, ast.Attribute) and n.attr == "param_groups" for n in ast.walk(called)
                ):
                    statement = self.file.tree.statement_of(node)
            if statement is not None and id(statement) not in self.skipped and not self._is_before(statement):
                self._at(statement, text, after=True)

    def _optimizer_in(self, frame: ast.AST) -> str:
        return self.anatomy.optimizer if frame is self.anatomy.function else self.home.optimizer

    def _at(self, statement: ast.stmt, text: str, after: bool) -> None:
        key = (id(statement), after)
        if key in self._done:
            return
        self._done.add(key)
        script = Script(self.file, indent_of_compound(self.file, statement))
        script.line(f"if {self.names.training} is not None:").line(text, 1)
        insert = insert_after if after else insert_before
        self.edits.append(insert(self.file, statement, script.text))


def add_parameter(file: File, function: ast.FunctionDef, text: str) -> Edit:
    """One more parameter, behind the others and before `**`."""
    start, _ = file.source.span(function)
    lines = io.StringIO(file.source.data[start:].decode()).readline
    depth, opened, last = 0, False, ""
    starts: list[int] = [0]
    data = file.source.data[start:]
    for position, byte in enumerate(data):
        if byte == 0x0A:
            starts.append(position + 1)
    text_lines = data.decode().split("\n")
    for token in tokenize.generate_tokens(lines):
        row, column = token.start
        at = start + starts[row - 1] + len(text_lines[row - 1][:column].encode())
        if token.type in (tokenize.NL, tokenize.COMMENT, tokenize.NEWLINE):
            continue
        if token.string in ("(", "[", "{"):
            depth += 1
            opened = True
        elif token.string in (")", "]", "}"):
            depth -= 1
            if opened and depth == 0:
                return Edit(at, at, text if last in ("(", ",") else f", {text}")
        elif token.string == "**" and depth == 1 and last in ("(", ","):
            return Edit(at, at, f"{text}, ")
        last = token.string
    raise Refusal(function, "its parameters cannot be read", "Write them plainly.")
