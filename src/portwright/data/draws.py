"""Random numbers that depend on the sample, not on the process that draws them or the moment."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from portwright.errors import UserError

Words = npt.NDArray[np.uint64]

# Constants of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_EXACT_INTEGERS = 1 << 53  # above this, float64 cannot hold every integer


class Draws:
    """Random numbers for the samples of one batch: a function of seed, epoch, sample index and name alone.

    So a sample's mask is the same with any number of ranks and workers, in any batch and after a resume. One name always
    gives the same numbers, so that each purpose needs a name of its own.
    """

    def __init__(self, seed: int, epoch: int, indices: npt.ArrayLike) -> None:
        self.seed, self.epoch = seed, epoch
        self.indices = np.asarray(indices, dtype=np.int64)
        if self.indices.ndim != 1:
            raise ValueError(f"indices of shape {self.indices.shape} instead of one for each sample")

    def __len__(self) -> int:
        return len(self.indices)

    def bits(self, name: str, *shape: int) -> Words:
        """64 random bits for each element of [batch, *shape]."""
        text = f"{self.seed}:{self.epoch}:{name}".encode()
        key = np.uint64(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little"))
        starts = _mix(_mix(self.indices.astype(np.uint64) * _GOLDEN) ^ key)
        count = int(np.prod(shape, dtype=np.int64))
        steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        return _mix(starts[:, None] + steps).reshape(len(self), *shape)

    def uniform(self, name: str, *shape: int) -> npt.NDArray[np.float64]:
        """float64 in [0, 1), [batch, *shape]."""
        return (self.bits(name, *shape) >> np.uint64(11)).astype(np.float64) * (1.0 / _EXACT_INTEGERS)

    def integers(self, name: str, high: Any, *shape: int) -> npt.NDArray[np.int64]:
        """int64 in [0, high), [batch, *shape]; `high` is a number, or an array that broadcasts to that shape."""
        bounds = np.asarray(high)
        if bounds.size and (bounds.min() < 1 or bounds.max() > _EXACT_INTEGERS):
            raise UserError(
                f"draws.integers('{name}') got a bound of {bounds.min()} to {bounds.max()}.",
                "Bounds are from 1 to 2**53; nothing can be drawn from an empty range.",
            )
        # Always below the bound: uniform is at most 1 - 2**-53, and the product rounds down.
        drawn: npt.NDArray[np.int64] = (self.uniform(name, *shape) * bounds).astype(np.int64)
        return drawn

    def permutations(self, name: str, size: int) -> npt.NDArray[np.int64]:
        """A permutation of range(size) for each sample, int64 [batch, size]."""
        return np.argsort(self.bits(name, size), axis=1, kind="stable")


def _mix(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    return words ^ (words >> np.uint64(31))
