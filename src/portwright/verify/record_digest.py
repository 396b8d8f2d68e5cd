"""Digests of what goes into a step and comes out of its modules."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from portwright.verify.recording import TensorDigest

MOST_SORTED = 2**18  # values of a tensor; sorting more would take longer than the step


def walk(tree: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Every tensor and numeric array in a tree of containers, if its values can be read."""
    if isinstance(tree, torch.Tensor):
        if _has_values(tree):
            yield tree
    elif isinstance(tree, np.ndarray):
        if tree.dtype.kind in "biuf":
            yield torch.from_numpy(np.ascontiguousarray(tree))
    elif depth > 8 or isinstance(tree, str | bytes):
        return
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from walk(value, depth + 1)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from walk(value, depth + 1)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from walk(getattr(tree, field.name, None), depth + 1)


def _has_values(tensor: torch.Tensor) -> bool:
    """False on the meta device, and inside vmap or another transform."""
    return tensor.device.type != "meta" and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def digest(tensor: torch.Tensor, *, with_values: bool = True) -> TensorDigest:
    values = _plain(tensor)
    total, square = sums(values)
    hashed = hash_values(values) if with_values else ""
    return TensorDigest(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), total, square, hashed)


def sums(tensor: torch.Tensor) -> tuple[float, float]:
    """The sum and the sum of squares, added up as float64."""
    values = _plain(tensor)
    if values.dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        values = values.to(torch.float64)
    flat = values.reshape(-1).to(torch.float64)
    return float(flat.sum()), float(torch.dot(flat, flat))


def sample_sums(tensors: Sequence[torch.Tensor]) -> float:
    """The sum of squares of each sample's total over all tensors, which does not depend on order or layout."""
    if not tensors:
        return 0.0
    whole = sum(_plain(t).reshape(len(t), -1).to(torch.float64).sum(1) for t in tensors)
    return float(torch.dot(whole, whole))  # type: ignore[arg-type]


def hash_values(tensor: torch.Tensor) -> str:
    """A hash of the values that ignores order and dtype; "" where there are too many to sort."""
    if tensor.numel() > MOST_SORTED:
        return ""
    ordered = np.sort(_plain(tensor).reshape(-1).to(torch.float64).numpy())
    ordered += 0.0  # -0.0 becomes 0.0
    return hashlib.blake2b(ordered.tobytes(), digest_size=16).hexdigest()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.cpu()
