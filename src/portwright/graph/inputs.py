"""The batch of a capture: real tensors, or only their shapes and types."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from portwright.errors import UserError, suggest
from portwright.graph.graph import ITEM_BYTES

if TYPE_CHECKING:
    import torch

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

    def inner(part: Any, key: Any) -> Any:
        return map_tensors(part, change, f"{name}.{key}" if name else str(key))

    if isinstance(batch, torch.Tensor | TensorSpec):
        return change(batch, name)
    if isinstance(batch, Mapping):
        mapped = {key: inner(part, key) for key, part in batch.items()}
        if type(batch) is dict:
            return mapped
        try:
            return type(batch)(mapped)  # type: ignore[call-arg]
        except TypeError:
            return mapped
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(inner(part, key) for key, part in zip(batch._fields, batch, strict=True)))
    if isinstance(batch, list | tuple):
        return type(batch)(inner(part, index) for index, part in enumerate(batch))
    if is_dataclass(batch) and not isinstance(batch, type):
        parts = {f.name: inner(getattr(batch, f.name), f.name) for f in fields(batch) if f.init}
        return replace(batch, **parts)
    return batch
