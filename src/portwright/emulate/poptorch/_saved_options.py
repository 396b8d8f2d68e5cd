"""Options, optimizers and values as JSON, and back: a saved model knows no pickled object."""

from __future__ import annotations

import enum
import math
from typing import Any

import torch

from portwright.emulate.poptorch import enums, optim
from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch.options import Options

_PARTS = {
    "training": "_training",
    "precision": "_graphProcessing",
    "jit": "_jit",
    "distributed": "_distributed",
}
_FLAGS = ("_module_namescope_enabled", "_show_compilation_progress_bar", "_relax_optimizer_checks")
_KNOWN = (optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.LAMB)
_TORCH = (
    torch.optim.SGD,
    torch.optim.AdamW,
    torch.optim.Adam,
    torch.optim.RMSprop,
)  # AdamW may derive from Adam


def encode(value: Any) -> Any:
    """A value as JSON; what is no plain value, enum, dtype, list, tuple or dict of them raises TypeError."""
    if isinstance(value, enum.Enum):
        return {"enum": [type(value).__name__, value.name]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.Tensor) and value.numel() == 1:  # a learning rate may be one
        return encode(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tuple):
        return {"tuple": [encode(item) for item in value]}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    raise TypeError(f"{type(value).__name__} cannot be written")


def decode(data: Any) -> Any:
    """The value of `encode`."""
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind == "enum":
        return getattr(enums, content[0])[content[1]]
    if kind == "dtype":
        dtype = getattr(torch, content)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"no dtype is called {content!r}")
        return dtype
    if kind == "float":
        return float(content)
    if kind == "tuple":
        return tuple(decode(item) for item in content)
    if kind == "dict":
        return {decode(key): decode(item) for key, item in content}
    raise ValueError(f"no kind of value is called {kind!r}")


def options_to_json(options: Any) -> dict[str, Any]:
    """All settings that a compiled program's run depends on; strategies and tensor locations are in the program."""
    parts = {name: dict(getattr(options, private)._values) for name, private in _PARTS.items()}
    parts["values"] = dict(options._values)
    parts["popart"] = dict(options._popart.options)
    parts["flags"] = {name: getattr(options, name) for name in _FLAGS}
    return {part: {name: _encoded(value) for name, value in values.items()} for part, values in parts.items()}


def options_from_json(data: Any) -> Any:
    """Options for a run: an offline target is left behind, as poptorch.load does."""
    options = Options()
    for name, private in _PARTS.items():
        getattr(options, private)._values.update(_decoded(data[name]))
    options._values.update(_decoded(data["values"]))
    options._popart.options.update(_decoded(data["popart"]))
    for name, value in _decoded(data["flags"]).items():
        if name in _FLAGS:
            setattr(options, name, value)
    options.deleteIfExists("ipu_version")
    if options.connection_type == enums.ConnectionType.Never:
        options.connectionType(enums.ConnectionType.Always)
    return options


def _encoded(value: Any) -> Any:
    try:
        return encode(value)
    except TypeError:
        return {
            "unwritten": repr(value)
        }  # objects of PopART's compiler: nothing here reads them after compiling


def _decoded(values: dict[str, Any]) -> dict[str, Any]:
    def is_written(value: Any) -> bool:
        return not (isinstance(value, dict) and "unwritten" in value)

    return {name: decode(value) for name, value in values.items() if is_written(value)}


def optimizer_to_json(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> dict[str, Any]:
    """An optimizer's kind and numbers; `names` are those of its tensors by id."""
    groups = [
        {
            "names": [names[id(tensor)] for tensor in group["params"]],
            "values": {key: _number(key, value) for key, value in group.items() if key != "params"},
        }
        for group in optimizer.param_groups
    ]
    defaults = {key: _number(key, value) for key, value in optimizer.defaults.items()}
    saved = {"groups": groups, "defaults": defaults}
    for kind in _KNOWN:
        if isinstance(optimizer, kind):
            kept = ("loss_scaling", "accum_type", *kind._kept)
            attributes = {name: encode(getattr(optimizer, name)) for name in kept}
            variable = list(optimizer.variable_attrs._variable_attributes)
            return {
                **saved,
                "from": "poptorch",
                "class": kind.__name__,
                "attributes": attributes,
                "variable": variable,
            }
    for torchs in _TORCH:
        if isinstance(optimizer, torchs):
            return {**saved, "from": "torch", "class": torchs.__name__}
    raise refuse(f"an optimizer {type(optimizer).__name__} cannot be saved.")


def optimizer_from_json(data: Any, parameters: dict[str, torch.Tensor]) -> torch.optim.Optimizer:
    """The optimizer again, over the parameters of the same names."""
    ours = data["from"] == "poptorch"
    kinds: dict[str, Any] = {kind.__name__: kind for kind in (_KNOWN if ours else _TORCH)}
    groups = [
        {"params": [parameters[name] for name in group["names"]], **_decoded(group["values"])}
        for group in data["groups"]
    ]
    defaults = _decoded(data["defaults"])
    made: Any = kinds[data["class"]](groups, lr=defaults["lr"])
    made.defaults.update(defaults)
    if ours:
        for name, value in _decoded(data["attributes"]).items():
            setattr(made, name, value)
        made.variable_attrs._variable_attributes = list(data["variable"])
    optimizer: torch.optim.Optimizer = made
    return optimizer


def _number(key: str, value: Any) -> Any:
    try:
        return encode(value)
    except TypeError:
        raise refuse(f"the optimizer's {key} is {value!r}, which cannot be saved.") from None
