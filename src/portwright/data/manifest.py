"""What a store says of itself: manifest.json, and beside each shard the description that the manifest is made from."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from pydantic import Field as Bounded

from portwright.errors import UserError, suggest

MANIFEST = "manifest.json"
FORMAT = "portwright-store"
VERSION = 1
DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
)  # fmt: skip
BLOCK_BYTES = 65536  # of records that share a checksum
_ALIGNMENT = 64  # bytes, of each field in a shard: a cache line
_MOST = 1 << 48  # of anything that is counted: their products are still numbers that numpy takes

Count = Annotated[int, Bounded(ge=0, le=_MOST)]
PositiveCount = Annotated[int, Bounded(ge=1, le=_MOST)]


class DamagedManifest(UserError):
    """It was a store's manifest once; one that is of something else is a plain UserError."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Field(_Strict):
    """One field of a record: the same dtype and shape in every record."""

    name: str
    dtype: str
    shape: tuple[PositiveCount, ...] = ()

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...] = ()) -> None:
        super().__init__(**{"name": name, "dtype": dtype, "shape": tuple(shape)})

    @field_validator("dtype")
    @classmethod
    def _is_known(cls, dtype: str) -> str:
        if dtype not in DTYPES:
            raise ValueError(f"unknown dtype '{dtype}'; {suggest(dtype, DTYPES)}")
        return dtype

    @field_validator("name")
    @classmethod
    def _is_name(cls, name: str) -> str:
        if not name:
            raise ValueError("a field has an empty name")
        return name

    @field_validator("shape")
    @classmethod
    def _is_countable(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        if math.prod(shape) > _MOST:
            raise ValueError(f"shape {list(shape)} has more values than can be counted")
        return shape

    @property
    def on_disk(self) -> np.dtype[Any]:
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * self.on_disk.itemsize


class ShardInfo(_Strict):
    """One shard file: its fields one after another, each [records, *shape], then the checksums of their blocks.

    `lowest` and `highest` are those of each integer field, so that ids beyond a vocabulary are found without reading.
    """

    file: str
    records: Count
    bytes: Count
    table_crc32: Count  # of the checksums at the file's end
    lowest: dict[str, int]
    highest: dict[str, int]

    @field_validator("file")
    @classmethod
    def _stays_inside(cls, file: str) -> str:
        if not file or Path(file).name != file or not file.isprintable():
            raise ValueError(f"shard {file!r} is no plain file name")
        return file


class Header(_Strict):
    """What all shards of a store have in common."""

    format: str = FORMAT
    version: int = VERSION
    fields: tuple[Field, ...]
    block_records: PositiveCount
    tokenizer: dict[str, Any] | None = None  # fingerprint, vocab_size and what else its maker tells
    made_by: dict[str, Any]

    @field_validator("fields", mode="before")
    @classmethod
    def _make_fields(cls, fields: Any) -> tuple[Field, ...]:
        made = tuple(
            each if isinstance(each, Field) else Field(each["name"], each["dtype"], tuple(each["shape"]))
            for each in fields
        )
        names = [each.name for each in made]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"fields are {names}: there has to be one, and each only once")
        return made

    @property
    def fingerprint(self) -> str:
        """Equal where shards may lie in one store."""
        return f"{zlib.crc32(_canonical(self.model_dump(mode='json'))):08x}"

    def place(self, num_records: int) -> tuple[dict[str, int], int]:
        """Where each field begins in a shard of so many records, and where the checksums do."""
        offsets, end = {}, 0
        for field in self.fields:
            offsets[field.name] = end
            end += -(-field.row_bytes * num_records // _ALIGNMENT) * _ALIGNMENT
        return offsets, end

    def num_blocks(self, num_records: int) -> int:
        return -(-num_records // self.block_records)

    def shard_bytes(self, num_records: int) -> int:
        return self.place(num_records)[1] + 4 * len(self.fields) * self.num_blocks(num_records)


class Manifest(_Strict):
    header: Header
    num_records: Count
    shards: tuple[ShardInfo, ...]

    @field_validator("shards", mode="before")
    @classmethod
    def _as_tuple(cls, shards: Any) -> tuple[Any, ...]:
        return tuple(shards)

    def to_text(self) -> str:
        document = self.model_dump(mode="json")
        return json.dumps({**document, "crc32": zlib.crc32(_canonical(document))}, indent=1) + "\n"


def choose_block_records(fields: tuple[Field, ...]) -> int:
    return max(1, BLOCK_BYTES // sum(field.row_bytes for field in fields))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a store, or the error that names what is wrong with it."""
    path = folder / MANIFEST
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise _no_store(folder) from error
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror or error}.", "Name the folder of a store."
        ) from error
    except UnicodeDecodeError as error:
        raise _damaged(path, f"it is not UTF-8 ({error.reason} at byte {error.start})") from error
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise _damaged(path, f"it is not JSON ({error.msg}, line {error.lineno})") from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # numbers of thousands of digits, lists in lists without end
        raise _damaged(path, f"it cannot be read ({error})") from error
    header = document.get("header") if isinstance(document, dict) else None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise UserError(
            f"{path} is not the manifest of a Portwright store.",
            "Name a folder that `portwright data prepare` has made.",
        )
    if header.get("version") != VERSION:
        raise UserError(
            f"{path} is of version {header.get('version')!r} of the store's format, and this Portwright reads {VERSION}.",
            "Prepare the data again, or use the Portwright that made it.",
        )
    crc32 = document.pop("crc32", None)
    if crc32 != zlib.crc32(_canonical(document)):
        raise _damaged(path, "its checksum does not match its content")
    try:
        manifest = Manifest.model_validate(document)
    except (ValidationError, KeyError, TypeError) as error:
        raise _damaged(path, _first_complaint(error)) from error
    counted = sum(shard.records for shard in manifest.shards)
    if counted != manifest.num_records:
        raise _damaged(path, f"it counts {manifest.num_records} records and its shards hold {counted}")
    return manifest


def _no_store(folder: Path) -> UserError:
    if not folder.exists():
        return UserError(f"there is no folder {folder}.", "Name the folder of a prepared store.")
    pieces = len(list(folder.glob("shard-*.json"))) if folder.is_dir() else 0
    if pieces:
        return UserError(
            f"{folder} holds {pieces} shards and no {MANIFEST}: preparing it was not finished.",
            "Run the same `portwright data prepare` again; it goes on where it stopped.",
        )
    return UserError(
        f"{folder} holds no {MANIFEST}.",
        "Make a store with `portwright data prepare`, or name the folder of one.",
    )


def _damaged(path: Path, how: str) -> DamagedManifest:
    return DamagedManifest(
        f"{path} is damaged: {how}.",
        "Prepare the data again (whole shards are kept), or fetch that file anew; it is not to be edited by hand.",
    )


def _first_complaint(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}"
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _canonical(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
