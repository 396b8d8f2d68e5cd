"""Finds and names the files that text is read from; their endings give their formats."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.errors import UserError

FORMATS = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
COMPRESSIONS = {".gz": "gz", ".bz2": "bz2", ".xz": "xz", ".zst": "zst"}
ENDINGS = f"{', '.join(FORMATS)}, text formats also with {', '.join(COMPRESSIONS)} after it"


@dataclass(frozen=True)
class InputFile:
    """One file; `name` is its name in a manifest, the same in whatever folder the data are."""

    path: Path
    name: str
    format: str
    compression: str | None
    num_bytes: int

    @property
    def is_table(self) -> bool:
        return self.format in ("parquet", "arrow")


def find_inputs(places: Sequence[str | Path]) -> list[InputFile]:
    """The named files, and in named folders at any depth the files with known endings, sorted by name.

    A named file may have any ending: an unknown one means plain text. Hidden files in folders are left out.
    """
    found: list[InputFile] = []
    for given in places:
        place = Path(given).expanduser()
        if place.is_dir():
            inside = [
                path
                for path in sorted(place.rglob("*"), key=lambda path: path.relative_to(place).as_posix())
                if path.is_file()
                and not any(part.startswith(".") for part in path.relative_to(place).parts)
                and kind_of(path)[0] is not None
            ]
            if not inside:
                raise UserError(f"'{place}' holds no file of text.", f"Known endings: {ENDINGS}.")
            found += [_input(path, path.relative_to(place).as_posix()) for path in inside]
        elif place.is_file():
            found.append(_input(place, place.name))
        else:
            raise UserError(
                f"'{given}' {'is no plain file' if place.exists() else 'does not exist'}.",
                "Name files and folders of text.",
            )
    if not found:
        raise UserError("no input was named.", "Name files and folders of text.")
    seen: dict[Path, str] = {}
    for file in found:
        resolved = file.path.resolve()
        if resolved in seen:
            raise UserError(
                f"'{file.path}' is given twice.", "Name each file once; folders hold theirs already."
            )
        seen[resolved] = file.name
    return found


def kind_of(path: Path) -> tuple[str | None, str | None]:
    """Format and compression by a file's ending; None is an unknown format."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = COMPRESSIONS.get(suffixes[-1]) if suffixes else None
    if compression is not None:
        suffixes.pop()
    format = FORMATS.get(suffixes[-1]) if suffixes else None
    if compression is not None and format in ("parquet", "arrow"):
        return None, None
    return format, compression


def sha256_of(file: InputFile, on_bytes: Callable[[int], Any] | None = None) -> str:
    digest = hashlib.sha256()
    try:
        with file.path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
                if on_bytes is not None:
                    on_bytes(len(chunk))
    except OSError as error:
        raise UserError(f"'{file.path}' cannot be read: {error.strerror}.", "Check the file.") from error
    return digest.hexdigest()


def total_bytes(files: Iterable[InputFile]) -> int:
    return sum(file.num_bytes for file in files)


def _input(path: Path, name: str) -> InputFile:
    format, compression = kind_of(path)
    if path.suffix.lower() == ".json":
        raise UserError(
            f"'{path}' is one JSON document, and records are read a line each.",
            "Write it as JSON lines: *.jsonl.",
        )
    return InputFile(path, name, format or "text", compression, path.stat().st_size)
