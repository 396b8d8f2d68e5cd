"""Batches that no loader gave: described on the command line, or of another size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from portwright.graph.inputs import TensorSpec, map_tensors, parse_inputs


class DescribedBatch(tuple[Any, ...]):
    """A batch that was described by --input: a tuple for code that unpacks it, a dict for code that asks by name."""

    _fields: tuple[str, ...] = ()

    def __new__(cls, *parts: Any) -> DescribedBatch:
        return super().__new__(cls, parts)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key not in self._fields:
            raise KeyError(key)
        return super().__getitem__(self._fields.index(key))

    def __contains__(self, key: object) -> bool:
        return key in self._fields if isinstance(key, str) else super().__contains__(key)

    def keys(self) -> tuple[str, ...]:
        return self._fields

    def values(self) -> tuple[Any, ...]:
        return tuple(self)

    def items(self) -> list[tuple[str, Any]]:
        return list(zip(self._fields, self, strict=True))

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self._fields else default


def parse_batch(written: Sequence[str]) -> Any:
    """The batch that --input describes: one tensor, a tuple, or with names a DescribedBatch."""
    given = parse_inputs(written)
    if not isinstance(given, Mapping):
        return given
    return type("DescribedBatch", (DescribedBatch,), {"_fields": tuple(given)})(*given.values())


def resize_batch(batch: Any, size: int) -> Any:
    """The same batch with another number of samples, by shape and type alone."""
    sizes: list[int] = []

    def look(tensor: Any, name: str) -> Any:
        if len(tensor.shape):
            sizes.append(int(tensor.shape[0]))
        return tensor

    map_tensors(batch, look)
    before = sizes[0] if sizes else None

    def change(tensor: Any, name: str) -> TensorSpec:
        shape = tuple(int(n) for n in tensor.shape)
        dtype = str(tensor.dtype).removeprefix("torch.")
        is_batched = bool(shape) and shape[0] == before
        return TensorSpec((size, *shape[1:]) if is_batched else shape, dtype)

    return map_tensors(batch, change)
