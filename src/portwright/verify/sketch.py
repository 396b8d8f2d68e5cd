"""Reduces a tensor to 64 numbers, such that the distance of two sketches estimates the distance of the tensors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from portwright.verify.recording import SKETCH_SIZE

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
