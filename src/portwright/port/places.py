"""Infers on which device tensors are: placed by the target, made on the host, or unknown; and rewrites moves accordingly."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from portwright.port.callers import any_has, importers
from portwright.port.devices import (
    given_to,
    host_side,
    is_accelerator,
    is_device_value,
    is_move,
    names_device,
    quote,
)
from portwright.port.finding import Edit, Safety
from portwright.port.kinds import STEP_METHODS
from portwright.port.project import Project
from portwright.port.rewrite import argument, is_constant, swap_method, unwrap
from portwright.port.rule import File
from portwright.port.source import Source
from portwright.port.switches import device_questions, is_pure
from portwright.port.tree import FUNCTIONS, Binding, MethodCall, is_method_call, is_name, words

# placed: a model or batch, which the target places; made: a tensor made on the host.
Origin = Literal["placed", "made", "unknown"]
_MAX_DEPTH = 10
# Looked at to answer one question: where each name comes from two others, the ways back are without number.
_MOST_VALUES = 50_000
_DEVICE = re.compile(rb"cuda|device|\.to\(")
_MAKERS = words(
    """zeros ones full arange linspace logspace eye tensor empty rand randn randint randperm normal from_numpy
    as_tensor tril_indices triu_indices bernoulli"""
)
_IN_PLACE = re.compile(r"^(?!requires_grad).*[a-z]_$")
_LOADERS = re.compile(r"load|data|batch|iter|train|test|val", re.IGNORECASE)
# Attributes that show a tensor; numpy arrays have the first ones too.
_ARRAY_SIGNS = words("""shape size view reshape transpose mean sum squeeze flatten repeat argmax dtype""")
_TENSOR_SIGNS = words(
    """dim permute unsqueeze matmul softmax expand masked_fill contiguous device float long bool chunk new_zeros
    new_ones detach type_as"""
)
# Layers whose input is one tensor; recurrent ones may be given packed sequences, which have no device.
_TAKES_A_TENSOR = re.compile(
    r"(torch\.nn|portwright\.layers\.legal)\.(\w*Embedding\w*|Linear|Bilinear|Conv\w+|\w+Norm\w*|\w+Pool\w+)$"
)


def settle_move(file: File, call: MethodCall, kept: str = "") -> list[Edit] | None:
    """Removes `.cuda()` or `.to(device)` if the target places the tensor anyway.

    In a step, a tensor made on the host is moved to the device of another tensor instead. Empty if neither is possible,
    and None if a caller passes the device.
    """
    value = call.func.value
    out = swap_method(file, call, f"to({kept})") if kept else unwrap(file, call, value)
    if file.tree.stands_alone(call) or file.flow.kind(value) == "module":
        return out  # only a model is moved in place
    given = _given_device(call)
    in_step = file.flow.in_step(call)
    if in_step and (is_constant(given, "cpu") or (isinstance(given, ast.Name) and "cpu" in given.id)):
        return []  # a copy to the host
    where = origin(file, value)
    if where != "placed":
        if given is not None and not is_own(file, given):
            return None
        if in_step:
            beside = tensor_at_hand(file, call, unlike=value)
            more = f", {kept}" if kept else ""
            return swap_method(file, call, f"to({beside}.device{more})") if beside else []
    return [] if keeps_original(file, call) else out


def is_idle_move(file: File, call: MethodCall) -> bool:
    """Whether a move can be removed without other changes."""
    return settle_move(file, call) == unwrap(file, call, call.func.value)


def _given_device(call: ast.Call) -> ast.expr | None:
    return None if is_method_call(call, "cuda") else argument(call, 0, "device")


def is_written(file: File, call: ast.Call) -> bool:
    """Whether the moved tensor is written in place."""
    statement = file.tree.statement_of(call)
    if not isinstance(statement, ast.Assign):
        return False
    names = {n.id for t in statement.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    for node in ast.walk(file.tree.function_of(call) or file.tree.module):
        target: ast.AST | None = None
        match node:
            case ast.AugAssign(target=target) | ast.Subscript(value=target, ctx=ast.Store()):
                pass
            case ast.Call(ast.Attribute(receiver, method)) if _IN_PLACE.search(method):
                target = receiver
        while isinstance(target, (ast.Subscript, ast.Attribute)):
            target = target.value
        if (
            isinstance(target, ast.Name)
            and target.id in names
            and file.flow.kind(target) not in ("number", "module")
        ):
            return True
    return False


def keeps_original(file: File, call: MethodCall) -> bool:
    """Whether a move protects the original from a write into the moved tensor: only a move between devices copies."""
    value, statement = call.func.value, file.tree.statement_of(call)
    if not isinstance(value, (ast.Name, ast.Attribute, ast.Subscript)) or not is_written(file, call):
        return False
    if isinstance(value, ast.Name) and isinstance(statement, ast.Assign):
        found = file.tree.bindings(value)
        is_same = any(is_name(n, value.id) for t in statement.targets for n in ast.walk(t))
        if is_same and found and all(b.kind != "parameter" for b in found):
            return False  # the name is reassigned, so nothing uses the original
    return origin(file, value) != "placed"


def device_safety(file: File) -> Safety:
    """Whether rewriting the devices of a file is safe."""
    return file.once(_device_safety)


def _device_safety(file: File) -> Safety:
    """Unsafe if this file, or one that imports it, must keep its devices: such files share models, batches and devices."""
    project, path = file.names.project, file.source.path
    is_kept = _keeps(file) or any_has(project, importers(project, path), _text_keeps)
    return "unsafe" if is_kept else "safe"


def _keeps(file: File) -> bool:
    """Whether this file, or one whose functions it calls, must keep its devices."""
    names = (file.resolve(call.func) or "" for call in file.tree.all(ast.Call))
    called = {Path(name.partition("::")[0]) for name in names if "::" in name} - {file.source.path}
    return _must_keep(file) or any_has(file.names.project, sorted(called), _text_must_keep)


def _must_keep(file: File) -> bool:
    moves = [*file.methods("cuda"), *(c for c in file.methods("to") if is_move(file, c))]
    is_copied = any(keeps_original(file, c) for c in moves)
    return bool(file.once(device_questions)) or is_copied or _leaves_accelerator(file, moves)


def _text_keeps(source: Source, project: Project) -> bool:
    return _DEVICE.search(source.data) is not None and _keeps(File(source, project, frozenset()))


def _text_must_keep(source: Source, project: Project) -> bool:
    return _DEVICE.search(source.data) is not None and _must_keep(File(source, project, frozenset()))


def _leaves_accelerator(file: File, moves: list[MethodCall]) -> bool:
    """Whether a move is kept, and a text in the file still names an accelerator after the rewrite."""
    given = [_given_device(call) for call in moves if not settle_move(file, call) and not _follows(call)]
    if all(device is None or is_constant(device, "cpu") for device in given):
        return False
    rewritten = {part for node, *_ in named_devices(file) for part in ast.walk(node)}
    return any(
        is_accelerator(node)
        and node not in rewritten
        and not isinstance(file.tree.parents[node], ast.Compare)
        for node in file.tree.all(ast.Constant)
    )


def named_devices(file: File) -> Iterator[tuple[ast.expr, str, str]]:
    """Each accelerator that is named or chosen, with the message for it and the host device that replaces it."""
    chosen: set[ast.AST] = set()
    for choice in file.tree.all(ast.IfExp):
        host = host_side(file, choice)
        if host is not None and is_pure(file, choice.test):
            chosen.update(ast.walk(choice))
            yield choice, "a device is chosen that is not there", file.segment(host)
    for node in file.tree.all(ast.Constant):
        if is_accelerator(node) and node not in chosen and names_device(file, node):
            yield node, f"the device {file.segment(node)} is not there", quote(file, node, "cpu")


def _follows(call: ast.Call) -> bool:
    """Whether a move goes to the device of another value: `x.to(y.device)`."""
    given = _given_device(call)
    return isinstance(given, ast.Attribute) and given.attr == "device" and not is_name(given.value, "self")


def is_own(file: File, node: ast.expr, depth: int = 0) -> bool:
    """Whether the script itself chooses a device, rather than taking that of a tensor."""
    if depth > _MAX_DEPTH:
        return False
    if isinstance(node, ast.Name):
        found = file.tree.bindings(node)
        return bool(found) and all(_is_own_binding(file, b, depth + 1) for b in found)
    if isinstance(node, ast.Attribute) and is_name(node.value, "self"):
        values = file.tree.attribute_values(node)
        return bool(values) and all(is_own(file, v, depth + 1) for v in values)
    if isinstance(node, ast.Call):
        return all(
            not isinstance(n, ast.Attribute) or n.attr != "device" or file.resolve(n) for n in ast.walk(node)
        )
    return is_device_value(file, node)


def _is_own_binding(file: File, binding: Binding, depth: int) -> bool:
    if binding.kind == "parameter":
        given = given_to(file, binding)
        return bool(given) and all(is_own(file, g, depth) for g in given)
    return binding.value is not None and binding.kind == "assign" and is_own(file, binding.value, depth)


def origin(file: File, node: ast.expr) -> Origin | None:
    """Where a value comes from; None if it depends only on itself."""
    return _Search(file).origin(node, frozenset())


class _Search:
    """Follows a value back through assignments, calls and arguments; gives up where these are too many."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.left = _MOST_VALUES

    def origin(self, node: ast.expr, seen: frozenset[ast.AST]) -> Origin | None:
        file = self.file
        if node in seen:
            return None  # a value that depends on itself
        self.left -= 1
        if self.left < 0 or len(seen) > 4 * _MAX_DEPTH:
            return "unknown"
        seen = seen | {node}
        if file.flow.kind(node) == "module":
            return "placed"
        match node:
            case ast.Name():
                found = file.tree.bindings(node)
                loops = (loop for loop in file.tree.loops_of(node) if isinstance(loop, ast.For))
                loop = next((loop for loop in loops if node.id in _items(loop)), None)
                if loop is not None:  # the loop variable, and its assignments in the body
                    found = [b for b in found if file.tree.is_within(b.node, loop)]
                return _same(self._of_binding(b, seen) for b in found)
            case ast.Subscript() | ast.Attribute() | ast.Starred():
                return self.origin(node.value, seen)
            case ast.BinOp():
                return _mixed(self.origin(side, seen) for side in (node.left, node.right))
            case ast.UnaryOp():
                return self.origin(node.operand, seen)
            case ast.Call():
                return self._of_call(node, seen)
        return "unknown"

    def _of_binding(self, binding: Binding, seen: frozenset[ast.AST]) -> Origin | None:
        file = self.file
        if binding.kind in ("assign", "unpack") and binding.value is not None:
            return self.origin(binding.value, seen)
        if binding.kind == "iterate":
            return "placed" if _gives_batches(file, binding) else "unknown"
        if binding.kind == "parameter":
            if _is_model_input(file, file.tree.parents[file.tree.parents[binding.node]]):
                return "placed"
            given = given_to(file, binding)
            return _same(self.origin(g, seen) for g in given) if given else "unknown"
        return "unknown"

    def _of_call(self, call: ast.Call, seen: frozenset[ast.AST]) -> Origin | None:
        file = self.file
        name = file.resolve(call.func) or ""
        head, _, last = name.rpartition(".")
        given = [*call.args, *(k.value for k in call.keywords)]
        if name.startswith("numpy.") or (head == "torch" and (last in _MAKERS or last.endswith("Tensor"))):
            return "made"
        if name.startswith("torch."):
            return _mixed(self.origin(g, seen) for g in given if file.flow.kind(g) != "number")
        if is_name(call.func, "next") or file.flow.kind(call.func) == "module":
            return "placed"
        if isinstance(call.func, ast.Attribute) and not name:
            return self.origin(call.func.value, seen)
        return "unknown"


def _same(origins: Iterable[Origin | None]) -> Origin:
    """The one origin of all; what can no longer change the answer is not asked, since each may ask many more."""
    found: Origin | None = None
    for each in origins:
        if each == "unknown" or (found and each and each != found):
            return "unknown"
        found = each or found
    return found or "unknown"


def _mixed(origins: Iterable[Origin | None]) -> Origin:
    """The origin of an operation's result: placed if one operand is, since operands share a device."""
    found = set()
    for each in origins:
        if each == "placed":
            return "placed"
        found.add(each)
    return "made" if found - {None} == {"made"} else "unknown"


def _gives_batches(file: File, binding: Binding) -> bool:
    """Whether a loop iterates over a loader."""
    over = binding.value
    while isinstance(over, ast.Call) and over.args:
        over = over.args[0]  # enumerate, tqdm, zip, islice
    if file.flow.kind(over) == "loader" or binding.node in file.flow.step_regions:
        return not isinstance(over, (ast.List, ast.Tuple)) and file.flow.kind(over) != "tensor"
    return isinstance(over, (ast.Name, ast.Attribute)) and bool(_LOADERS.search(file.segment(over)))


def tensor_at_hand(file: File, node: ast.AST, unlike: ast.expr | None = None) -> str | None:
    """The name of a tensor whose device a new one can take: a required argument of the function around, or one of the batch."""
    taken = {n.id for n in ast.walk(unlike) if isinstance(n, ast.Name)} if unlike is not None else set()
    function = file.tree.function_of(node)
    if isinstance(function, FUNCTIONS):
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        required = positional[: len(positional) - len(arguments.defaults)]
        scope = file.tree.scopes[function]
        signs = _TENSOR_SIGNS | _ARRAY_SIGNS if _is_model_input(file, function) else _TENSOR_SIGNS
        for argument in required:
            bindings = scope.bindings.get(argument.arg, ())
            if argument.arg in ("self", "cls", *taken) or not all(_stays_tensor(file, b) for b in bindings):
                continue
            if _is_used_as_tensor(file, function, argument.arg, signs):
                return argument.arg
    for loop in file.tree.loops_of(node):
        if loop in file.flow.step_regions and isinstance(loop, ast.For):
            for name in _items(loop):
                if name not in taken and _is_batch_tensor(file, loop, name):
                    return name
    return None


def _items(loop: ast.For) -> list[str]:
    """The variables of a loop, without the counter of enumerate."""
    is_counted = isinstance(loop.iter, ast.Call) and is_name(loop.iter.func, "enumerate")
    target = loop.target.elts[-1] if is_counted and isinstance(loop.target, ast.Tuple) else loop.target
    return [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]


def _is_batch_tensor(file: File, loop: ast.For, name: str) -> bool:
    loads = [
        n for n in ast.walk(loop) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
    ]
    return (
        bool(loads)
        and origin(file, loads[0]) == "placed"
        and (file.flow.is_tensor(loads[0]) or _is_used_as_tensor(file, loop, name, _TENSOR_SIGNS))
    )


def _is_model_input(file: File, function: ast.AST) -> bool:
    """Whether a function is the forward() or step method of a model."""
    info = file.tree.class_of(function)
    is_step = getattr(function, "name", "") in STEP_METHODS
    return is_step and info is not None and file.names.is_module_node(info.node)


def _is_used_as_tensor(file: File, region: ast.AST, name: str, signs: frozenset[str]) -> bool:
    return any(
        (isinstance(node, ast.Attribute) and node.attr in signs and is_name(node.value, name))
        or (is_method_call(node, "size") and is_name(node.func.value, name))
        or _goes_into_layer(file, node, name)
        for node in ast.walk(region)
    )


def _goes_into_layer(file: File, call: ast.AST, name: str) -> bool:
    """Whether a call passes the name to a layer of the class that takes one tensor."""
    is_own = is_method_call(call) and is_name(call.func.value, "self")
    if not is_own or not call.args or not is_name(call.args[0], name):  # type: ignore[attr-defined]
        return False
    made = file.tree.attribute_values(call.func)  # type: ignore[attr-defined]
    return bool(made) and all(
        isinstance(m, ast.Call) and _TAKES_A_TENSOR.match(file.resolve(m.func) or "") for m in made
    )


def _stays_tensor(file: File, binding: Binding) -> bool:
    """Whether a binding is the argument itself, or a tensor assigned to its name."""
    return binding.kind == "parameter" or (binding.kind == "assign" and file.flow.is_tensor(binding.value))
