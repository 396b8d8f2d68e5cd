"""Devices in source code: what names one, what moves to one, and what asks for one."""

from __future__ import annotations

import ast

from portwright.port.rewrite import is_constant
from portwright.port.rule import File
from portwright.port.tree import pair


def is_cuda(node: ast.AST | None) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and (node.value == "cuda" or node.value.startswith("cuda:"))
    )


def quote(file: File, node: ast.AST, text: str) -> str:
    """A text in the quotes that another one has."""
    mark = "'" if file.segment(node).lstrip("rRuUbB").startswith("'") else '"'
    return f"{mark}{text}{mark}"


def is_device_test(file: File, test: ast.expr) -> bool:
    """`torch.cuda.is_available()`, or a flag that says the same."""
    text = file.segment(test).lower()
    return "cuda" in text or "gpu" in text or "available" in text


def is_device_choice(file: File, call: ast.Call) -> bool:
    """Whether a question for CUDA only chooses between two devices, which is one finding of its own."""
    for outer in file.tree.ancestors(call):
        if isinstance(outer, ast.IfExp):
            return is_cuda(outer.body) and is_constant(outer.orelse, "cpu")
        if isinstance(outer, ast.stmt):
            return False
    return False


def names_device(file: File, node: ast.Constant) -> bool:
    """Whether a text stands where a device is expected."""
    parent = file.tree.parents.get(node)
    if isinstance(parent, ast.IfExp):
        return False  # the whole choice is looked at
    if isinstance(parent, ast.Call) and node in parent.args:
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
        name = (
            target.id
            if isinstance(target, ast.Name)
            else target.attr
            if isinstance(target, ast.Attribute)
            else ""
        )
        return name.lower() in ("device", "_device", "dev")
    return False


def is_device(file: File, node: ast.expr) -> bool:
    """A device that is not read off a tensor."""
    if is_cuda(node) or is_constant(node, "cpu"):
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
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id not in (
        "self", "args", "opt", "config", "cfg", "params", "hparams", "opts", "conf", "flags", "FLAGS",
    ):  # fmt: skip
        return False  # x.device follows x
    return name.lower() in ("device", "_device", "dev", "local_rank", "gpu", "rank")


def _follows_tensor(file: File, name: ast.Name) -> bool:
    """`device = x.device`, in forward(): wherever the input is."""
    found = file.tree.scope_of(name).lookup(name.id)
    values = [b.value for b in found[1]] if found else []
    return bool(values) and all(
        isinstance(v, ast.Attribute) and v.attr == "device" and file.flow.is_tensor(v.value) for v in values
    )


def is_move(file: File, call: ast.Call) -> bool:
    """`.to(device)`, of a tensor or a model."""
    if not isinstance(call.func, ast.Attribute) or file.flow.kind(call.func.value) == "executor":
        return False
    given = next((k.value for k in call.keywords if k.arg == "device"), None)
    if any(k.arg is None or k.arg == "copy" for k in call.keywords):
        return False  # a copy that is asked for is more than a move
    return (given is not None and is_device(file, given)) or (
        bool(call.args) and is_device(file, call.args[0])
    )


def self_moves(file: File, statement: ast.Assign) -> list[ast.Call]:
    """The moves of an assignment that does nothing else: `x, y = x.to(device), y.to(device)`."""
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
