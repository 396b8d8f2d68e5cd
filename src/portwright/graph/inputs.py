"""The batch of a capture: real tensors, or only their shapes and types."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from portwright.errors import UserError, suggest
from portwright.graph.graph import ITEM_BYTES

if TYPE_CHECKING:
    import torch
from collections.abc import Mapping, Sequence

_WRITTEN = re.compile(r"\s*(?:(?P<name>[^:\[\]]+?)\s*:)?\s*(?P<dtype>\w+)\s*\[(?P<sizes>[^\]]*)\]\s*")
_SHORT = {"float": "float32", "double": "float64", "half": "float16", "int": "int32", "long": "int64"}
_EXAMPLE = "Write NAME:TYPE[SIZES], such as 'x:float32[8,784]'."


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of a batch by shape and type alone; its values are unknown."""

    shape: tuple[int, ...]
    dtype: str = "float32"  # as torch names it, without 'torch.'

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise UserError(f"a tensor's type is {self.dtype!r}.", suggest(str(self.dtype), ITEM_BYTES))
        if not all(isinstance(size, int) and size >= 0 for size in self.shape):
            raise UserError(f"a tensor's shape is {self.shape!r}.", "Sizes are whole numbers from 0 on.")

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def parse_inputs(written: Iterable[str]) -> dict[str, TensorSpec] | tuple[TensorSpec, ...] | TensorSpec:
    """Reads what `--input` was given: a dict where names are given, the tensors themselves where not."""
    parsed = [_parse(text) for text in written]
    named = [name for name, _ in parsed if name]
    if not parsed:
        raise UserError("no input was given.", _EXAMPLE)
    if not named:
        return parsed[0][1] if len(parsed) == 1 else tuple(spec for _, spec in parsed)
    if len(named) < len(parsed):
        raise UserError(
            f"{len(named)} of {len(parsed)} inputs have a name.", "Give each input a name, or none of them."
        )
    twice = next((name for name in named if named.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"the input {twice!r} is given twice.", "Give each input a name of its own.")
    return dict(parsed)


def _parse(text: str) -> tuple[str, TensorSpec]:
    found = _WRITTEN.fullmatch(text)
    if found is None:
        raise UserError(f"--input {text!r} cannot be read.", _EXAMPLE)
    dtype = found["dtype"].removeprefix("torch.")
    dtype = _SHORT.get(dtype, dtype)
    if dtype not in ITEM_BYTES:
        raise UserError(f"--input {text!r} has the type {dtype!r}.", suggest(dtype, ITEM_BYTES))
    sizes = [size.strip() for size in found["sizes"].split(",") if size.strip()]
    wrong = next((size for size in sizes if not size.isascii() or not size.isdigit()), None)
    if wrong is not None:
        raise UserError(f"--input {text!r} has the size {wrong!r}.", "Sizes are whole numbers from 0 on.")
    return (found["name"] or "").strip(), TensorSpec(tuple(int(size) for size in sizes), dtype)


def map_tensors(batch: Any, change: Callable[[torch.Tensor | TensorSpec, str], Any], name: str = "") -> Any:
    """Replaces each tensor or spec of a batch by `change(tensor, its name)`; a name is its path, 'labels' or '0.ids'."""
    import torch

    from portwright.watching.trees import parts_of, with_parts

    if isinstance(batch, torch.Tensor | TensorSpec):
        return change(batch, name)
    inner = f"{name}." if name else ""
    parts = parts_of(batch)
    return with_parts(batch, {key: map_tensors(part, change, f"{inner}{key}") for key, part in parts.items()})


class DescribedBatch(tuple[Any, ...]):
    """A batch that --input described: it can be unpacked as a tuple and read by name as a dict."""

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
