"""Batches as trees of tensors: walking, moving and describing them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from portwright.errors import UserError


def walk_tensors(batch: Any, path: str = "batch") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a batch with the expression that reaches it, such as `batch[0]` or `batch['labels']`."""
    if isinstance(batch, torch.Tensor):
        yield path, batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from walk_tensors(value, f"{path}[{key!r}]")
    elif isinstance(batch, tuple | list):
        for index, value in enumerate(batch):
            yield from walk_tensors(value, f"{path}[{index}]")


def map_tensors(batch: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same tree with the function applied to each tensor."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        mapped = {key: map_tensors(value, function) for key, value in batch.items()}
        return mapped if type(batch) is dict else type(batch)(mapped)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(value, function) for value in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(map_tensors(value, function) for value in batch)
    return batch


def make_mover(device: torch.device, float_dtype: torch.dtype | None) -> Callable[[Any], Any] | None:
    """Moves a batch to the device and casts its floating tensors; None when there is nothing to do."""
    if device.type == "cpu" and float_dtype is None:
        return None

    def move(tensor: torch.Tensor) -> torch.Tensor:
        dtype = float_dtype if float_dtype is not None and tensor.is_floating_point() else None
        return tensor.to(device=device, dtype=dtype, non_blocking=True)

    return lambda batch: map_tensors(batch, move)


def name_outputs(outputs: Any) -> list[tuple[str, torch.Tensor]]:
    """What a model predicts, each tensor with a name for the file it goes into."""
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
