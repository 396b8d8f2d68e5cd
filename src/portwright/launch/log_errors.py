"""The failures that logs are searched for, as log_errors.toml lists them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from portwright.errors import UserError

FILE = Path(__file__).with_name("log_errors.toml")
Kind = Literal["cause", "event", "symptom", "note", "region", "well", "done", "hidden"]
_KEYS = {"name", "kind", "hint", "pattern", "meaning", "cure", "source", "example", "undone_by", "within"}


@dataclass(frozen=True)
class KnownError:
    """One entry; the file's head says what its keys mean."""

    name: str
    kind: Kind
    hints: tuple[str, ...]
    pattern: re.Pattern[str] | None
    meaning: str
    cure: str
    source: str
    examples: tuple[str, ...]
    undone_by: str | None = None
    within: str | None = None

    @property
    def is_of_notes(self) -> bool:
        """Whether it is about a note of Portwright's; other notes are never a failure, whatever they tell of."""
        return self.pattern is not None and "note: " in self.pattern.pattern

    def match(self, line: str) -> dict[str, str] | None:
        """What the pattern's groups matched in a line that has one of the hints, or None where it does not fit."""
        if self.pattern is None:
            return {}
        found = self.pattern.search(line)
        return None if found is None else {k: v or "" for k, v in found.groupdict().items()}


@cache
def load_errors() -> tuple[KnownError, ...]:
    """All entries, in the file's order: of two that fit a line the first counts."""
    return tuple(_entry(raw) for raw in _read_toml()["error"])


def _read_toml() -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        try:
            import tomli as tomllib  # type: ignore[no-redef, import-not-found, unused-ignore]
        except ModuleNotFoundError:
            raise UserError(
                "Python 3.10 cannot read TOML by itself.", "Install tomli, or use a newer Python."
            ) from None
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def _entry(raw: dict[str, Any]) -> KnownError:
    if unknown := set(raw) - _KEYS:
        raise ValueError(f"{FILE.name}: {raw.get('name')}: unknown keys {sorted(unknown)}")
    return KnownError(
        name=raw["name"],
        kind=raw.get("kind", "cause"),
        hints=_words(raw["hint"]),
        pattern=re.compile(raw["pattern"]) if "pattern" in raw else None,
        meaning=raw["meaning"],
        cure=raw["cure"],
        source=raw["source"],
        examples=_words(raw["example"]),
        undone_by=raw.get("undone_by"),
        within=raw.get("within"),
    )


def _words(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
