"""Matches the tensors of a port with the original's, across renames, other orders and other layouts.

In the order of certainty: equal values that are no constants (unless layers of the same names swapped their values), equal names,
parts of a fused tensor, and last the likeliest alignment by shape, name, neighbours and the order of calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from difflib import SequenceMatcher

import numpy as np

from portwright.verify.matching_fused import match_fused, match_rows
from portwright.verify.matching_known import (
    Known,
    Layout,
    Link,
    Modules,
    find_layout,
    fits_by_shape,
    in_order,
)
from portwright.verify.recording import MatchedBy

__all__ = ["Known", "Link", "match_tensors"]


def match_tensors(originals: list[Known], ported: list[Known]) -> list[Link]:
    """Links in the order of the originals; each tensor of the port is used once, or in parts that do not overlap."""
    matching = _Matching(originals, ported)
    matching.by_values_and_names()
    matching.by_values()
    matching.add(match_rows(matching.originals, matching.ported))
    matching.by_names()
    matching.add(match_fused(matching.originals, matching.ported, matching.modules))
    matching.add(align(matching.originals, matching.ported, matching.modules))
    order = {known.name: number for number, known in enumerate(originals)}
    return sorted(matching.links, key=lambda link: order[link.original])


class _Matching:
    """The links found so far, and the unmatched tensors of both sides."""

    def __init__(self, originals: list[Known], ported: list[Known]) -> None:
        self.originals, self.ported = list(originals), list(ported)
        self.links: list[Link] = []
        self.modules = Modules()
        self._known = {known.name: known for known in (*originals,)}
        self._theirs = {known.name: known for known in ported}

    def add(self, links: Iterable[Link]) -> None:
        for link in links:
            self.links.append(link)
            for name in link.ported:
                self.modules.pair(self._known[link.original], self._theirs[name])
        done = {link.original for link in self.links}
        used = {name for link in self.links for name in link.ported}
        self.originals = [known for known in self.originals if known.name not in done]
        self.ported = [known for known in self.ported if known.name not in used]

    def by_values_and_names(self) -> None:
        self._same_names(lambda one, other: not one.is_constant and one.has_values_of(other))

    def by_names(self) -> None:
        self._same_names(lambda one, other: self.modules.agree(one, other) is not False)

    def _same_names(self, agree: Callable[[Known, Known], bool]) -> None:
        names: dict[str, Known] = {}
        for known in self.ported:
            for name in known.plain_names:
                names.setdefault(name, known)
        links, taken = [], set()
        for original in self.originals:
            for name in original.plain_names:
                other = names.get(name)
                if other is None or other.name in taken or other.kind != original.kind:
                    continue
                if not agree(original, other):
                    continue
                layout = _layout_of(original, other)
                if layout is not None:
                    taken.add(other.name)
                    links.append(Link(original.name, (other.name,), layout, "name"))
                    break
        self.add(links)

    def by_values(self) -> None:
        groups: dict[int, tuple[list[Known], list[Known]]] = {}
        for side, knowns in enumerate((self.originals, self.ported)):
            for known in knowns:
                if not known.is_constant:
                    groups.setdefault(known.fingerprint, ([], []))[side].append(known)
        links = []
        for ours, theirs in groups.values():
            if not ours or not theirs:
                continue
            # Copies of one layer have equal weights, so values alone do not decide.
            by: MatchedBy = "values" if len(ours) == 1 and len(theirs) == 1 else "order"
            for original, other in _pair_copies(ours, theirs):
                layout = find_layout(original.values, other.values)
                if layout is not None and original.kind == other.kind:
                    links.append(Link(original.name, (other.name,), layout, by))
        self.add(self._undo_swaps(links))

    def _undo_swaps(self, links: list[Link]) -> list[Link]:
        """Replaces links between layers that swapped values, because the port creates them in another order.

        Then names decide, unless only the links by value keep the order of the calls: there the names were swapped.
        """
        ours = {known.plain_names[0]: known for known in self.originals}
        theirs = {known.plain_names[0]: known for known in self.ported}
        mine = {link.original: self._known[link.original].plain_names[0] for link in links}
        moved_to = {
            mine[link.original]: self._theirs[link.ported[0]].plain_names[0]
            for link in links
            if link.by == "values"
        }
        unswapped: dict[str, Link] = {}
        for cycle in _cycles(moved_to):
            by_name = {name: fits_by_shape(ours[name], theirs[name]) for name in cycle if name in theirs}
            if len(by_name) < len(cycle) or None in by_name.values():
                continue
            calls = [ours[name].called for name in cycle]
            if _keep_order(calls, [theirs[moved_to[name]].called for name in cycle]) and not _keep_order(
                calls, [theirs[name].called for name in cycle]
            ):
                continue
            for name, layout in by_name.items():
                if layout is not None:
                    unswapped[name] = Link(ours[name].name, (theirs[name].name,), layout, "order")
        return [unswapped.get(mine[link.original], link) for link in links]


def _cycles(moved_to: dict[str, str]) -> Iterable[list[str]]:
    """The cycles of more than one name in a mapping of names, each once."""
    seen: set[str] = set()
    for start in moved_to:
        cycle, name = [start], moved_to[start]
        while name in moved_to and name not in cycle and name not in seen:
            cycle.append(name)
            name = moved_to[name]
        if name == start and len(cycle) > 1:
            yield cycle
        seen.update(cycle)


def _keep_order(calls: list[int], others: list[int]) -> bool:
    """Whether the same order sorts both lists; False if any module was never called (-1)."""
    if min(*calls, *others) < 0:
        return False
    return sorted(range(len(calls)), key=calls.__getitem__) == sorted(
        range(len(others)), key=others.__getitem__
    )


def _layout_of(original: Known, other: Known) -> Layout | None:
    if not original.is_constant and original.fingerprint == other.fingerprint:
        return find_layout(original.values, other.values)
    return fits_by_shape(original, other)


def _pair_copies(ours: list[Known], theirs: list[Known]) -> Iterable[tuple[Known, Known]]:
    """Pairs equal tensors by the order of their calls, or else by the numbers in their names, or else as listed."""
    if all(known.called >= 0 for known in (*ours, *theirs)):
        return zip(sorted(ours, key=lambda k: k.called), sorted(theirs, key=lambda k: k.called), strict=False)
    left, right = {known.numbers: known for known in ours}, {known.numbers: known for known in theirs}
    if len(left) == len(ours) == len(theirs) == len(right):
        return [(left[one], right[other]) for one, other in zip(sorted(left), sorted(right), strict=True)]
    return zip(ours, theirs, strict=False)


_MOST_ALIGNED = 4_000_000  # pairs; above that, the best pairs are taken one by one

_CONTRADICTED = 20  # penalty above all other scores: such a pair is made only when nothing else is left

Offers = dict[tuple[int, int], tuple[float, Layout]]


def align(originals: list[Known], ported: list[Known], modules: Modules) -> list[Link]:
    """Pairs tensors in the order of the calls (or of registration), with the highest total score."""
    ours, theirs = in_order(originals), in_order(ported)
    links: list[Link] = []
    for _ in range(3):  # each round knows more pairs of modules than the last
        offers = _offers(ours, theirs, modules)
        if not offers:
            break
        pairs = _best_in_order(len(ours), len(theirs), offers)
        rivals = Counter(key for row, column in offers for key in (("row", row), ("column", column)))
        sure = [pair for pair in pairs if offers[pair][0] >= 6] or pairs
        for row, column in sure:
            modules.pair(ours[row], theirs[column])
            is_only_one = rivals["row", row] == 1 and rivals["column", column] == 1
            by: MatchedBy = "shape" if is_only_one else "order"
            layout = offers[row, column][1]
            links.append(Link(ours[row].name, (theirs[column].name,), layout, by))
        rows, columns = {row for row, _ in sure}, {column for _, column in sure}
        ours = [known for number, known in enumerate(ours) if number not in rows]
        theirs = [known for number, known in enumerate(theirs) if number not in columns]
    left = _offers(ours, theirs, modules, -_CONTRADICTED)
    for (row, column), (_, layout) in sorted(left.items(), key=lambda item: -item[1][0]):
        names = {link.original for link in links}, {name for link in links for name in link.ported}
        if ours[row].name not in names[0] and theirs[column].name not in names[1]:
            links.append(Link(ours[row].name, (theirs[column].name,), layout, "order"))
    return links


def _offers(ours: list[Known], theirs: list[Known], modules: Modules, least: float = 0.0) -> Offers:
    by_size: dict[int, list[int]] = {}
    for column, other in enumerate(theirs):
        by_size.setdefault(other.values.numel(), []).append(column)
    offers: Offers = {}
    for row, original in enumerate(ours):
        for column in by_size.get(original.values.numel(), ()):
            other = theirs[column]
            layout = fits_by_shape(original, other) if original.kind == other.kind else None
            if layout is not None:
                score = _score(original, other, layout, modules)
                if score > least:
                    offers[row, column] = score, layout
    return offers


def _score(original: Known, ported: Known, layout: Layout, modules: Modules) -> float:
    if original.kind == "buffer" and original.leaf != ported.leaf:
        return -2.0 * _CONTRADICTED
    score = 2.0
    if original.leaf == ported.leaf:
        score += 3
    elif {original.leaf, ported.leaf} & {"weight", "bias"}:
        score -= 2 if {original.leaf, ported.leaf} == {"weight", "bias"} else 0.5
    if original.owner and original.owner == ported.owner:
        score += 2
    elif ("Norm" in original.owner) != ("Norm" in ported.owner):
        score -= 1
    agreed = modules.agree(original, ported)
    score += 5 if agreed else 0 if agreed is None else -3
    near = modules.nearness(original, ported)
    score += 3 * near if near >= 0 else -_CONTRADICTED
    score += 1.0 if original.numbers == ported.numbers else 0.0
    score += 2 * SequenceMatcher(None, original.plain_names[-1], ported.plain_names[-1]).ratio()
    score += 0.5 if original.shape == ported.shape and layout.permutation is None else 0.0
    if original.is_constant and ported.is_constant and original.values.numel():
        same = original.values.reshape(-1)[0] == ported.values.reshape(-1)[0].cpu()
        score += 1 if same else -1
    elif original.is_constant != ported.is_constant:
        score -= 0.5
    return score


def _best_in_order(num_rows: int, num_columns: int, offers: Offers) -> list[tuple[int, int]]:
    """The pairs of the alignment that keeps both orders and has the highest total score."""
    if num_rows * num_columns > _MOST_ALIGNED:
        return _greedy(offers)
    scores = np.zeros((num_rows, num_columns))
    for (row, column), (score, _) in offers.items():
        scores[row, column] = score
    best = np.zeros((num_rows + 1, num_columns + 1))
    for row in range(num_rows):
        paired = best[row, :-1] + scores[row]
        best[row + 1, 1:] = np.maximum.accumulate(np.maximum(best[row, 1:], paired))
    pairs, row, column = [], num_rows, num_columns
    while row and column:
        if best[row, column] == best[row - 1, column]:
            row -= 1
        elif best[row, column] == best[row, column - 1]:
            column -= 1
        else:
            row, column = row - 1, column - 1
            if (row, column) in offers:
                pairs.append((row, column))
    return pairs[::-1]


def _greedy(offers: Offers) -> list[tuple[int, int]]:
    rows: set[int] = set()
    columns: set[int] = set()
    pairs = []
    for row, column in sorted(offers, key=lambda pair: -offers[pair][0]):
        if row not in rows and column not in columns:
            rows.add(row)
            columns.add(column)
            pairs.append((row, column))
    return sorted(pairs)
