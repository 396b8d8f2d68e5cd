"""Reports all differences between the tensors of a file and those of a model at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
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
_NUMBER = re.compile(r"(?<![0-9A-Za-z_])[0-9]+(?![0-9A-Za-z_])")


@dataclass
class Problems:
    """Tensors that are missing, too many or of another shape."""

    headline: str
    source: str  # what was read
    wanted: str  # what it should fit
    missing: list[str] = field(default_factory=list)
    surplus: list[str] = field(default_factory=list)
    misshapen: list[tuple[str, tuple[int, ...], tuple[int, ...] | None]] = field(default_factory=list)

    def raise_if_any(self, params: Mapping[str, Any], candidates: Collection[str]) -> None:
        """Raises one UserError that names every tensor, with layers' numbers folded; `details` has each name."""
        parts = []
        if self.missing:
            parts.append(f"{len(self.missing)} missing: {_folded(self.missing, self.surplus)}")
        if self.surplus:
            parts.append(
                f"{len(self.surplus)} unexpected: {_folded(self.surplus, self.missing or candidates)}"
            )
        if self.misshapen:
            parts.append(f"{len(self.misshapen)} of another shape: {_shapes(self.misshapen)}")
        if not parts:
            return
        sizes = ", ".join(f"{key}={params[key]}" for key in _SIZES if key in params)
        raise UserError(
            f"{self.headline}: of its tensors {'; '.join(parts)}.",
            f"Give the {self.wanted} that belongs to the {self.source}{f' (now {sizes})' if sizes else ''}, or another {self.source}.",
            {
                "missing": list(self.missing),
                "unexpected": list(self.surplus),
                "misshapen": [
                    {"name": name, "shape": list(shape), "expected": list(want) if want is not None else None}
                    for name, shape, want in self.misshapen
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


def _shapes(rows: Sequence[tuple[str, tuple[int, ...], tuple[int, ...] | None]]) -> str:
    groups: dict[tuple[str, tuple[int, ...], tuple[int, ...] | None], list[str]] = {}
    for name, shape, want in rows:
        groups.setdefault((_NUMBER.sub("#", name), shape, want), []).append(name)
    return ", ".join(
        f"{_range_of(pattern, names)} is {show_shape(shape)}"
        + (f", not {show_shape(want)}" if want is not None else ", which does not fit the others")
        for (pattern, shape, want), names in groups.items()
    )


def show_shape(shape: Sequence[int]) -> str:
    return "x".join(str(size) for size in shape) or "scalar"
