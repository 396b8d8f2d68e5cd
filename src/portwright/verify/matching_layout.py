"""Converts between the layouts of the port's tensors and of the original's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from math import prod
from typing import Protocol

import torch


@dataclass(frozen=True)
class Layout:
    """Permute, cut, join, reshape: applied in this order to the port's tensors, each optional."""

    permutation: tuple[int, ...] | None = None  # of each ported tensor's axes
    cut: tuple[int, int, int] | None = None  # axis, start, stop
    joined: int | None = None  # axis
    shape: tuple[int, ...] | None = None  # of the original; the order of the values stays

    def to_original(self, ported: Sequence[torch.Tensor]) -> torch.Tensor:
        turned = [t if self.permutation is None else t.permute(self.permutation) for t in ported]
        if self.cut is not None:
            axis, start, stop = self.cut
            turned = [t.narrow(axis, start, stop - start) for t in turned]
        whole = turned[0] if self.joined is None else torch.cat(turned, self.joined)
        return whole if self.shape is None else whole.reshape(self.shape)

    def set_ported(self, original: torch.Tensor, ported: Sequence[torch.Tensor]) -> None:
        """Writes the original's values into the port's tensors."""
        views = [t if self.permutation is None else t.permute(self.permutation) for t in ported]
        if self.cut is not None:
            axis, start, stop = self.cut
            views = [view.narrow(axis, start, stop - start) for view in views]
        if self.joined is None:
            views[0].copy_(original.reshape(views[0].shape))
            return
        sizes = [view.shape[self.joined] for view in views]
        shape = list(views[0].shape)
        shape[self.joined] = sum(sizes)
        for view, part in zip(views, torch.split(original.reshape(shape), sizes, self.joined), strict=True):
            view.copy_(part)

    @property
    def words(self) -> str:
        said = []
        if self.permutation is not None:
            said.append(f"permuted {' '.join(map(str, self.permutation))}")
        if self.cut is not None:
            said.append(f"{'rows' if self.cut[0] == 0 else 'columns'} {self.cut[1]}-{self.cut[2]} of")
        if self.joined is not None:
            said.append(f"joined along {self.joined}")
        if self.shape is not None:
            said.append("reshaped")
        return ", ".join(said) or "same"


SAME = Layout()


class Shaped(Protocol):
    """A tensor whose layout is judged by shape and class."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def owner(self) -> str: ...


def find_layout(original: torch.Tensor, ported: torch.Tensor) -> Layout | None:
    """The layout in which the port's values equal the original's; None if no permutation does."""
    if original.numel() != ported.numel():
        return None
    original, ported = original.to(torch.float64), ported.detach().to(torch.float64).cpu()
    for permutation in permutations(range(ported.ndim)) if ported.ndim <= 5 else [tuple(range(ported.ndim))]:
        turned = ported.permute(permutation)
        is_turned = permutation != tuple(range(ported.ndim))
        if torch.equal(turned.reshape(-1), original.reshape(-1)):
            return Layout(
                permutation=permutation if is_turned else None,
                shape=None if turned.shape == original.shape else tuple(original.shape),
            )
    return None


def fits_by_shape(original: Shaped, ported: Shaped) -> Layout | None:
    """The likeliest layout by shapes and classes alone: HuggingFace's Conv1D stores a Linear's weight transposed."""
    ours, theirs = original.shape, ported.shape
    if prod(ours) != prod(theirs):
        return None
    turns = (original.owner == "Conv1D") != (ported.owner == "Conv1D") and len(theirs) == 2
    if turns and len(ours) == 2 and (theirs[1], theirs[0]) == ours:
        return Layout(permutation=(1, 0))
    if ours == theirs:
        return SAME
    if _without_ones(ours) == _without_ones(theirs) or _merges(ours, theirs) or _merges(theirs, ours):
        return Layout(shape=ours)
    if len(theirs) == 2 and _without_ones((theirs[1], theirs[0])) == _without_ones(ours):
        return Layout(permutation=(1, 0), shape=None if len(ours) == 2 else ours)
    if len(ours) == len(theirs) and sorted(ours) == sorted(theirs) and len(set(ours)) == len(ours):
        return Layout(permutation=tuple(theirs.index(size) for size in ours))
    return None


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _merges(parts: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether neighbouring axes of the one multiply to the axes of the other."""
    rest = list(parts)
    for size in whole:
        product = 1
        while product < size and rest:
            product *= rest.pop(0)
        if product != size:
            return False
    return all(size == 1 for size in rest)
