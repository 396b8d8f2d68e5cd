"""The shape of what a model returns: nested tuples, lists and dictionaries of tensors, as plain data."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor

from portwright.emulate.poptorch._impl import createPoptorchError

Structure = dict[str, Any]
_PLAIN = (bool, int, float, str, type(None))
_made_classes: dict[tuple[str, tuple[str, ...]], type] = {}


def flatten(result: Any, tensors: list[Tensor], where: str = "what the model returns") -> Structure:
    """The structure of a result, whose tensors are put behind `tensors`.

    Numbers, texts and None are parts of the structure: they are those of the compilation in every run.
    """
    if isinstance(result, Tensor):
        tensors.append(result)
        return {"kind": "tensor"}
    if isinstance(result, _PLAIN):
        return {"kind": "value", "value": result}
    kind = type(result)
    if isinstance(result, tuple) and hasattr(kind, "_fields"):
        items = [flatten(item, tensors, f"{where}.{f}") for f, item in zip(kind._fields, result, strict=True)]
        return {
            "kind": "namedtuple",
            "name": kind.__name__,
            "fields": list(kind._fields),
            "items": items,
            "class": kind,
        }
    if kind in (tuple, list) or issubclass(kind, tuple):
        items = [flatten(item, tensors, f"{where}[{i}]") for i, item in enumerate(result)]
        return {"kind": "list" if kind is list else "tuple", "items": items}
    if kind in (dict, OrderedDict):
        for key in result:
            if not isinstance(key, _PLAIN):
                raise createPoptorchError(f"a key of {where} is {key!r}, and must be a text or a number.")
        items = [flatten(item, tensors, f"{where}[{key!r}]") for key, item in result.items()]
        return {"kind": "dict" if kind is dict else "ordered", "keys": list(result), "items": items}
    registered = pytree.SUPPORTED_NODES.get(kind)
    if registered is not None:  # classes that a library has told torch how to take apart
        children, context = registered.flatten_fn(result)
        items = [flatten(item, tensors, f"{where}[{i}]") for i, item in enumerate(children)]
        return {"kind": "object", "class": kind, "context": context, "items": items}
    raise createPoptorchError(
        f"{where} is a {kind.__module__}.{kind.__qualname__}, and a model on an IPU returns tensors, or tuples, lists or "
        "dictionaries of them. Return its tensors."
    )


def rebuild(structure: Structure, tensors: Sequence[Any]) -> Any:
    """The result again, with these tensors (or whatever stands for them) in their places."""
    given = iter(tensors)
    result = _rebuild(structure, given)
    if next(given, None) is not None:
        raise ValueError(f"{len(tensors)} tensors are more than the structure has")
    return result


def count(structure: Structure) -> int:
    """How many tensors the structure has."""
    if structure["kind"] == "tensor":
        return 1
    return sum(count(item) for item in structure.get("items", ()))


def _rebuild(structure: Structure, tensors: Iterator[Any]) -> Any:
    kind = structure["kind"]
    if kind == "tensor":
        return next(tensors)
    if kind == "value":
        return structure["value"]
    items = [_rebuild(item, tensors) for item in structure["items"]]
    if kind == "list":
        return items
    if kind == "tuple":
        return tuple(items)
    if kind == "namedtuple":
        return (structure.get("class") or _make_class(structure["name"], structure["fields"]))(*items)
    if kind == "object":
        return pytree.SUPPORTED_NODES[structure["class"]].unflatten_fn(items, structure["context"])
    pairs = zip(structure["keys"], items, strict=True)
    return dict(pairs) if kind == "dict" else OrderedDict(pairs)


def _make_class(name: str, fields: Sequence[str]) -> type:
    """A named tuple for a program read from a file, which does not say where its class was."""
    key = (name, tuple(fields))
    if key not in _made_classes:
        _made_classes[key] = namedtuple(name, fields)
    return _made_classes[key]


def to_json(structure: Structure) -> Structure:
    """The structure without its classes."""
    if structure["kind"] == "object":
        kind = structure["class"]
        raise createPoptorchError(
            f"the model returns a {kind.__module__}.{kind.__qualname__}, which cannot be written to a file. Return its tensors "
            "as a tuple or a dictionary to save the compiled model."
        )
    if isinstance(structure.get("value"), float):
        return {"kind": "float", "value": structure["value"].hex()}  # JSON has neither nan nor inf
    plain = {key: value for key, value in structure.items() if key not in ("class", "items")}
    if "items" in structure:
        plain["items"] = [to_json(item) for item in structure["items"]]
    return plain


def from_json(data: Any) -> Structure:
    """Checks a structure from a file, as far as `rebuild` relies on it; ValueError otherwise."""
    if not isinstance(data, Mapping):
        raise ValueError(f"a structure is a mapping, not {data!r}")
    kind = data.get("kind")
    if kind == "tensor":
        return {"kind": "tensor"}
    if kind == "float":
        return {"kind": "value", "value": float.fromhex(data["value"])}
    if kind == "value" and isinstance(data.get("value"), _PLAIN):
        return {"kind": "value", "value": data["value"]}
    items = data.get("items")
    if kind not in ("tuple", "list", "dict", "ordered", "namedtuple") or not isinstance(items, list):
        raise ValueError(f"unknown structure {kind!r}")
    made: Structure = {"kind": kind, "items": [from_json(item) for item in items]}
    names = data.get("fields" if kind == "namedtuple" else "keys")
    if kind in ("dict", "ordered", "namedtuple"):
        if (
            not isinstance(names, list)
            or len(names) != len(items)
            or not all(isinstance(n, _PLAIN) for n in names)
        ):
            raise ValueError(f"a {kind} with other names than items: {names!r}")
        made["fields" if kind == "namedtuple" else "keys"] = names
    if kind == "namedtuple":
        if not all(
            isinstance(name, str) and name.isidentifier() for name in [data.get("name"), *(names or [])]
        ):
            raise ValueError(f"a named tuple with the name {data.get('name')!r} and the fields {names!r}")
        made["name"] = data["name"]
    return made
