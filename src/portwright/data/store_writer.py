"""Writes a store shard by shard; several processes may write different shards of one store."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from portwright.data.columns import same_length
from portwright.data.manifest import (
    MANIFEST,
    Field,
    Header,
    Manifest,
    ShardInfo,
    choose_block_records,
)
from portwright.errors import UserError
from portwright.job.atomic import atomic_write_bytes, atomic_write_text, explain_os_error


class StoreWriter:
    """Writes shards, each whole or not at all; after a kill, a new writer continues with the missing shards.

    `made_by` describes the origin of the records (source files, options): shards of another origin are refused.
    """

    def __init__(
        self,
        folder: str | Path,
        fields: Sequence[Field],
        *,
        made_by: Mapping[str, Any],
        tokenizer: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = Path(folder)
        try:
            # As JSON will give it back, with lists for tuples.
            described = json.loads(
                json.dumps([dict(made_by), None if tokenizer is None else dict(tokenizer)])
            )
            self.header = Header(
                fields=tuple(fields),
                block_records=choose_block_records(tuple(fields)),
                made_by=described[0],
                tokenizer=described[1],
            )
        except (ValidationError, TypeError) as error:
            raise UserError(
                f"a store cannot be described so: {error}.", "made_by and tokenizer are plain JSON."
            ) from error
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain_os_error(error, self.folder) from error

    def has_shard(self, number: int) -> bool:
        """Whether a whole shard of this origin exists; a shard of another origin is an error."""
        return self._read_shard(number) is not None

    def write_shard(self, number: int, arrays: Mapping[str, npt.ArrayLike]) -> ShardInfo:
        """Writes one shard; each array is [records, *shape of its field], and its values must fit the field's dtype."""
        name = _shard_name(number)
        num_records, columns = self._check(name, arrays)
        header = self.header
        offsets, table_at = header.place(num_records)
        data = bytearray(header.shard_bytes(num_records))
        table, lowest, highest = [], {}, {}
        for field in header.fields:
            column = columns[field.name]
            raw = column.tobytes()
            data[offsets[field.name] : offsets[field.name] + len(raw)] = raw
            step = header.block_records * field.row_bytes
            view = memoryview(raw)
            table += [zlib.crc32(view[at : at + step]) for at in range(0, len(raw), step)]
            if column.dtype.kind in "iu" and column.size:
                lowest[field.name], highest[field.name] = int(column.min()), int(column.max())
        sums = np.asarray(table, dtype="<u4").tobytes()
        data[table_at:] = sums
        atomic_write_bytes(self.folder / name, bytes(data))
        info = ShardInfo(
            file=name,
            records=num_records,
            bytes=len(data),
            table_crc32=zlib.crc32(sums),
            lowest=lowest,
            highest=highest,
        )
        # Written last, so that its existence means a whole shard.
        document = {"store": header.fingerprint, "shard": info.model_dump(mode="json")}
        atomic_write_text(self._describe(number), json.dumps(document) + "\n")
        return info

    def finish(self, num_shards: int) -> Manifest:
        """Makes the store readable once all shards exist; removes surplus shards of an earlier attempt."""
        shards = []
        for number in range(num_shards):
            info = self._read_shard(number)
            if info is None:
                raise UserError(
                    f"{self.folder} lacks {_shard_name(number)} of {num_shards} shards.",
                    "Write it, then finish.",
                )
            shards.append(info)
        total = sum(info.records for info in shards)
        manifest = Manifest(header=self.header, num_records=total, shards=tuple(shards))
        atomic_write_text(self.folder / MANIFEST, manifest.to_text())
        named = {info.file for info in shards}
        for path in self.folder.glob("shard-*.bin"):
            if path.name not in named:
                path.with_suffix(".json").unlink(missing_ok=True)
                path.unlink(missing_ok=True)
        return manifest

    def _describe(self, number: int) -> Path:
        return self.folder / Path(_shard_name(number)).with_suffix(".json")

    def _read_shard(self, number: int) -> ShardInfo | None:
        path = self._describe(number)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            info = ShardInfo.model_validate(document["shard"])
            origin = document["store"]
            is_whole = (self.folder / info.file).stat().st_size == info.bytes
        except (OSError, ValueError, KeyError, TypeError):
            return None  # missing or damaged: it will be written again
        if origin != self.header.fingerprint:
            raise UserError(
                f"{path} is a shard of other data or other options than these.",
                "Prepare into another folder, or remove this one first.",
            )
        return info if is_whole else None

    def _check(
        self, name: str, arrays: Mapping[str, npt.ArrayLike]
    ) -> tuple[int, dict[str, npt.NDArray[Any]]]:
        known = [field.name for field in self.header.fields]
        if set(arrays) != set(known):
            raise UserError(
                f"{self.folder / name} was given the fields {', '.join(arrays) or 'none'}.",
                f"Every shard of this store has {', '.join(known)}.",
            )
        columns = {
            field.name: self._convert(name, field, np.asarray(arrays[field.name]))
            for field in self.header.fields
        }
        lengths = {key: len(column) for key, column in columns.items()}
        return same_length(str(self.folder / name), lengths), columns

    def _convert(self, name: str, field: Field, given: npt.NDArray[Any]) -> npt.NDArray[Any]:
        where = f"{self.folder / name}, field '{field.name}'"
        if given.ndim == 0 or given.shape[1:] != field.shape:
            raise UserError(
                f"{where}: records have shape {given.shape[1:]}, got an array of shape {given.shape}.",
                f"Give [records, {', '.join(map(str, field.shape))}]." if field.shape else "Give [records].",
            )
        wanted = field.on_disk
        if np.can_cast(given.dtype, wanted, "same_kind" if wanted.kind == "f" else "safe"):
            return np.ascontiguousarray(given, dtype=wanted)
        if given.dtype.kind not in "iu" or wanted.kind not in "iu":
            raise UserError(
                f"{where}: {given.dtype} given, {field.dtype} declared.",
                "Convert it, or declare the other dtype.",
            )
        bounds = np.iinfo(wanted)
        if given.size and (given.min() < bounds.min or given.max() > bounds.max):
            bad = (given < bounds.min) | (given > bounds.max)
            row = int(np.flatnonzero(bad.reshape(len(given), -1).any(axis=1))[0])
            raise UserError(
                f"{where}: record {row} holds {given[bad].flat[0]}, which {field.dtype} cannot.",
                "Declare a wider dtype.",
            )
        return np.ascontiguousarray(given, dtype=wanted)


def _shard_name(number: int) -> str:
    return f"shard-{number:05d}.bin"
