"""Turns records' labels into numbers, by the model's label names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from portwright.errors import UserError, suggest


class Labels:
    """Numbers from 0, or names of `model.label_names`."""

    def __init__(self, count: int, names: Sequence[str] | None, key: str) -> None:
        if names is not None and (len(names) != count or len(set(names)) != count):
            raise UserError(
                f"model.label_names has {len(names)} names ({len(set(names))} different) and model.{key} is {count}.",
                "Give each label one name.",
            )
        self.count = count
        self.numbers: Mapping[str, int] = {name: number for number, name in enumerate(names or ())}

    def number(self, given: Any, place: str) -> int:
        """The label's number; errors name the record's place."""
        if isinstance(given, str) and given.strip() in self.numbers:
            return self.numbers[given.strip()]
        value = _as_float(given)
        if isinstance(given, bool) or not value.is_integer() or not 0 <= value < self.count:
            if self.numbers:
                raise UserError(
                    f"{place}: the label {given!r} is unknown.", suggest(str(given), self.numbers)
                )
            raise UserError(
                f"{place}: the label {given!r} is none of 0 to {self.count - 1}.",
                "Correct it, or name all labels in model.label_names, in their order.",
            )
        return int(value)


def as_number(given: Any, place: str) -> float:
    """The finite number of a regression."""
    value = _as_float(given)
    if not math.isfinite(value):
        raise UserError(f"{place}: the label {given!r} is no number.", "A regression needs finite numbers.")
    return value


def _as_float(given: Any) -> float:
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError):
        return math.nan
