"""Overrides of params from the command line, such as `-D optimizer.learning_rate=0.01`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from portwright.errors import UserError
from portwright.job.problems import KeyPath, dotted, show
from portwright.job.yaml_source import parse_value


@dataclass(frozen=True)
class Override:
    """One override that has been applied: what was typed, and the keys that it set."""

    text: str
    path: KeyPath


def apply_override(text: str, params: dict[Any, Any]) -> Override:
    """Sets one value in `params`, in place, and makes the mappings that lead to it where there are none.

    A part of the path that is a number is an index where it meets a list.
    """
    shown = f"-D {text if text.isprintable() else repr(text)}"
    keys, equals, value_text = text.partition("=")
    parts = [part.strip() for part in keys.split(".")]
    if not equals or not all(parts) or len(parts) < 2:
        raise UserError(
            f"{shown}: this is not of the form SECTION.KEY=VALUE.", "Try: -D optimizer.learning_rate=0.01"
        )
    value = parse_value(value_text, shown)
    here: Any = params
    path: list[Any] = []
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        key = _key_in(here, part, shown, path)
        path.append(key)
        if is_last:
            here[key] = value
        elif isinstance(here, dict) and here.get(key) is None:
            here[key] = {}
        here = here[key]
    return Override(shown, tuple(path))


def _key_in(container: Any, part: str, shown: str, path: list[Any]) -> Any:
    if isinstance(container, dict):
        numbered = next((key for key in container if not isinstance(key, str) and str(key) == part), None)
        return part if part in container or numbered is None else numbered
    if isinstance(container, list):
        if part.isdecimal() and int(part) < len(container):
            return int(part)
        valid = f"0 to {len(container) - 1}" if container else "none, since it is empty"
        raise UserError(
            f"{shown}: {dotted(tuple(path))} is a list, received the index '{part}'.", f"Valid: {valid}."
        )
    raise UserError(
        f"{shown}: {dotted(tuple(path))} is {show(container)} and has no keys.",
        f"Set it as a whole: -D {dotted(tuple(path))}=...",
    )
