"""Recognises devices in source code: names of devices, moves to them, and choices among them."""

from __future__ import annotations

import ast

from portwright.port.rewrite import is_constant
from portwright.port.rule import File
from portwright.port.tree import FUNCTIONS, Binding, pair


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


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
    if isinstance(node, ast.IfExp):
        return all(is_device_value(file, side, depth) for side in (node.body, node.orelse))
    if isinstance(node, ast.JoinedStr):
        return bool(node.values) and is_accelerator(node.values[0])
    if isinstance(node, ast.Call):
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
    if isinstance(node, ast.Call) and file.resolve(node.func) == "torch.device" and len(node.args) == 1:
        node = node.args[0]
    return is_constant(node, "cpu")


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
        return (
            isinstance(parent.func, ast.Attribute)
            and parent.func.attr == "to"
            and file.resolve(parent.func) is None
        )
    if isinstance(parent, ast.keyword):
        if parent.arg in ("device", "map_location"):
            return True
        call = file.tree.parents.get(parent)
        is_option = (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "add_argument"
        )
        return is_option and parent.arg == "default"
    if isinstance(parent, ast.Assign) and parent.value is node:
        target = parent.targets[0]
        name = getattr(target, "id", getattr(target, "attr", ""))
        return name.lower() in ("device", "_device", "dev") or _is_used_as_device(file, target)
    return isinstance(parent, ast.Return) and _chooses_device(file, file.tree.function_of(node))


def _chooses_device(file: File, function: ast.AST | None) -> bool:
    """Whether a function returns devices, and is called only where one is expected."""
    if not isinstance(function, FUNCTIONS):
        return False
    returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return)]
    calls = [
        c for c in file.tree.all(ast.Call) if isinstance(c.func, ast.Name) and c.func.id == function.name
    ]
    uses = [n for n in file.tree.all(ast.Name) if n.id == function.name]
    return (
        len(uses) == len(calls) > 0
        and all(r is not None and (is_device_value(file, r) or is_host(file, r)) for r in returned)
        and all(names_device(file, call) for call in calls)
    )


def _is_used_as_device(file: File, target: ast.expr) -> bool:
    """Whether a variable is used as a device anywhere."""
    if not isinstance(target, ast.Name):
        return False
    scope = file.tree.scope_of(target)
    return any(
        node.id == target.id
        and isinstance(node.ctx, ast.Load)
        and (found := file.tree.scope_of(node).lookup(node.id)) is not None
        and found[0] is scope
        and names_device(file, node)
        for node in file.tree.all(ast.Name)
    )


def is_device(file: File, node: ast.expr, depth: int = 0) -> bool:
    """Whether it is a device that is not the `.device` of a tensor."""
    if is_accelerator(node) or is_constant(node, "cpu"):
        return True
    if isinstance(node, ast.Constant):
        return False
    if isinstance(node, ast.Name) and _follows_tensor(file, node):
        return False
    if file.flow.kind(node) == "device":
        return not (isinstance(node, ast.Attribute) and file.flow.is_tensor(node.value))
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    if isinstance(node, ast.Attribute) and not isinstance(node.value, ast.Name):
        return False
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id not in _OWNERS:
        return False  # x.device follows x
    return name.lower() in _NAMES or (isinstance(node, ast.Name) and _is_bound_to_device(file, node, depth))


def _is_bound_to_device(file: File, name: ast.Name, depth: int) -> bool:
    """Whether a variable holds a device: assigned here, returned by a function of this file, or passed by a call in it."""
    found = file.tree.scope_of(name).lookup(name.id)
    if not found or depth > 4:
        return False
    if len(found[1]) == 1 and found[1][0].kind == "parameter":
        return any(is_device_value(file, g, depth + 1) for g in given_to(file, found[1][0]))
    return all(
        b.kind == "assign" and b.value is not None and _makes_device(file, b.value, depth + 1)
        for b in found[1]
    )


def _makes_device(file: File, value: ast.expr, depth: int) -> bool:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        found = file.tree.scope_of(value.func).lookup(value.func.id)
        function = found[1][0].node if found and len(found[1]) == 1 else None
        if isinstance(function, ast.FunctionDef):
            returns = [n.value for n in ast.walk(function) if isinstance(n, ast.Return)]
            return bool(returns) and all(r is not None and is_device_value(file, r, depth) for r in returns)
    return is_device_value(file, value, depth)


def _follows_tensor(file: File, name: ast.Name) -> bool:
    """Whether a variable is assigned the device of a tensor, as in `device = x.device`."""
    found = file.tree.scope_of(name).lookup(name.id)
    values = [b.value for b in found[1]] if found else []
    return any(
        isinstance(v, ast.Attribute) and v.attr == "device" and file.flow.is_tensor(v.value) for v in values
    )


def is_move(file: File, call: ast.Call) -> bool:
    """Whether a call is `.to(device)` of a tensor or a model."""
    if not isinstance(call.func, ast.Attribute) or file.flow.kind(call.func.value) == "executor":
        return False
    given = next((k.value for k in call.keywords if k.arg == "device"), None)
    if any(k.arg is None or k.arg == "copy" for k in call.keywords):
        return False  # copy=True does more than move
    return (given is not None and is_device(file, given)) or (
        bool(call.args) and is_device(file, call.args[0])
    )


def self_moves(file: File, statement: ast.Assign) -> list[ast.Call]:
    """The moves in an assignment that only moves tensors: `x, y = x.to(device), y.to(device)`."""
    if len(statement.targets) != 1:
        return []
    moves: list[ast.Call] = []
    for target, value in pair(statement.targets[0], statement.value):
        if (
            not isinstance(value, ast.Call)
            or not isinstance(value.func, ast.Attribute)
            or value.func.attr != "to"
        ):
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
        if getattr(call.func, "id", getattr(call.func, "attr", "")) != called:
            continue
        named = next((k.value for k in call.keywords if k.arg == parameter.node.arg), None)
        at = names.index(parameter.node.arg) if parameter.node.arg in names else len(call.args)
        if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
            return []
        value = named if named is not None else call.args[at] if at < len(call.args) else parameter.value
        if value is None:
            return []
        found.append(value)
    return found
