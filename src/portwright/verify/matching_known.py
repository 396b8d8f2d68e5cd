"""What is known of a tensor to be matched, which modules correspond, and conversions between the layouts of the port's tensors and the original's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from math import prod
from typing import Protocol

import numpy as np
import torch

from portwright.verify.recording import MatchedBy


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


# Words that wrappers add to names: torch's, and those for a whole model.
_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"}
_OUTER = {"model", "net", "network", "module", "_model", "backbone"}
_SAME_LEAF = {"gamma": "weight", "scale": "weight", "kernel": "weight", "w": "weight", "beta": "bias", "shift": "bias",
              "b": "bias"}  # fmt: skip


@dataclass(frozen=True)
class Link:
    """One of the original's tensors, and the port's tensors that hold its values."""

    original: str
    ported: tuple[str, ...]
    layout: Layout
    by: MatchedBy


@dataclass(frozen=True)
class Known:
    """A tensor of one of the two scripts, with what helps to identify it."""

    name: str
    values: torch.Tensor
    kind: str = "parameter"
    owner: str = ""  # class of the module that holds it
    aliases: tuple[str, ...] = ()
    called: int = -1  # when its module was first called, among all modules

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @cached_property
    def plain_names(self) -> list[str]:
        """Its names without the words of wrappers; the most certain first."""
        found: dict[str, None] = {}
        for name in (self.name, *self.aliases):
            tokens = [token for token in name.split(".") if token not in _WRAPPERS]
            found[".".join(tokens)] = None
            while len(tokens) > 2 and tokens[0] in _OUTER:
                tokens = tokens[1:]
                found.setdefault(".".join(tokens))
        return list(found)

    @cached_property
    def module(self) -> str:
        return self.name.rpartition(".")[0]

    @cached_property
    def leaf(self) -> str:
        """weight, bias, running_mean, ...: the last word of its own name."""
        own = self.name.rpartition(".")[2].lower()
        if own.startswith(("running_", "num_batches")):
            return own
        word = re.sub(r"\d+$", "", own).rpartition("_")[2] or own
        return _SAME_LEAF.get(word, word)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        return tuple(int(token) for token in re.findall(r"\d+", self.name))

    @cached_property
    def is_constant(self) -> bool:
        flat = self.values.reshape(-1)
        return flat.numel() < 2 or bool((flat == flat[0]).all())

    @cached_property
    def fingerprint(self) -> int:
        """A hash of the values that does not depend on their order."""
        return fingerprint(self.values)

    def has_values_of(self, other: Known) -> bool:
        return self.shape == other.shape and torch.equal(
            self.values.to(torch.float64), other.values.to(torch.float64).cpu()
        )


def fingerprint(values: torch.Tensor) -> int:
    plain = torch.view_as_real(values) if values.is_complex() else values
    numbers = plain.detach().to(torch.float64).cpu().contiguous().reshape(-1).numpy() + 0.0
    bits = numbers.view(np.uint64)
    with np.errstate(over="ignore"):
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return int((bits ^ (bits >> np.uint64(31))).sum(dtype=np.uint64)) ^ numbers.size


def in_order(knowns: list[Known]) -> list[Known]:
    """Sorts by when modules are first called; one that is never called follows the module around it."""
    called = {known.module: known.called for known in knowns if known.called >= 0}
    if not called:
        return list(knowns)

    def when(known: Known) -> tuple[float, int]:
        path, offset = known.module, 0.0
        while path and path not in called:
            path, offset = path.rpartition(".")[0], 0.5
        return called.get(path, len(knowns)) + offset, numbers[known.name]

    numbers = {known.name: number for number, known in enumerate(knowns)}
    return sorted(knowns, key=when)


class Modules:
    """Counts which modules of the port correspond to which of the original, and which parents of them."""

    def __init__(self) -> None:
        self._votes: dict[str, Counter[str]] = {}
        self._back: dict[str, Counter[str]] = {}

    def pair(self, original: Known, ported: Known) -> None:
        for ours, theirs in ((original.module, ported.module), *_folders(original.module, ported.module)):
            self._votes.setdefault(ours, Counter())[theirs] += 1
            self._back.setdefault(theirs, Counter())[ours] += 1

    def agree(self, original: Known, ported: Known) -> bool | None:
        """Whether their modules correspond; None where neither has been paired."""
        ours, theirs = self._votes.get(original.module), self._back.get(ported.module)
        if ours is None and theirs is None:
            return None
        return bool(ours and ours[ported.module])

    def nearness(self, original: Known, ported: Known) -> float:
        """Share of their parent modules that correspond: 1 all, 0 none is known, -1 one corresponds to another."""
        known, score = 0, 0.0
        for ours, theirs in _folders(original.module, ported.module):
            votes, back = self._votes.get(ours), self._back.get(theirs)
            if votes and back and not votes[theirs]:
                return -1.0
            if votes:
                known += 1
                score += votes[theirs] / max(votes.values())
        return score / known if known else 0.0


def _folders(ours: str, theirs: str) -> set[tuple[str, str]]:
    """Pairs of parent modules that correspond if the two modules do.

    Names are compared up to each number, since a numbered layer may have another depth in the port.
    """
    left, right = _numbered(ours), _numbered(theirs)
    pairs = set(zip(left, right, strict=False))
    left, right = ours.split("."), theirs.split(".")
    if len(left) == len(right):
        pairs |= {(".".join(left[:depth]), ".".join(right[:depth])) for depth in range(1, len(left))}
    return pairs - {(ours, theirs)}


def _numbered(path: str) -> list[str]:
    tokens = path.split(".")
    return [".".join(tokens[: place + 1]) for place, token in enumerate(tokens) if token.isdecimal()]
