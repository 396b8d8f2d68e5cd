"""Matches the tensors of a port with the original's, across renames, other orders and other layouts.

In the order of certainty: equal values that are no constants (unless layers of the same names swapped their values), equal names,
parts of a fused tensor, and last the likeliest alignment by shape, name, neighbours and the order of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from portwright.verify.matching_align import align
from portwright.verify.matching_fused import match_fused, match_rows
from portwright.verify.matching_known import Known, Link, Modules
from portwright.verify.matching_layout import Layout, find_layout, fits_by_shape
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
