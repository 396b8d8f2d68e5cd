"""The description of a store: manifest.json, and beside each shard the part that the manifest is made from."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from pydantic import Field as Bounded

from portwright.errors import UserError

MANIFEST = "manifest.json"
FORMAT = "portwright-store"
VERSION = 1
Dtype = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
]  # fmt: skip
DTYPES: tuple[str, ...] = get_args(Dtype)
BLOCK_BYTES = 65536  # of records that share a checksum
_ALIGNMENT = 64  # bytes, of each field in a shard: a cache line
_MAX_COUNT = 1 << 48  # the limit of every count, so that products of counts fit into numpy's integers

Count = Annotated[int, Bounded(ge=0, le=_MAX_COUNT)]
PositiveCount = Annotated[int, Bounded(ge=1, le=_MAX_COUNT)]


class DamagedManifest(UserError):
    """A store's manifest that is damaged; a file that never was one is a plain UserError."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Field(_Strict):
    """One field of a record: the same dtype and shape in every record."""

    name: Annotated[str, Bounded(min_length=1)]
    dtype: Dtype
    shape: tuple[PositiveCount, ...] = ()

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...] = ()) -> None:
        super().__init__(**{"name": name, "dtype": dtype, "shape": tuple(shape)})

    @field_validator("shape")
    @classmethod
    def _is_countable(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        if math.prod(shape) > _MAX_COUNT:
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

    `lowest` and `highest` bound the values of each integer field, so that ids beyond a vocabulary are found unread.
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
    tokenizer: dict[str, Any] | None = None  # fingerprint, vocab_size and what its maker adds
    made_by: dict[str, Any]

    @field_validator("fields")
    @classmethod
    def _are_different(cls, fields: tuple[Field, ...]) -> tuple[Field, ...]:
        names = [each.name for each in fields]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"fields are {names}: there has to be one, and each only once")
        return fields

    @property
    def fingerprint(self) -> str:
        """A hash that is equal where shards may be in one store."""
        return f"{zlib.crc32(_canonical(self.model_dump(mode='json'))):08x}"

    def place(self, num_records: int) -> tuple[dict[str, int], int]:
        """Where each field and the checksums begin, in bytes, in a shard of `num_records` records."""
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

    def to_text(self) -> str:
        document = self.model_dump(mode="json")
        return json.dumps({**document, "crc32": zlib.crc32(_canonical(document))}, indent=1) + "\n"


def choose_block_records(fields: tuple[Field, ...]) -> int:
    return max(1, BLOCK_BYTES // sum(field.row_bytes for field in fields))


def read_manifest(folder: Path) -> Manifest:
    """Reads a store's manifest; raises an error that names what is wrong with it."""
    path = folder / MANIFEST
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise _no_store(folder) from error
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror or error}.", "Name the folder of a store."
        ) from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested too deeply
        raise _damaged(path, f"it is not UTF-8 or not JSON ({error})") from error
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
        manifest = Manifest.model_validate_json(json.dumps(document))
    except (ValidationError, TypeError) as error:
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
