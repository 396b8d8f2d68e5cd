"""The part of a training step that a vendor's graph computes: from the model's call to its loss."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from portwright.port.branches.text import Refusal, indent_of, is_simple
from portwright.port.rule import File

_NUMBER_CALLS = frozenset({"size", "dim", "numel", "nelement", "ndimension"})
_NUMBER_ATTRIBUTES = frozenset({"shape", "ndim", "dtype", "device"})
_HOST_READS = frozenset({"item", "tolist", "numpy", "cpu", "backward"})
# What nn.Module itself calls so, and what the wrapper does.
_TAKEN = frozenset(dir(object)) | {
    "model", "forward", "training", "train", "eval", "to", "cpu", "cuda", "parameters", "modules", "children", "apply",
    "state_dict", "load_state_dict", "buffers", "float", "half", "double", "type", "share_memory", "zero_grad", "compile",
}  # fmt: skip
_BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True)
class Part:
    """A value that the graph needs: its text where the step runs, and what the wrapper calls it."""

    text: str
    name: str
    node: ast.expr


@dataclass
class GraphSlice:
    """Statements that move into the graph, in order, and what they need and give."""

    loss: str
    anchor: ast.stmt  # the last of them, where the loss is known
    statements: list[ast.stmt] = field(default_factory=list)
    twins: list[ast.stmt] = field(default_factory=list)  # the same statements in another branch
    late: list[ast.stmt] = field(default_factory=list)  # need the outputs, but the loss does not need them
    inputs: list[Part] = field(default_factory=list)
    captured: list[Part] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    replaced: dict[ast.AST, str] = field(default_factory=dict)
    # inputs that the model's call alone needs, where it can be made alone
    num_model_inputs: int | None = None

    @property
    def can_evaluate(self) -> bool:
        return self.num_model_inputs is not None and self.num_model_inputs < len(self.inputs)


@dataclass(frozen=True)
class Setting:
    """What a slice is cut from: the code of one step, and what its names are."""

    file: File
    body: Sequence[ast.stmt]  # of the step
    function: ast.AST  # around it
    models: frozenset[str]  # texts that mean the model
    is_batch: Callable[[str], bool]  # whether a name changes from step to step


def simple_statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements without blocks of their own, in the order of the text; nested functions are left out."""
    for statement in body:
        if is_simple(statement):
            yield statement
        elif not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for name in ("body", "orelse", "finalbody"):
                yield from simple_statements(getattr(statement, name, []))
            for handler in getattr(statement, "handlers", []):
                yield from simple_statements(handler.body)
            for case in getattr(statement, "cases", []):
                yield from simple_statements(case.body)


def stored(statement: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def loaded(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def is_model(setting: Setting, node: ast.AST) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute)) and setting.file.segment(node) in setting.models


def calls_model(setting: Setting, node: ast.AST) -> bool:
    return any(isinstance(n, ast.Call) and is_model(setting, n.func) for n in ast.walk(node))


def branch_path(file: File, statement: ast.stmt) -> dict[ast.AST, str]:
    """The `if`s around a statement, each with the branch that it stands in."""
    path: dict[ast.AST, str] = {}
    inner: ast.AST = statement
    for outer in file.tree.ancestors(statement):
        if isinstance(outer, ast.If):
            path[outer] = "body" if inner in outer.body else "orelse"
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            break
        inner = outer
    return path


def cut(setting: Setting, loss: str, anchor: ast.stmt) -> GraphSlice:
    """The slice that ends in `anchor`, which gives the loss; refuses what it does not understand."""
    result = GraphSlice(loss, anchor)
    home = branch_path(setting.file, anchor)
    before = []
    for statement in simple_statements(setting.body):
        path = branch_path(setting.file, statement)
        if statement.lineno <= anchor.lineno and all(home.get(i, side) == side for i, side in path.items()):
            before.append(statement)
    tainted: set[str] = set()
    marked: list[ast.stmt] = []
    for statement in before:
        if calls_model(setting, statement) or loaded(statement) & tainted:
            marked.append(statement)
            tainted |= stored(statement)
        elif isinstance(statement, ast.Assign):
            tainted -= stored(statement)
    if anchor not in marked:
        raise Refusal(
            anchor,
            "the loss does not come from the model's call in this function",
            "Compute the loss where the model is called.",
        )
    needed = loaded(anchor) | stored(anchor)
    chosen = [anchor]
    for statement in reversed(marked[: marked.index(anchor)]):
        if stored(statement) & needed:
            chosen.append(statement)
            needed |= loaded(statement)
        else:
            result.late.append(statement)
    chosen.reverse()
    result.late.reverse()
    _choose_branches(setting, result, chosen, home)
    _check(setting, result)
    _name_parts(setting, result)
    return result


def _choose_branches(
    setting: Setting, result: GraphSlice, chosen: list[ast.stmt], home: dict[ast.AST, str]
) -> None:
    """One of two branches that say the same, as with and without autocast."""
    seen: dict[tuple[int, str], ast.stmt] = {}
    for statement in chosen:
        path = branch_path(setting.file, statement)
        outer = [i for i in path if i not in home and setting.file.tree.is_within(i, _frame(setting))]
        if not outer:
            result.statements.append(statement)
            continue
        key = (id(outer[-1]), _normal(setting, statement))
        if key in seen:
            result.twins.append(statement)
        else:
            seen[key] = statement
            result.statements.append(statement)
    for statement in result.statements:
        path = branch_path(setting.file, statement)
        outer = [i for i in path if i not in home and setting.file.tree.is_within(i, _frame(setting))]
        if not outer:
            continue
        sides = {
            branch_path(setting.file, s)[outer[-1]]
            for s in (statement, *result.twins)
            if outer[-1] in branch_path(setting.file, s)
            and _normal(setting, s) == _normal(setting, statement)
        }
        if sides != {"body", "orelse"}:
            raise Refusal(
                statement,
                "this part of the step is computed only under a condition",
                "A graph is fixed: compute it always, and choose with torch.where or a factor.",
            )


def _frame(setting: Setting) -> ast.AST:
    return setting.function


def _normal(setting: Setting, statement: ast.stmt) -> str:
    text = setting.file.segment(statement)
    for model in sorted(setting.models, key=len, reverse=True):
        text = text.replace(f"{model}(", "MODEL(")
    return " ".join(text.split())


def _check(setting: Setting, result: GraphSlice) -> None:
    for statement in (*result.statements, *result.late, *result.twins):
        indent_of(setting.file, statement)
        if isinstance(statement, ast.Assign):
            leaves = [e for t in statement.targets for e in (t.elts if isinstance(t, ast.Tuple) else [t])]
            plain = all(isinstance(leaf, ast.Name) for leaf in leaves)
        else:
            plain = isinstance(getattr(statement, "target", None), ast.Name)
        if not plain and statement not in result.late:
            raise Refusal(
                statement,
                "the loss is computed through an attribute or an item here",
                "Give it a name of its own, then port again.",
            )
    for statement in result.statements:
        for node in ast.walk(statement):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in _HOST_READS
            ):
                raise Refusal(
                    node,
                    f".{node.func.attr}() reads a value between the model's call and its loss",
                    "Compute the loss from tensors only.",
                )


def _name_parts(setting: Setting, result: GraphSlice) -> None:
    inside = {name for s in result.statements for name in stored(s)}
    namer = _Namer(setting, result, inside)
    known: set[str] = set()
    for position, statement in enumerate(result.statements):
        carried = (loaded(statement) & inside) - known
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            carried |= {statement.target.id} - known
        if carried:
            raise Refusal(
                statement,
                f"'{min(carried)}' is carried from step to step",
                "A graph has no memory: make it a buffer of the model, or start it anew in each step.",
            )
        for child in ast.iter_child_nodes(statement):
            namer.visit(child, frozenset())
        known |= stored(statement)
        if position == 0 and _is_plain_call(setting, statement):
            result.num_model_inputs = len(result.inputs)
    mine = {id(s) for s in (*result.statements, *result.twins)}
    elsewhere: set[str] = set()
    for leaf in _all_statements(setting.function):
        if id(leaf) not in mine:
            elsewhere |= loaded(leaf)
    for statement in result.statements:
        for target in _target_names(statement):
            if target != result.loss and target in elsewhere and target not in result.outputs:
                result.outputs.append(target)


def _is_plain_call(setting: Setting, statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
        and isinstance(statement.value, ast.Call)
        and is_model(setting, statement.value.func)
    )


def _target_names(statement: ast.stmt) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [n.id for t in targets if t is not None for n in ast.walk(t) if isinstance(n, ast.Name)]


def _all_statements(function: ast.AST) -> Iterator[ast.AST]:
    """Leaves of a function's blocks: simple statements, and the heads of compound ones."""
    for node in ast.walk(function):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            yield node
        elif isinstance(node, (ast.If, ast.While)):
            yield node.test
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            yield node.iter
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            yield from (item.context_expr for item in node.items)


class _Namer:
    """Finds what a slice takes from outside, and what to write for it in the wrapper."""

    def __init__(self, setting: Setting, result: GraphSlice, inside: set[str]) -> None:
        self.setting, self.result, self.inside = setting, result, inside

    def visit(self, node: ast.AST, local: frozenset[str]) -> None:
        setting = self.setting
        if isinstance(node, ast.expr) and is_model(setting, node):
            self.result.replaced[node] = "self.model"
            return
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            self.result.replaced[node] = f"self.{self._capture(node, node.attr)}"
            return
        if isinstance(node, ast.expr) and self._is_host(node, local) and not is_number(node):
            self.result.replaced[node] = self._input(node)
            return
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load) and node.id not in local and node.id not in self.inside:
                # a graph takes no tensor of the host
                if setting.is_batch(node.id) or setting.file.flow.is_tensor(node):
                    self.result.replaced[node] = self._input(node)
                elif not self._is_definition(node):
                    self.result.replaced[node] = f"self.{self._capture(node, node.id)}"
            return
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            local = local | {n for g in node.generators for n in stored(g.target)}
        elif isinstance(node, ast.Lambda):
            local = local | {a.arg for a in node.args.args}
        for child in ast.iter_child_nodes(node):
            # A method is not a value of its own: of x.size(0), x is what the graph needs.
            method = isinstance(node, ast.Call) and child is node.func and isinstance(child, ast.Attribute)
            self.visit(child.value if method and not self._is_own(child) else child, local)  # type: ignore[attr-defined]

    def _is_own(self, node: ast.AST) -> bool:
        """The model, or something of self: what is called as it stands."""
        return is_model(self.setting, node) or (
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
        )

    def _is_host(self, node: ast.expr, local: frozenset[str]) -> bool:
        """Whether an expression of the batch can be computed before the graph runs."""
        names = loaded(node)
        if not any(self.setting.is_batch(n) and n not in self.inside for n in names - local):
            return False
        if isinstance(node, (ast.Starred, ast.GeneratorExp, ast.Lambda)) or names & (self.inside | local):
            return False
        return not any(is_model(self.setting, n) for n in ast.walk(node))

    def _is_definition(self, name: ast.Name) -> bool:
        """A module, function or class, which the wrapper sees as the step does."""
        if name.id in _BUILTINS and self.setting.file.tree.scope_of(name).lookup(name.id) is None:
            return True
        found = self.setting.file.tree.scope_of(name).lookup(name.id)
        if found is None:
            return True  # a star import
        scope, bindings = found
        return scope.parent is None and all(b.kind in ("import", "function", "class") for b in bindings)

    def _input(self, node: ast.expr) -> str:
        text = self.setting.file.segment(node)
        known = next((part for part in self.result.inputs if part.text == text), None)
        if known is None:
            known = Part(text, self._free(_call_it(node)), node)
            self.result.inputs.append(known)
        return known.name

    def _capture(self, node: ast.expr, name: str) -> str:
        text = self.setting.file.segment(node)
        known = next((part for part in self.result.captured if part.text == text), None)
        if known is None:
            known = Part(text, self._free(name.lstrip("_") or "value"), node)
            self.result.captured.append(known)
        return known.name

    def _free(self, name: str) -> str:
        taken = {p.name for p in (*self.result.inputs, *self.result.captured)} | _TAKEN | self.inside
        number, free = 1, name
        while free in taken:
            number += 1
            free = f"{name}_{number}"
        return free


def _call_it(node: ast.expr) -> str:
    """A name for an expression: batch["image"] is image, y.view(-1) is y."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        key = node.slice.value
        if isinstance(key, str) and key.isidentifier():
            return key
        return f"{_call_it(node.value)}_{key}" if isinstance(key, int) and key >= 0 else _call_it(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _call_it(node.func.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
    return names[0] if isinstance(node, ast.Name) or len(set(names)) == 1 else "value"


def is_number(node: ast.expr) -> bool:
    """Whether an expression is a size or another plain number, which a graph does not take as an input."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            return node.func.attr in _NUMBER_CALLS
        return isinstance(node.func, ast.Name) and node.func.id in ("len", "int", "float", "bool", "range")
    if isinstance(node, ast.Attribute):
        return node.attr in _NUMBER_ATTRIBUTES
    if isinstance(node, ast.Subscript):
        return is_number(node.value)
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(is_number(e) for e in node.elts)
    return False
