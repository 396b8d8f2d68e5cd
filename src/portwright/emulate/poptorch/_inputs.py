"""The inputs that a program was compiled for, as data, and the refusal of any others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from portwright.emulate.poptorch import _utils
from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch._logging import logger

_CURE = (
    "A compiled model keeps its inputs' number, shapes and types. Make every batch alike (drop_last=True), or wrap the "
    "model anew or destroy() it to compile for the new ones."
)
_INT32 = torch.iinfo(torch.int32)
_TAKEN = {
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
    torch.float16, torch.float32, torch.float64, torch.bfloat16,
}  # fmt: skip
_AS_FLOAT = {torch.float64, torch.bfloat16}


@dataclass(frozen=True)
class Signature:
    """A description of arguments: plain lists and dicts, so that it can be written as JSON."""

    names: list[str]
    positional: list[Any]
    named: dict[str, Any]

    @classmethod
    def of(cls, args: Any) -> Signature:
        """Describes what ArgsParser gave."""
        return cls(
            list(args.arg_names),
            [_describe(value) for value in args.args],
            {name: _describe(value) for name, value in args.kwargs.items()},
        )

    def check(self, args: Any) -> None:
        """Refuses arguments that differ from these, saying what was expected and what came."""
        if len(args.args) != len(self.positional):
            raise refuse(
                f"Number of positional arguments mismatch: the model was compiled for {len(self.positional)} "
                f"({', '.join(self.names)}) and got {len(args.args)}. {_CURE}"
            )
        for name, expected, value in zip(self.names, self.positional, args.args, strict=True):
            _check(name, expected, value)
        _check_keys("the named arguments", self.named, args.kwargs)
        for name, expected in self.named.items():
            _check(name, expected, args.kwargs[name])

    def flatten(self, args: Any) -> list[torch.Tensor]:
        """The tensors of arguments that were checked, in the order of these: dicts and names may come in another."""
        flat: list[torch.Tensor] = []
        for expected, value in zip(self.positional, args.args, strict=True):
            _flatten(expected, value, flat)
        for name, expected in self.named.items():
            _flatten(expected, args.kwargs[name], flat)
        return flat


def _flatten(expected: Any, value: Any, flat: list[torch.Tensor]) -> None:
    kind = expected["is"]
    if kind == "tensor":
        flat.append(value)
    elif kind == "custom":
        flat.extend(_utils.flattenTensorStructure(value))
    elif kind == "dict":
        for key, item in expected["items"]:
            _flatten(item, value[key], flat)
    elif kind == "sequence":
        for item, one in zip(expected["items"], value, strict=True):
            _flatten(item, one, flat)


def to_device(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of a call as an IPU takes them; what it cannot take is refused."""
    return [_to_device(index, tensor) for index, tensor in enumerate(tensors)]


def _to_device(index: int, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype not in _TAKEN or tensor.layout != torch.strided:
        raise refuse(
            f"input {index} is {tensor.dtype} ({tensor.layout}), which PopTorch does not take as an input."
        )
    if not tensor.numel():
        raise refuse(f"Zero-sized tensors are unsupported: input {index} has the shape {list(tensor.shape)}.")
    if tensor.device.type != "cpu":
        raise refuse(
            f"input {index} is on {tensor.device}. Hand over host tensors: PopTorch sends them to the IPU."
        )
    if tensor.dtype == torch.int64 and (int(tensor.max()) > _INT32.max or int(tensor.min()) < _INT32.min):
        raise refuse(
            f"input {index} is torch.int64 and has values from {int(tensor.min())} to {int(tensor.max())}: IPUs compute "
            "with 32-bit integers, and the rest of the bits is lost."
        )
    tensor = tensor.detach()
    return tensor.float() if tensor.dtype in _AS_FLOAT else tensor


def check_kinds(args: Any) -> None:
    """Refuses arrays that are no tensors: they would silently become constants of the program."""
    for name, value in [*zip(args.arg_names, args.args, strict=True), *args.kwargs.items()]:
        if not isinstance(value, torch.Tensor) and hasattr(value, "__array__"):
            raise refuse(f"{name} is a {_type_name(value)}. Inputs are tensors: torch.as_tensor({name}).")


def warn_requires_grad(tensors: Sequence[torch.Tensor]) -> None:
    if any(tensor.requires_grad for tensor in tensors):
        logger.warning(
            "an input has requires_grad=True: it is detached, there is no backward pass into inputs"
        )


def _describe(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return {"is": "tensor", "dtype": str(value.dtype), "shape": list(value.shape)}
    if _utils.getCustomParser(value) is not None:
        tensors = _utils.flattenTensorStructure(value)
        return {
            "is": "custom",
            "type": _type_name(value),
            "tensors": [_describe(tensor) for tensor in tensors],
        }
    if isinstance(value, dict):
        return {
            "is": "dict",
            "type": _type_name(value),
            "items": [[k, _describe(v)] for k, v in value.items()],
        }
    if isinstance(value, (list, tuple)):
        return {"is": "sequence", "type": _type_name(value), "items": [_describe(item) for item in value]}
    return {"is": "value", "type": _type_name(value), "value": _plain(value)}


def _check(name: str, expected: Any, value: Any) -> None:
    got = _describe(value)
    if expected["is"] != got["is"] or expected.get("type") != got.get("type"):
        raise refuse(
            f"Type mismatch for {name}: compiled for {_said(expected)} and got {_said(got)}. {_CURE}"
        )
    kind = expected["is"]
    if kind == "tensor":
        if expected["dtype"] != got["dtype"]:
            raise refuse(
                f"Data type mismatch for {name}: compiled for {expected['dtype']} and got {got['dtype']}. {_CURE}"
            )
        if expected["shape"] != got["shape"]:
            raise refuse(
                f"Shape mismatch for {name}: compiled for {expected['shape']} and got {got['shape']}. {_CURE}"
            )
    elif kind == "sequence":
        if len(expected["items"]) != len(value):
            raise refuse(
                f"Length mismatch for {name}: compiled for {len(expected['items'])} elements and got {len(value)}. {_CURE}"
            )
        for index, (one, item) in enumerate(zip(expected["items"], value, strict=True)):
            _check(f"{name}[{index}]", one, item)
    elif kind == "dict":
        _check_keys(name, dict(expected["items"]), value)
        for key, one in expected["items"]:
            _check(f"{name}[{key}]", one, value[key])
    elif kind == "custom":
        if expected["tensors"] != got["tensors"]:
            raise refuse(
                f"Shape mismatch for {name}: compiled for {_said(expected)} and got {_said(got)}. {_CURE}"
            )
    elif expected["value"] != got["value"]:
        raise refuse(
            f"Value mismatch for {name}: compiled for {expected['value']!r}, which became a constant of the program, and got "
            f"{got['value']!r}. {_CURE}"
        )


def _check_keys(name: str, expected: dict[str, Any], got: dict[str, Any]) -> None:
    extra, missing = sorted(map(str, set(got) - set(expected))), sorted(map(str, set(expected) - set(got)))
    if extra or missing:
        parts = [f"Unexpected arguments: {', '.join(extra)}."] if extra else []
        parts += [f"Missing arguments: {', '.join(missing)}."] if missing else []
        raise refuse(f"Keys mismatch for {name}. {' '.join(parts)} {_CURE}")


def _said(described: Any) -> str:
    kind = described["is"]
    if kind == "tensor":
        return f"a tensor {described['dtype']} {described['shape']}"
    if kind == "value":
        return f"{described['type']} {described['value']!r}"
    if kind == "custom":
        return f"{described['type']} of {', '.join(map(_said, described['tensors']))}"
    return f"{described['type']} of {len(described['items'])}"


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else repr(value)
