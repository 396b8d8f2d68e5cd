"""Recognises devices in source code: names of devices, moves to them, and choices among them."""

from __future__ import annotations

import ast

from portwright.port.rewrite import argument, has_star, is_constant
from portwright.port.rule import File
from portwright.port.tree import (
    FUNCTIONS,
    Binding,
    MethodCall,
    is_method_call,
    is_name,
    last_name,
    pair,
    words,
)

_OWNERS = words("self args opt config cfg params hparams opts conf flags FLAGS")
_NAMES = words("device _device dev local_rank gpu rank")
_DEVICE_CALLS = ("torch.device", "torch.accelerator.current_accelerator", "torch.cuda.current_device")


def is_accelerator(node: ast.AST | None) -> bool:
    """Whether it is a text such as "cuda", "cuda:1", "mps" or "xpu"."""
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.partition(":")[0] in ("cuda", "mps", "xpu")
    )


def is_device_value(file: File, node: ast.expr, depth: int = 0) -> bool:
    """Whether it is a device, given by text, call or name, or a choice among devices."""
    match node:
        case ast.IfExp():
            return all(is_device_value(file, side, depth) for side in (node.body, node.orelse))
        case ast.JoinedStr():
            return bool(node.values) and is_accelerator(node.values[0])
        case ast.Call():
            return file.resolve(node.func) in _DEVICE_CALLS
    return is_device(file, node, depth)


def quote(file: File, node: ast.AST, text: str) -> str:
    """A text in the same quotes as a node."""
    mark = "'" if file.segment(node).lstrip("rRuUbB").startswith("'") else '"'
    return f"{mark}{text}{mark}"


def host_side(file: File, choice: ast.IfExp) -> ast.expr | None:
    """The host's side of `cuda if ... else cpu`; None if it is no such choice."""
    sides = (choice.body, choice.orelse)
    if not all(is_device_value(file, side) for side in sides):
        return None
    for there, here in (sides, sides[::-1]):
        if _is_of_accelerator(file, there) and is_host(file, here):
            text = file.segment(choice.test).lower()
            asks = any(word in text for word in ("cuda", "gpu", "available", "accel", "cpu"))
            return here if asks or names_device(file, choice) else None
    return None


def _is_of_accelerator(file: File, node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        if file.resolve(node.func) != "torch.device":
            return True  # current_accelerator(), current_device()
        return bool(node.args) and _is_of_accelerator(file, node.args[0])
    return is_accelerator(node) or isinstance(node, ast.JoinedStr)


def is_host(file: File, node: ast.expr) -> bool:
    """Whether it is the host's device, "cpu"."""
    return is_constant(device_text(file, node), "cpu")


def device_text(file: File, node: ast.expr | None) -> ast.expr | None:
    """What torch.device() is given; anything else as it is."""
    is_made = isinstance(node, ast.Call) and file.resolve(node.func) == "torch.device"
    return node.args[0] if is_made and len(node.args) == 1 else node  # type: ignore[union-attr]


def is_device_choice(file: File, call: ast.Call) -> bool:
    """Whether a call such as is_available() is the test of a choice between two devices, which has its own finding."""
    inner: ast.AST = call
    for outer in file.tree.ancestors(call):
        if isinstance(outer, ast.IfExp):
            return inner is outer.test and host_side(file, outer) is not None
        if isinstance(outer, ast.stmt):
            return False
        inner = outer
    return False


def names_device(file: File, node: ast.expr) -> bool:
    """Whether a node is used where a device is expected."""
    parent = file.tree.parents.get(node)
    if isinstance(parent, ast.IfExp):
        return False  # the whole choice is one finding
    if isinstance(parent, ast.Call) and parent.args and node is parent.args[0]:
        if file.resolve(parent.func) in ("torch.device", "torch.set_default_device"):
            return True
        return is_method_call(parent, "to") and file.resolve(parent.func) is None
    if isinstance(parent, ast.keyword):
        is_default = parent.arg == "default" and is_method_call(file.tree.parents[parent], "add_argument")
        return is_default or parent.arg in ("device", "map_location")
    if isinstance(parent, ast.Assign) and parent.value is node:
        target = parent.targets[0]
        is_named = last_name(target).lower() in ("device", "_device", "dev")
        return is_named or _is_used_as_device(file, target)
    return isinstance(parent, ast.Return) and _chooses_device(file, file.tree.function_of(node))


def _chooses_device(file: File, function: ast.AST | None) -> bool:
    """Whether a function returns devices, and is called only where one is expected."""
    if not isinstance(function, FUNCTIONS):
        return False
    returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return)]
    calls = [c for c in file.tree.all(ast.Call) if is_name(c.func, function.name)]
    uses = [n for n in file.tree.all(ast.Name) if n.id == function.name]
    return (
        len(uses) == len(calls) > 0
        and all(r is not None and (is_device_value(file, r) or is_host(file, r)) for r in returned)
        and all(names_device(file, call) for call in calls)
    )


def _is_used_as_device(file: File, target: ast.expr) -> bool:
    """Whether a variable is used as a device anywhere."""
    return isinstance(target, ast.Name) and any(
        names_device(file, node) for node in file.tree.reads(target.id, file.tree.scope_of(target))
    )


def is_device(file: File, node: ast.expr, depth: int = 0) -> bool:
    """Whether it is a device that is not the `.device` of a tensor."""
    if isinstance(node, ast.Constant):
        return is_accelerator(node) or is_constant(node, "cpu")
    if isinstance(node, ast.Name) and _follows_tensor(file, node):
        return False
    if file.flow.kind(node) == "device":
        return not (isinstance(node, ast.Attribute) and file.flow.is_tensor(node.value))
    if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) not in _OWNERS:
        return False  # x.device follows x
    is_named = last_name(node).lower() in _NAMES
    return is_named or (isinstance(node, ast.Name) and _is_bound_to_device(file, node, depth))


def _is_bound_to_device(file: File, name: ast.Name, depth: int) -> bool:
    """Whether a variable holds a device: assigned here, returned by a function of this file, or passed by a call in it."""
    if depth > 4:
        return False
    match file.tree.bindings(name):
        case [Binding("parameter") as parameter]:
            return any(is_device_value(file, g, depth + 1) for g in given_to(file, parameter))
    values = file.tree.assigned_values(name)
    return bool(values) and all(_makes_device(file, value, depth + 1) for value in values)


def _makes_device(file: File, value: ast.expr, depth: int) -> bool:
    function = file.tree.only_definition(value.func) if isinstance(value, ast.Call) else None
    if not isinstance(function, ast.FunctionDef):
        return is_device_value(file, value, depth)
    returns = [n.value for n in ast.walk(function) if isinstance(n, ast.Return)]
    return bool(returns) and all(r is not None and is_device_value(file, r, depth) for r in returns)


def _follows_tensor(file: File, name: ast.Name) -> bool:
    """Whether a variable is assigned the device of a tensor, as in `device = x.device`."""
    values = (b.value for b in file.tree.bindings(name))
    return any(
        isinstance(v, ast.Attribute) and v.attr == "device" and file.flow.is_tensor(v.value) for v in values
    )


def is_move(file: File, call: MethodCall) -> bool:
    """Whether a call is `.to(device)` of a tensor or a model; one with copy=True does more than move."""
    given = [*(k.value for k in call.keywords if k.arg == "device"), *call.args[:1]]
    is_plain = not any(k.arg in (None, "copy") for k in call.keywords)
    return (
        is_plain
        and any(is_device(file, device) for device in given)
        and file.flow.kind(call.func.value) != "executor"
    )


def self_moves(file: File, statement: ast.Assign) -> list[MethodCall]:
    """The moves in an assignment that only moves tensors: `x, y = x.to(device), y.to(device)`."""
    moves: list[MethodCall] = []
    for target, value in pair(statement.targets[0], statement.value) if len(statement.targets) == 1 else ():
        if not is_method_call(value, "to"):
            return []
        plain = all(is_device(file, a) for a in value.args) and all(
            k.arg in ("device", "non_blocking") for k in value.keywords
        )
        if not plain or not is_move(file, value) or file.segment(target) != file.segment(value.func.value):
            return []
        moves.append(value)
    return moves


def given_to(file: File, parameter: Binding) -> list[ast.expr]:
    """The values that calls in this file pass for a parameter, or its default; empty if one call is not understood."""
    function = file.tree.parents[file.tree.parents[parameter.node]]
    assert isinstance(parameter.node, ast.arg)
    if not isinstance(function, FUNCTIONS):
        return []
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    owner = file.tree.parents[function]
    called = owner.name if isinstance(owner, ast.ClassDef) and function.name == "__init__" else function.name
    if isinstance(owner, ast.ClassDef):
        names = names[1:]
    found: list[ast.expr] = []
    for call in file.tree.all(ast.Call):
        if last_name(call.func) != called:
            continue
        at = names.index(parameter.node.arg) if parameter.node.arg in names else len(call.args)
        value = argument(call, at, parameter.node.arg) or parameter.value
        if value is None or has_star(call):
            return []
        found.append(value)
    return found
