"""Reports all differences between the tensors of a file and those of a model at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from portwright.errors import UserError

_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_heads",
    "filter_size",
    "max_position_embeddings",
)
Misshapen = tuple[
    str, tuple[int, ...], tuple[int, ...]
]  # a tensor's name, its shape, and the one that it should have
_NUMBER = re.compile(r"(?<![0-9A-Za-z_])[0-9]+(?![0-9A-Za-z_])")


def refuse_differences(
    headline: str,
    source: str,
    params: Mapping[str, Any],
    missing: Sequence[str],
    surplus: Sequence[str],
    misshapen: Sequence[Misshapen],
    candidates: Collection[str],
) -> None:
    """Raises one UserError that names every tensor, with layers' numbers folded; `details` has each name.

    `source` is what was read. `candidates` are names that a surplus one may stand for.
    """
    parts = []
    if missing:
        parts.append(f"{len(missing)} missing: {_folded(missing, surplus)}")
    if surplus:
        parts.append(f"{len(surplus)} unexpected: {_folded(surplus, missing or candidates)}")
    if misshapen:
        parts.append(f"{len(misshapen)} of another shape: {_shapes(misshapen)}")
    if not parts:
        return
    sizes = ", ".join(f"{key}={params[key]}" for key in _SIZES if key in params)
    raise UserError(
        f"{headline}: of its tensors {'; '.join(parts)}.",
        f"Give the model that belongs to the {source}{f' (now {sizes})' if sizes else ''}, or another {source}.",
        {
            "missing": list(missing),
            "unexpected": list(surplus),
            "misshapen": [
                {"name": name, "shape": list(shape), "expected": list(want)}
                for name, shape, want in misshapen
            ],
        },
    )


def fold(names: Sequence[str]) -> dict[str, list[str]]:
    """Groups names that differ only in numbers: h.{0..11}.attn.bias."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_NUMBER.sub("#", name), []).append(name)
    return {_range_of(pattern, members): members for pattern, members in groups.items()}


def _range_of(pattern: str, names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    columns = zip(*(map(int, _NUMBER.findall(name)) for name in names), strict=True)
    shown = iter([_numbers(sorted(set(column))) for column in columns])
    return re.sub("#", lambda _: next(shown), pattern)


def _numbers(values: Sequence[int]) -> str:
    if len(values) == 1:
        return str(values[0])
    if list(values) == list(range(values[0], values[-1] + 1)):
        return f"{{{values[0]}..{values[-1]}}}"
    return f"{{{','.join(map(str, values))}}}"


def _folded(names: Sequence[str], others: Collection[str]) -> str:
    listed = []
    for shown, members in fold(names).items():
        nearest = difflib.get_close_matches(members[0], list(others), n=1, cutoff=0.6)
        listed.append(f"{shown} (nearest: {nearest[0]})" if nearest else shown)
    return ", ".join(listed)


def _shapes(rows: Sequence[Misshapen]) -> str:
    groups: dict[Misshapen, list[str]] = {}
    for name, shape, want in rows:
        groups.setdefault((_NUMBER.sub("#", name), shape, want), []).append(name)
    return ", ".join(
        f"{_range_of(pattern, names)} is {show_shape(shape)}, not {show_shape(want)}"
        for (pattern, shape, want), names in groups.items()
    )


def show_shape(shape: Sequence[int]) -> str:
    return "x".join(str(size) for size in shape) or "scalar"
