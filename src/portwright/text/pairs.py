"""Pairs of texts (a sentence and its translation, a question and its answer) from files of several formats.

A folder holds *.tsv, *.csv, *.jsonl, *.parquet or *.arrow, or text files that belong together line by line: NAME.src
and NAME.tgt.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from portwright.errors import UserError, suggest
from portwright.job.long_cells import begin_long_cells, end_long_cells

Keys = tuple[str, str]


class Pairs(NamedTuple):
    """Texts that belong together, place by place."""

    sources: list[str]
    targets: list[str]


def read_pairs(
    places: str | Path | Sequence[str | Path], source_key: str = "source", target_key: str = "target"
) -> Pairs:
    """All pairs of files and folders, files of a folder in the order of their names.

    The keys name columns, or keys of JSON; `translation.en` is the key `en` inside of `translation`. A *.tsv without
    such a heading has the source before the tab and the target behind it.
    """
    listed = [places] if isinstance(places, str | Path) else list(places)
    pairs = Pairs([], [])
    for path in (file for place in listed for file in _files_of(Path(place))):
        for number, (source, target) in _READERS[path.suffix.lower()](path, (source_key, target_key)):
            for key, text in ((source_key, source), (target_key, target)):
                if not isinstance(text, str):
                    raise UserError(
                        f"{path}, record {number}: '{key}' is {_shown(text)}, not text.",
                        "Give every record a text for both sides.",
                    )
            pairs.sources.append(source)
            pairs.targets.append(target)
    if not pairs.sources:
        raise UserError(f"{', '.join(map(str, listed))}: no pair of texts.", f"Give {_FORMATS}.")
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


def _files_of(place: Path) -> list[Path]:
    if place.is_file():
        if place.suffix.lower() not in _READERS:
            raise UserError(f"{place} is no file of pairs.", f"Give {_FORMATS}.")
        return [place]
    if not place.is_dir():
        raise UserError(f"'{place}' does not exist.", f"Give a folder or a file of pairs: {_FORMATS}.")
    found = sorted(path for path in place.iterdir() if path.is_file() and path.suffix.lower() in _READERS)
    if not found:
        names = sorted(path.name for path in place.iterdir())[:5]
        raise UserError(
            f"'{place}' has no file of pairs (it has {', '.join(names) if names else 'nothing'}).",
            f"Put {_FORMATS} there.",
        )
    return found


Records = Iterator[tuple[int, tuple[Any, Any]]]  # each with its number, from 1


def _read_jsonl(path: Path, keys: Keys) -> Records:
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: not JSON ({error}).", "Mend the line.") from error
        yield number, (_look_up(path, number, record, keys[0]), _look_up(path, number, record, keys[1]))


def _look_up(path: Path, number: int, record: Any, key: str) -> Any:
    if isinstance(record, Mapping) and key in record:
        return record[key]
    value = record
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            names = list(map(str, value)) if isinstance(value, Mapping) else []
            raise UserError(
                f"{path}, record {number}: no key '{key}'.",
                f"Set source_key and target_key. {suggest(part, names)}",
            )
        value = value[part]
    return value


def _read_csv(path: Path, keys: Keys) -> Records:
    yield from _read_table(path, keys, ",")


def _read_tsv(path: Path, keys: Keys) -> Records:
    lines = _lines(path)
    if lines and not set(keys) <= set(lines[0].split("\t")):
        for number, line in enumerate(lines, start=1):
            parts = line.split("\t")
            if len(parts) != 2:
                raise UserError(
                    f"{path}, line {number}: {len(parts)} columns.",
                    f"Give source and target with a tab between them, or a heading with '{keys[0]}' and '{keys[1]}'.",
                )
            yield number, (parts[0], parts[1])
        return
    yield from _read_table(path, keys, "\t")


def _read_table(path: Path, keys: Keys, delimiter: str) -> Records:
    begin_long_cells()
    try:
        rows = csv.reader(io.StringIO(_text(path), newline=""), delimiter=delimiter, strict=True)
        heading = next(rows, [])
        for key in keys:
            if key not in heading:
                raise UserError(
                    f"{path}: no column '{key}'.", f"Set source_key and target_key. {suggest(key, heading)}"
                )
        columns = heading.index(keys[0]), heading.index(keys[1])
        for number, row in enumerate(rows, start=1):
            if not row:
                continue
            if len(row) != len(heading):
                raise UserError(
                    f"{path}, record {number}: {len(row)} columns where the heading has {len(heading)}.",
                    "Put texts with a delimiter in quotes.",
                )
            yield number, (row[columns[0]], row[columns[1]])
    except csv.Error as error:
        raise UserError(f"{path}: not a table ({error}).", "Close every quote.") from error
    finally:
        end_long_cells()


def _read_arrow(path: Path, keys: Keys) -> Records:
    try:
        pyarrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise UserError(
            f"{path} needs pyarrow, which is not installed.", "pip install 'portwright[arrow]'"
        ) from error
    try:
        if path.suffix.lower() == ".parquet":
            table = parquet.read_table(path)
        else:
            with pyarrow.OSFile(str(path)) as source:
                table = _open_arrow(pyarrow, source).read_all()
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}.", "Write the file anew.") from error
    columns = [_column(path, table, key) for key in keys]
    yield from enumerate(zip(*columns, strict=True), start=1)


def _column(path: Path, table: Any, key: str) -> list[Any]:
    root, _, rest = (key, "", "") if key in table.column_names else key.partition(".")
    if root not in table.column_names:
        raise UserError(
            f"{path}: no column '{key}'.",
            f"Set source_key and target_key. {suggest(root, table.column_names)}",
        )
    values = table.column(root).to_pylist()
    if not rest:
        return list(values)
    return [_look_up(path, number, value, rest) for number, value in enumerate(values, start=1)]


def _open_arrow(pyarrow: Any, source: Any) -> Any:
    """Arrow's two layouts: HuggingFace's datasets write streams."""
    try:
        return pyarrow.ipc.open_file(source)
    except pyarrow.ArrowInvalid:
        source.seek(0)
        return pyarrow.ipc.open_stream(source)


def _read_two_files(path: Path, keys: Keys) -> Records:
    other = path.with_suffix(".tgt")
    if not other.is_file():
        raise UserError(f"{path} has no {other.name} beside it.", "Give both, line by line.")
    yield from enumerate(zip(*read_parallel(path, other), strict=True), start=1)


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"'{path}' cannot be read: {error}.", "Give a UTF-8 text file.") from error


def _lines(path: Path) -> list[str]:
    # By line feeds alone: a text may hold the other characters that splitlines cuts at.
    lines = _text(path).split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


_READERS: dict[str, Callable[[Path, Keys], Records]] = {
    ".jsonl": _read_jsonl,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".parquet": _read_arrow,
    ".arrow": _read_arrow,
    ".src": _read_two_files,
}
_FORMATS = "*.tsv, *.csv, *.jsonl, *.parquet, *.arrow, or *.src with *.tgt"
