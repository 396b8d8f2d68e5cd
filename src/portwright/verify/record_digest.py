"""Digests of what goes into a step and comes out of its modules, and sketches of tensors: 64 numbers, such that the distance of two sketches estimates the distance of the tensors."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from portwright.verify.recording import SKETCH_SIZE, TensorDigest

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


# A prime, so that no row, column or head of a weight falls into one bucket; the last three numbers stay 0.
_BUCKETS = 61
_CHUNK = _BUCKETS * 2**15  # elements taken at once: a few megabytes as float64


class Sketcher:
    """A linear map to SKETCH_SIZE numbers: element i, in row-major order, is added with a sign to bucket i modulo 61.

    Signs are a hash of the index, and so the same in every process and on every version of torch.
    """

    def __init__(self) -> None:
        self._signs = torch.empty(0, dtype=torch.float64, device="cpu")

    def __call__(self, tensor: torch.Tensor) -> npt.NDArray[np.float64]:
        flat = tensor.detach()
        if flat.layout is not torch.strided:
            flat = flat.to_dense()
        if flat.is_complex():
            flat = torch.view_as_real(flat.resolve_conj())
        flat = flat.reshape(-1).cpu()
        total = torch.zeros(_BUCKETS, dtype=torch.float64, device="cpu")
        for start in range(0, flat.numel(), _CHUNK):
            chunk = flat[start : start + _CHUNK].to(torch.float64)
            signed = chunk * self._sign_of(start, chunk.numel())
            whole = signed.numel() // _BUCKETS * _BUCKETS
            total += signed[:whole].view(-1, _BUCKETS).sum(0)
            rest = signed[whole:]
            total[: rest.numel()] += rest
        sketch = np.zeros(SKETCH_SIZE)
        sketch[:_BUCKETS] = total.numpy()
        return sketch

    def _sign_of(self, start: int, count: int) -> torch.Tensor:
        """The first chunk's signs, times one more sign for each chunk."""
        if self._signs.numel() < min(count, _CHUNK):
            size = min(_CHUNK, max(2 * self._signs.numel(), count))
            self._signs = torch.from_numpy(_hash_signs(np.arange(size, dtype=np.uint64)))
        own = float(_hash_signs(np.array([2**40 + start], dtype=np.uint64))[0])
        return self._signs[:count] if own > 0 else -self._signs[:count]


def _hash_signs(index: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """One bit of splitmix64 (Steele, Lea and Flood, 2014) for each index, as 1.0 or -1.0."""
    with np.errstate(over="ignore"):
        mixed = (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return np.where((mixed & np.uint64(1)).astype(bool), 1.0, -1.0)
