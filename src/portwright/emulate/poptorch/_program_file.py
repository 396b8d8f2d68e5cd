"""A program as JSON data and tensors, and back: nothing in a file is run but ops of torch, found by their names."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from portwright.emulate.poptorch import _program_structure
from portwright.emulate.poptorch._impl import createPoptorchError
from portwright.emulate.poptorch._placement import Tag
from portwright.emulate.poptorch._program_graph import (
    RANDOM_STATE,
    Given,
    Layout,
    Op,
    Parts,
    ProgramNode,
    Value,
    name_of,
)

FORMAT = "portwright.poptorch.program"
VERSION = 1
_OP_NAME = re.compile(r"(aten|prims|poptorch)\.(\w+)\.(\w+)", re.ASCII)  # poptorch: the emulator's own ops
_REACH_OUT = {"from_file", "record_stream"}  # ops of aten that touch more than tensors
_DEVICES = ("cpu", "meta")
_PARTIALS = {None: None, "float16": torch.float16, "float32": torch.float32}
_TYPES: dict[str, dict[str, Any]] = {
    "dtype": {str(t).removeprefix("torch."): t for t in vars(torch).values() if isinstance(t, torch.dtype)},
    "layout": {"strided": torch.strided},
    "memory_format": {
        str(f).removeprefix("torch."): f
        for f in (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
    },
}


def write(parts: Parts) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The file's JSON data, and its tensors, all contiguous and real."""
    tensors = {name: _stored(tensor) for name, tensor in parts.constants.items()}
    data: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "torch": torch.__version__,
        "training": parts.training,
        "partials": None if parts.partials is None else _name(parts.partials),
        "given": [
            {"kind": ref.kind, "key": ref.key, **layout._asdict(), "dtype": _name(layout.dtype)}
            for ref, layout in parts.layouts.items()
        ],
        "schemas": {name_of(op.target): _schema(op) for op in parts.ops},
        "ops": [_write_op(op, node) for op, node in zip(parts.ops, parts.nodes, strict=True)],
        "outputs": [_encode(ref, "an output") for ref in parts.outputs],
        "structure": _program_structure.to_json(parts.outputs_structure),
        "gradients": [[name, _encode(ref, "a gradient")] for name, ref in parts.gradients.items()],
        "tied": dict(parts.tied),
        "written": sorted(parts.written),
    }
    data = json.loads(json.dumps(data, allow_nan=False))  # lists for tuples, as it will be read
    data["digest"] = _digest(data, tensors)
    return data, tensors


def read(data: Any, tensors: Mapping[str, Tensor]) -> Parts:
    """The parts of the program that `write` was given; a poptorch Error that says what is wrong with the file otherwise."""
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, Mapping) else type(data).__name__
        raise createPoptorchError(
            f"this is no compiled program of Portwright's emulator (its format is {found!r})."
        )
    if data.get("version") != VERSION:
        raise createPoptorchError(
            f"the compiled program has version {data.get('version')!r} of the format, and this Portwright reads {VERSION}. "
            "Compile the model again."
        )
    if data.get("digest") != _digest({key: value for key, value in data.items() if key != "digest"}, tensors):
        raise createPoptorchError(
            "the compiled program is damaged: its digest is another one than its contents have. Compile the model again."
        )
    try:
        return _read(data, tensors)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        raise createPoptorchError(
            f"the compiled program cannot be read: {type(error).__name__}: {error}."
        ) from error


def _read(data: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Parts:
    layouts = {
        Given(_one_of(item["kind"], ("weight", "input", "constant")), str(item["key"])): Layout(
            _integers(item["shape"]),
            _TYPES["dtype"][item["dtype"]],
            _integers(item["stride"]),
            int(item["offset"]),
        )
        for item in data["given"]
    }
    constants = {
        ref.key: _restored(tensors[ref.key], layout)
        for ref, layout in layouts.items()
        if ref.kind == "constant"
    }
    targets = {name: _find_target(name, schema, data["torch"]) for name, schema in data["schemas"].items()}
    ops: list[Op] = []
    nodes: list[ProgramNode] = []
    for item in data["ops"]:
        decode = _Decoder(layouts, len(ops))
        op = Op(
            targets[item["op"]],
            tuple(decode(argument) for argument in item["args"]),
            {str(key): decode(value) for key, value in item["kwargs"].items()},
            item["line"],
            item["module"],
            _read_tag(item["tag"]),
            bool(item["backward"]),
        )
        _check_arguments(op)
        ops.append(op)
        sizes = _integers(item["memory"])
        nodes.append(ProgramNode(item["op"], op.tag, op.line, op.module, op.is_backward, *sizes))
    decode = _Decoder(layouts, len(ops))
    structure = _program_structure.from_json(data["structure"])
    outputs = [decode.ref(item) for item in data["outputs"]]
    if len(outputs) != _program_structure.count(structure):
        raise ValueError(
            f"{len(outputs)} outputs for a structure of {_program_structure.count(structure)} tensors"
        )
    return Parts(
        ops=ops,
        layouts=layouts,
        constants=constants,
        outputs=outputs,
        outputs_structure=structure,
        gradients={str(name): decode.ref(item) for name, item in data["gradients"]},
        nodes=nodes,
        tied={str(key): str(value) for key, value in data["tied"].items()},
        written=frozenset(map(str, data["written"])),
        training=bool(data["training"]),
        partials=_PARTIALS[data["partials"]],
    )


def _write_op(op: Op, node: ProgramNode) -> dict[str, Any]:
    name = name_of(op.target)
    where = f"{name} at {op.line or 'an unknown line'}"
    if op.target not in RANDOM_STATE.values() and not _OP_NAME.fullmatch(name):
        raise createPoptorchError(
            f"the compiled model cannot be saved: {where} is not an op of torch or PopTorch, and a file may name no others. Write it in "
            "ops of torch, or run the model without saving it."
        )
    return {
        "op": name,
        "args": [_encode(argument, where) for argument in op.args],
        "kwargs": {key: _encode(value, where) for key, value in op.kwargs.items()},
        "line": op.line,
        "module": op.module,
        "tag": _write_tag(op.tag, where),
        "backward": op.is_backward,
        "memory": [node.output_bytes, node.kept_bytes, node.last_use],
    }


def _encode(thing: Any, where: str) -> Any:
    if thing is None or isinstance(thing, bool | int | str):
        return thing
    if isinstance(thing, float):
        return {"float": thing.hex()}  # JSON has neither nan nor inf
    if isinstance(thing, complex):
        return {"complex": [thing.real.hex(), thing.imag.hex()]}
    if isinstance(thing, Value):
        return {"value": [thing.op, *thing.path]}
    if isinstance(thing, Given):
        return {thing.kind: thing.key}
    if isinstance(thing, list | tuple):
        return [_encode(item, where) for item in thing]
    if isinstance(thing, torch.device):
        return {"device": str(thing)}
    for kind, types in _TYPES.items():
        for name, known in types.items():
            if type(thing) is type(known) and thing == known:
                return {kind: name}
    raise createPoptorchError(
        f"the compiled model cannot be saved: {where} has the argument {thing!r}, a {type(thing).__name__}."
    )


class _Decoder:
    """Decodes arguments of op number `num_ops`: they may refer to what is given and to the ops before it."""

    def __init__(self, layouts: Mapping[Given, Layout], num_ops: int) -> None:
        self._layouts = layouts
        self._num_ops = num_ops

    def ref(self, thing: Any) -> Given | Value:
        decoded = self(thing)
        if not isinstance(decoded, Given | Value):
            raise ValueError(f"{thing!r} is no tensor")
        return decoded

    def __call__(self, thing: Any) -> Any:
        if thing is None or isinstance(thing, bool | int | str):
            return thing
        if isinstance(thing, list):
            return [self(item) for item in thing]
        if not isinstance(thing, dict) or len(thing) != 1:
            raise ValueError(f"unknown argument {thing!r}")
        ((kind, value),) = thing.items()
        if kind == "value":
            op, *path = _integers(value)
            if not 0 <= op < self._num_ops:
                raise ValueError(f"op {self._num_ops} refers to op {op}, which does not come before it")
            return Value(op, tuple(path))
        if kind in ("weight", "input", "constant"):
            ref = Given(kind, value)
            if ref not in self._layouts:
                raise ValueError(f"the {kind} {value!r} is used and not declared")
            return ref
        if kind == "float":
            return float.fromhex(value)
        if kind == "complex":
            return complex(*map(float.fromhex, value))
        if kind == "device":
            return torch.device(_one_of(value, _DEVICES))
        return _TYPES[kind][value]


def _find_target(name: str, schema: str, version: str) -> Callable[..., Any]:
    """The op of that name, if it is one of torch's own and means what it meant when the file was written."""
    if name in RANDOM_STATE:
        return RANDOM_STATE[name]
    parts = _OP_NAME.fullmatch(name)
    if parts is None or parts[2] in _REACH_OUT:
        raise ValueError(f"{name!r} is no op that a program may have")
    overload = "" if parts[3] == "default" else f".{parts[3]}"
    if not torch._C._dispatch_has_kernel(f"{parts[1]}::{parts[2]}{overload}"):
        raise ValueError(
            f"this torch ({torch.__version__}) has no op {name}; the file was written with torch {version}"
        )
    packet = getattr(getattr(torch.ops, parts[1]), parts[2])
    target = getattr(packet, parts[3])
    if not isinstance(packet, torch._ops.OpOverloadPacket) or not isinstance(target, torch._ops.OpOverload):
        raise ValueError(f"{name!r} is no op of torch")
    if str(target._schema) != schema:
        raise ValueError(
            f"{name} takes other arguments in this torch ({torch.__version__}) than in torch {version}, which wrote the file"
        )
    if any("Tensor" not in str(returned.type) for returned in target._schema.returns):
        raise ValueError(f"{name} gives something else than tensors")
    found: Callable[..., Any] = target
    return found


def _check_arguments(op: Op) -> None:
    if op.target in RANDOM_STATE.values():
        return
    arguments = op.target._schema.arguments
    names = {argument.name for argument in arguments}
    if len(op.args) + len(op.kwargs) > len(arguments) or not names.issuperset(op.kwargs):
        raise ValueError(f"{name_of(op.target)} has arguments that it does not take")


def _write_tag(tag: Any, where: str) -> Any:
    if tag is None:
        return None
    if isinstance(tag, Tag):
        return {"block": asdict(tag)}
    try:
        if json.loads(json.dumps(tag)) == tag:
            return {"plain": tag}
    except (TypeError, ValueError):
        pass
    raise createPoptorchError(
        f"the compiled model cannot be saved: {where} has the tag {tag!r}, which JSON cannot hold."
    )


def _read_tag(data: Any) -> Any:
    if data is None:
        return None
    return Tag(**data["block"]) if "block" in data else data["plain"]


def _schema(op: Op) -> str:
    return "" if op.target in RANDOM_STATE.values() else str(op.target._schema)


def _stored(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor).contiguous() if tensor.is_complex() else tensor.contiguous()


def _restored(tensor: Tensor, layout: Layout) -> Tensor:
    if layout.dtype.is_complex:
        tensor = torch.view_as_complex(tensor)
    if tuple(tensor.shape) != layout.shape or tensor.dtype != layout.dtype:
        raise ValueError(f"a constant is a {tensor.dtype} of shape {tuple(tensor.shape)} instead of {layout}")
    if tensor.stride() == layout.stride and not layout.offset:
        return tensor
    return torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype).copy_(tensor)


def _digest(data: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    try:
        found = hashlib.sha256(json.dumps(data, sort_keys=True).encode())
    except (TypeError, ValueError) as error:
        raise createPoptorchError(f"the compiled program is not JSON data: {error}.") from error
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(
            tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        )
    return found.hexdigest()


def _integers(items: Any) -> tuple[int, ...]:
    if not isinstance(items, list) or not all(type(item) is int for item in items):
        raise ValueError(f"{items!r} is no list of whole numbers")
    return tuple(items)


def _one_of(value: Any, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"{value!r} is none of {', '.join(known)}")
    return str(value)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
