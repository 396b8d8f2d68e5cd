"""Pairs tensors that neither values nor names match, by the likeliest alignment."""

from __future__ import annotations

from collections import Counter
from difflib import SequenceMatcher

import numpy as np

from portwright.verify.matching_known import Known, Link, Modules, in_order
from portwright.verify.matching_layout import Layout, fits_by_shape
from portwright.verify.recording import MatchedBy

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
