"""Batches as trees of tensors: walking, moving and describing them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch

from portwright.errors import UserError


def parts_of(tree: Any) -> dict[Any, Any]:
    """The values in a mapping, tuple, list or dataclass by key, index or name; empty for anything else."""
    if isinstance(tree, Mapping):
        return dict(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return dict(zip(tree._fields, tree, strict=True))
    if isinstance(tree, tuple | list):
        return dict(enumerate(tree))
    if is_dataclass(tree) and not isinstance(tree, type):
        return {field.name: getattr(tree, field.name) for field in fields(tree) if hasattr(tree, field.name)}
    return {}


def with_parts(tree: Any, parts: Mapping[Any, Any]) -> Any:
    """A tree of the same kind with other parts; `tree` is not changed."""
    if type(tree) is dict:
        return dict(parts)
    if isinstance(tree, dict):
        made = copy.copy(tree)  # keeps its other attributes, such as a defaultdict's factory
        for key, part in parts.items():
            made[key] = part
        return made
    if isinstance(tree, Mapping):
        try:
            return type(tree)(parts)  # type: ignore[call-arg]
        except TypeError:
            return dict(parts)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*parts.values())
    if isinstance(tree, tuple | list):
        return type(tree)(parts.values())
    if is_dataclass(tree) and not isinstance(tree, type):
        copied: Any = copy.copy(tree)
        for name, part in parts.items():
            object.__setattr__(copied, name, part)  # works for a frozen dataclass too
        return copied
    return tree


def walk_tensors(batch: Any, path: str = "batch") -> Iterator[tuple[str, torch.Tensor]]:
    """Yields each tensor of a batch with the expression that reaches it, such as `batch[0]` or `batch['labels']`."""
    if isinstance(batch, torch.Tensor):
        yield path, batch
        return
    is_indexed = isinstance(batch, Mapping | list) or type(batch) is tuple
    for key, part in parts_of(batch).items():
        yield from walk_tensors(part, f"{path}[{key!r}]" if is_indexed else f"{path}.{key}")


def map_tensors(batch: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same tree with the function applied to each tensor."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    parts = parts_of(batch)
    return with_parts(batch, {key: map_tensors(part, function) for key, part in parts.items()})


def make_mover(device: torch.device, float_dtype: torch.dtype | None) -> Callable[[Any], Any] | None:
    """A function that moves a batch to the device and casts its floating tensors; None when there is nothing to do."""
    if device.type == "cpu" and float_dtype is None:
        return None

    def move(tensor: torch.Tensor) -> torch.Tensor:
        dtype = float_dtype if float_dtype is not None and tensor.is_floating_point() else None
        return tensor.to(device=device, dtype=dtype, non_blocking=True)

    return lambda batch: map_tensors(batch, move)


def name_outputs(outputs: Any) -> list[tuple[str, torch.Tensor]]:
    """A model's predictions, each tensor with the name that it gets in the output file."""
    if isinstance(outputs, torch.Tensor | np.ndarray):
        outputs = {"predictions": outputs}
    elif isinstance(outputs, tuple | list):
        outputs = {f"predictions_{index}": value for index, value in enumerate(outputs)}
    if isinstance(outputs, Mapping) and outputs:
        for key, value in outputs.items():
            if not isinstance(value, torch.Tensor | np.ndarray):
                raise UserError(
                    f"predict returned {type(value).__name__} for '{key}'.",
                    "Return tensors or numpy arrays only.",
                )
        return [(str(key), torch.as_tensor(value)) for key, value in outputs.items()]
    raise UserError(
        f"predict returned {type(outputs).__name__}.", "Return a tensor, a dict or a tuple of tensors."
    )
