"""The shape of what forward() returned, without its tensors: to give results back in it, and to write it as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from portwright.emulate.poptorch import _utils
from portwright.emulate.poptorch._errors import refuse


class Structure:
    """A result's nesting; `template` holds an empty tensor where a result goes."""

    def __init__(self, template: Any, num_tensors: int) -> None:
        self.template = template
        self.num_tensors = num_tensors

    @classmethod
    def of(cls, result: Any) -> Structure:
        num_tensors = len(_utils.flattenTensorStructure(result))
        holes = [torch.empty(0) for _ in range(num_tensors)]
        return cls(_utils.reconstructTensorStructure(result, holes), num_tensors)

    def filled(self, tensors: Sequence[torch.Tensor]) -> Any:
        return _utils.reconstructTensorStructure(self.template, list(tensors))

    def to_json(self) -> Any:
        """Named tuples become tuples: a file knows no classes of the user's."""
        return _to_json(self.template)

    @classmethod
    def from_json(cls, data: Any) -> Structure:
        template = _from_json(data)
        return cls(template, len(_utils.flattenTensorStructure(template)))


def _to_json(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return {"tensor": True}
    if isinstance(value, dict):
        return {"dict": [[_key(key), _to_json(item)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"list" if isinstance(value, list) else "tuple": [_to_json(item) for item in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise refuse(
        f"forward() returns a {type(value).__name__}, which an executable file cannot hold. "
        "Return tensors, numbers, texts, or lists, tuples and dicts of them."
    )


def _key(key: Any) -> Any:
    if isinstance(key, (str, int, float, bool)) or key is None:
        return key
    raise refuse(
        f"forward() returns a dict with the key {key!r}; an executable file holds texts and numbers as keys."
    )


def _from_json(data: Any) -> Any:
    (kind, content), *others = _items(data)
    if others:
        raise ValueError(f"several kinds in one place: {sorted(data)}")
    if kind == "tensor":
        return torch.empty(0)
    if kind == "value":
        return content
    if kind == "dict":
        return {key: _from_json(item) for key, item in content}
    if kind in ("list", "tuple"):
        parts = [_from_json(item) for item in content]
        return parts if kind == "list" else tuple(parts)
    raise ValueError(f"no kind of result is called {kind!r}")


def _items(data: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(data, dict) or not data:
        raise ValueError(f"a result's structure is described by an object, not by {data!r}")
    return iter(data.items())
