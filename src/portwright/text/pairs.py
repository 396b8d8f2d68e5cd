"""Pairs of texts (a sentence and its translation, a question and its answer) from files of several formats.

A folder holds *.tsv, *.csv, *.jsonl, *.parquet or *.arrow, or text files that belong together line by line: NAME.src
and NAME.tgt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from portwright.data.tables import TABLES, Row, find_files, read_rows, read_text, shorten
from portwright.errors import UserError, suggest

Keys = tuple[str, str]
_ENDINGS = (*TABLES, ".src")


class Pairs(NamedTuple):
    """Two lists of texts; those with the same index belong together."""

    sources: list[str]
    targets: list[str]


def read_pairs(
    places: str | Path | Sequence[str | Path], source_key: str = "source", target_key: str = "target"
) -> Pairs:
    """Reads all pairs of files and folders; a folder's files are sorted by name.

    The keys name columns, or keys of JSON; `translation.en` is the key `en` inside of `translation`. A *.tsv without
    such a heading has the source before the tab and the target behind it.
    """
    keys = source_key, target_key
    pairs = Pairs([], [])
    for path in find_files(places, _ENDINGS):
        for place, texts in _read_file(path, keys):
            for key, side, text in zip(keys, pairs, texts, strict=True):
                if not isinstance(text, str):
                    raise UserError(
                        f"{path}, {place}: '{key}' is {shorten(text)}, not text.",
                        "Give every record a text for both sides.",
                    )
                side.append(text)
    if not pairs.sources:
        raise UserError(f"'{places}' holds no pair of texts.", f"Formats: {', '.join(_ENDINGS)}.")
    return pairs


def read_parallel(source_file: str | Path, target_file: str | Path) -> Pairs:
    """The lines of two text files that belong together."""
    sources, targets = _lines(Path(source_file)), _lines(Path(target_file))
    if len(sources) != len(targets):
        raise UserError(
            f"{source_file} has {len(sources)} lines and {target_file} {len(targets)}.",
            "Give files whose lines belong together.",
        )
    if not sources:
        raise UserError(f"{source_file} is empty.", "Give a text a line.")
    return Pairs(sources, targets)


def _read_file(path: Path, keys: Keys) -> Iterator[tuple[str, Sequence[Any]]]:
    """The two texts of each record, with its place."""
    suffix = path.suffix.lower()
    if suffix == ".src":
        other = path.with_suffix(".tgt")
        if not other.is_file():
            raise UserError(f"{path} has no {other.name} beside it.", "Give both, line by line.")
        for number, texts in enumerate(zip(*read_parallel(path, other), strict=True), start=1):
            yield f"line {number}", texts
    elif suffix == ".tsv" and (lines := _lines(path)) and not set(keys) <= set(lines[0].split("\t")):
        for number, line in enumerate(lines, start=1):
            parts = line.split("\t")
            if len(parts) != 2:
                raise UserError(
                    f"{path}, line {number}: {len(parts)} columns.",
                    f"Give source and target with a tab between them, or a heading with '{keys[0]}' and '{keys[1]}'.",
                )
            yield f"line {number}", parts
    else:
        for row in read_rows(path):
            yield row.place, [_look_up(path, row, key) for key in keys]


def _look_up(path: Path, row: Row, key: str) -> Any:
    if key in row.values:
        return row.values[key]
    value: Any = row.values
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            names = list(map(str, value)) if isinstance(value, Mapping) else []
            raise UserError(
                f"{path}, {row.place}: no key '{key}'.",
                f"Set source_key and target_key. {suggest(part, names)}",
            )
        value = value[part]
    return value


def _lines(path: Path) -> list[str]:
    # Only line feeds end a line: texts may hold other characters that splitlines cuts at.
    lines = read_text(path).split("\n")
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]
