"""How tensors of a port are laid out as one of the original's, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Layout:
    """Axes put into another order, a part cut out, parts joined, and a shape: in that order, each of them optional."""

    permutation: tuple[int, ...] | None = None  # of each ported tensor's axes
    cut: tuple[int, int, int] | None = None  # along which axis, from, to
    joined: int | None = None  # along which axis
    shape: tuple[int, ...] | None = None  # of the original, where the numbers stand in the same order

    def to_original(self, ported: Sequence[torch.Tensor]) -> torch.Tensor:
        turned = [t if self.permutation is None else t.permute(self.permutation) for t in ported]
        if self.cut is not None:
            axis, start, stop = self.cut
            turned = [t.narrow(axis, start, stop - start) for t in turned]
        whole = turned[0] if self.joined is None else torch.cat(turned, self.joined)
        return whole if self.shape is None else whole.reshape(self.shape)

    def set_ported(self, original: torch.Tensor, ported: Sequence[torch.Tensor]) -> None:
        """Writes the original's values where they belong in the port's tensors."""
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
        for view, part in zip(views, original.reshape(shape).split(sizes, self.joined), strict=True):
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
