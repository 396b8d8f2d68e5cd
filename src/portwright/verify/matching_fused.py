"""Matches fused tensors with their parts, such as queries, keys and values, or a gate and its up-projection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import torch

from portwright.verify.matching_known import Known, Layout, Link, Modules, in_order
from portwright.verify.recording import MatchedBy

# The parts, in their order in fused tensors.
_ROLES = (
    (r"q|query|queries", r"k|key|keys", r"v|value|values"),
    (r"q|query|queries", r"kv|key_value"),
    (r"gate", r"up"),
    (r"w1", r"w3"),
)
Fit = tuple[tuple[int, ...] | None, int]  # permutation of the port's tensors, and an axis of the original
_EDGE = r"(?:^|[._]|to_|w)"


def match_rows(originals: list[Known], ported: list[Known]) -> Iterable[Link]:
    """Links tensors whose values are a slice of rows or columns of one tensor on the other side."""
    for original, parts, permutation, axis in _wholes(originals, ported):
        names = tuple(part.name for part in parts)
        yield Link(original.name, names, Layout(permutation=permutation, joined=axis), "values")
    for whole, parts, permutation, axis in _wholes(ported, originals):
        # The axis of the port's tensor, which is permuted before it is cut.
        along, start = axis if permutation is None else 1 - axis, 0
        for part in parts:
            cut = (along, start, start + part.shape[along])
            yield Link(part.name, (whole.name,), Layout(permutation=permutation, cut=cut), "values")
            start = cut[2]


def _wholes(
    wholes: list[Known], others: list[Known]
) -> Iterable[tuple[Known, list[Known], tuple[int, ...] | None, int]]:
    """Tensors that some of the others make up along an axis; each other is used once."""
    used: set[str] = set()
    for whole in wholes:
        for axis in range(min(len(whole.shape), 2)):
            found = _find_parts(whole, others, axis, used)
            if found is not None:
                used |= {part.name for part in found[0]}
                yield whole, *found, axis
                break


def _find_parts(
    whole: Known, parts: list[Known], axis: int, used: set[str]
) -> tuple[list[Known], tuple[int, ...] | None] | None:
    """Parts that concatenate to the whole along an axis, all transposed or none; None if there are none."""
    if whole.is_constant or whole.kind != "parameter":
        return None
    for permutation in (None, (1, 0)) if len(whole.shape) == 2 else (None,):
        fitting = []
        for part in parts:
            if part.is_constant or len(part.shape) != len(whole.shape) or part.name in used:
                continue
            values = part.values if permutation is None else part.values.permute(permutation)
            across = [size for number, size in enumerate(values.shape) if number != axis]
            rows = [size for number, size in enumerate(whole.shape) if number != axis]
            if across == rows and values.shape[axis] < whole.shape[axis]:
                fitting.append((part, values.detach().cpu()))
        # Copies of one layer have the same values; prefer the one of the same number.
        fitting.sort(key=lambda item: item[0].numbers[:1] != whole.numbers[:1])
        chosen: list[Known] = []
        start = 0
        while start < whole.shape[axis]:
            for part, values in fitting:
                size = values.shape[axis]
                if (
                    start + size <= whole.shape[axis]
                    and part not in chosen
                    and torch.equal(whole.values.narrow(axis, start, size).cpu().to(values.dtype), values)
                ):
                    chosen.append(part)
                    start += size
                    break
            else:
                break
        if start == whole.shape[axis] and len(chosen) > 1:
            return chosen, permutation
    return None


def match_fused(originals: list[Known], ported: list[Known], modules: Modules) -> list[Link]:
    """Links fused tensors by the names of their parts, where values differ."""
    originals, ported = in_order(originals), in_order(ported)
    links: list[Link] = []
    for whole, parts, (permutation, axis), by in _pair(originals, _groups(ported), modules, True):
        names = tuple(part.name for part in parts)
        links.append(Link(whole.name, names, Layout(permutation=permutation, joined=axis), by))
    done = {link.original for link in links}
    left = [known for known in originals if known.name not in done]
    used = {name for link in links for name in link.ported}
    wholes = [known for known in ported if known.name not in used]
    for whole, parts, (permutation, axis), by in _pair(wholes, _groups(left), modules, False):
        start = 0
        for part in parts:
            size = part.shape[axis]
            links.append(
                Link(part.name, (whole.name,), Layout(permutation, cut=(axis, start, start + size)), by)
            )
            start += size
    return links


def _groups(knowns: Sequence[Known]) -> list[list[Known]]:
    """Groups of siblings whose names mark them as parts of a fused tensor, in its order; larger groups first."""
    found: dict[tuple[str, str, int], dict[int, Known]] = {}
    for known in knowns:
        for family, roles in enumerate(_ROLES):
            for number, role in enumerate(roles):
                match = re.search(rf"{_EDGE}({role})(?:$|[._]|proj|lin|_?\d)", known.name.lower())
                if match:
                    outside = known.name[: match.start(1)] + "*" + known.name[match.end(1) :]
                    found.setdefault((outside, known.kind, family), {}).setdefault(number, known)
    groups = []
    for (_, _, family), parts in found.items():
        whole = [parts[number] for number in sorted(parts)]
        if len(whole) > 1:
            groups.append(whole)
        if len(whole) == 3 and family == 0:
            groups.append(whole[1:])
    return sorted(groups, key=len, reverse=True)


def _pair(
    wholes: Sequence[Known], groups: list[list[Known]], modules: Modules, parts_are_ported: bool
) -> Iterable[tuple[Known, list[Known], Fit, MatchedBy]]:
    taken: set[str] = set()
    offers = []
    for number, whole in enumerate(wholes):
        fitting = [(group, fit) for group in groups if (fit := _fit(whole, group, parts_are_ported))]
        for place, (group, fit) in enumerate(fitting):
            first = group[0]
            pair = (whole, first) if parts_are_ported else (first, whole)
            near = modules.nearness(*pair)
            same = whole.numbers == first.numbers or whole.numbers[:1] == first.numbers[:1]
            offers.append((len(group), near + same, number, place, whole, group, fit))
    # Equally likely pairs are made in the order of the calls.
    offers.sort(key=lambda offer: (-offer[0], -offer[1], offer[2], offer[3]))
    for *_, whole, group, fit in offers:
        names = {whole.name, *(part.name for part in group)}
        if not names & taken:
            taken |= names
            rivals = [o for o in offers if (o[4] is whole) != (o[5] is group) and len(o[5]) == len(group)]
            yield whole, group, fit, "order" if rivals else "shape"


def _fit(whole: Known, group: list[Known], parts_are_ported: bool) -> Fit | None:
    """How parts make up a whole: the permutation of the port's tensors, and the axis (of the original) of the parts."""
    kinds = {known.leaf for known in (whole, *group)}
    if whole.kind != group[0].kind or len(kinds) > 1 or len({len(part.shape) for part in group}) > 1:
        return None
    if len(whole.shape) != len(group[0].shape) or not whole.shape:
        return None
    turned = (whole.owner == "Conv1D") != (group[0].owner == "Conv1D") and len(whole.shape) == 2
    for permutation in ((1, 0), None) if turned else (None, (1, 0)):
        if permutation is not None and len(whole.shape) != 2:
            continue
        # Compares shapes in the original's layout: the port's side is permuted.
        turn_whole = permutation is not None and not parts_are_ported
        turn_parts = permutation is not None and parts_are_ported
        shape = whole.shape[::-1] if turn_whole else whole.shape
        pieces = [part.shape[::-1] if turn_parts else part.shape for part in group]
        for axis in range(len(shape)):
            across = {piece[:axis] + piece[axis + 1 :] for piece in pieces}
            if across == {shape[:axis] + shape[axis + 1 :]} and sum(p[axis] for p in pieces) == shape[axis]:
                return permutation, axis
    return None
