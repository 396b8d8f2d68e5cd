"""Reads a store: shards are memory-mapped, a batch is gathered at once, each block's checksum is checked once."""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from portwright.data.columns import Arrays, Indices
from portwright.data.manifest import Field, Manifest, ShardInfo, read_manifest
from portwright.errors import UserError, suggest

Verify = Literal["touch", "off"]

_CALLS_PER_SCAN = 64
_DAMAGE_CURE = (
    "Fetch that file anew, or remove it and prepare the data again, which makes missing shards only; "
    "`portwright data check` lists all damage."
)


class Store:
    """The records of a store folder, as arrays by field.

    `verify="touch"` checks the checksum of a block of records when one of them is first read; processes forked from
    this one share which blocks were checked. Pickled to another process, the store is opened again there. `on_damage` is
    called for shards that are missing or cut off, which raise without it; such a store can then only be checked.
    """

    def __init__(
        self,
        folder: str | Path,
        fields: Sequence[str] | None = None,
        *,
        verify: Verify = "touch",
        on_damage: Callable[[UserError], None] | None = None,
    ) -> None:
        if verify not in get_args(Verify):
            raise UserError(f"verify is '{verify}'.", suggest(str(verify), get_args(Verify)))
        self.folder = Path(folder)
        self.manifest: Manifest = read_manifest(self.folder)
        self.verify = verify
        header = self.manifest.header
        known = {field.name: field for field in header.fields}
        self.names = tuple(known) if fields is None else tuple(fields)
        for name in self.names:
            if name not in known:
                raise UserError(f"{self.folder} has no field '{name}'.", suggest(name, known))
        self.fields: tuple[Field, ...] = tuple(known[name] for name in self.names)
        self._block_records = header.block_records
        self._shards = [shard for shard in self.manifest.shards if shard.records]
        self._starts = np.cumsum([0] + [shard.records for shard in self._shards], dtype=np.int64)
        sizes = {shard.records for shard in self._shards[:-1]}
        is_even = len(sizes) == 1 and self._shards[-1].records <= max(sizes)
        # The size of all shards but the last, where they are equal: a division then finds a record's shard.
        self._even_size = sizes.pop() if is_even else 0
        self._columns: list[Arrays] = []
        self._sums: list[dict[str, npt.NDArray[np.uint32]]] = []
        for shard in self._shards:
            try:
                columns, sums = self._open(shard)
            except UserError as error:
                if on_damage is None:
                    raise
                on_damage(error)
                columns, sums = {}, {}
            self._columns.append(columns)
            self._sums.append(sums)
        counts = [header.num_blocks(shard.records) for shard in self._shards]
        self._first_block = np.cumsum([0, *counts], dtype=np.int64)
        # In shared memory, so that forked workers do not each check every block.
        self._verified = np.frombuffer(mmap.mmap(-1, max(1, int(self._first_block[-1]))), dtype=np.bool_)
        self._all_verified = verify == "off" or not self._shards
        self._num_idle_calls = 0

    def __len__(self) -> int:
        return self.manifest.num_records

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "fields": self.names, "verify": self.verify}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def tokenizer(self) -> dict[str, Any] | None:
        return self.manifest.header.tokenizer

    def require_ids(self, name: str, vocab_size: int) -> None:
        """Raises unless every value of an integer field is below `vocab_size`."""
        field = next((each for each in self.fields if each.name == name), None)
        if field is None:
            raise UserError(f"{self.folder} has no field '{name}'.", suggest(name, self.names))
        if np.dtype(field.dtype).kind not in "iu":
            raise UserError(
                f"{self.folder}: field '{name}' is {field.dtype}, and ids are whole numbers.",
                "Prepare the data again with ids of an integer dtype.",
            )
        for number, shard in enumerate(self._shards):
            low, high = shard.lowest.get(name, 0), shard.highest.get(name, 0)
            if low >= 0 and high < vocab_size:
                continue
            record, value = self._find_id(number, name, vocab_size)
            made = (self.tokenizer or {}).get("vocab_size")
            raise UserError(
                f"{self.folder / shard.file}: record {record} has the id {value} in '{name}', and the model knows ids 0 to "
                f"{vocab_size - 1}.",
                f"Set vocab_size to {made}, that of the tokenizer which made these data, or prepare them again."
                if isinstance(made, int) and made > value
                else "Prepare the data again with the tokenizer that belongs to the model, or raise vocab_size.",
            )

    def _find_id(self, number: int, name: str, vocab_size: int) -> tuple[int, int]:
        column = self._columns[number][name]
        for start in range(0, len(column), self._block_records):
            block = column[start : start + self._block_records]
            bad = (block < 0) | (block >= vocab_size)
            if bad.any():
                row = int(np.flatnonzero(bad.reshape(len(block), -1).any(axis=1))[0])
                return start + row, int(block[bad].flat[0])
        return 0, int(self._shards[number].highest[name])  # the shard is damaged: the manifest has the id

    def gather(self, indices: Indices) -> Arrays:
        """The records with these numbers, in this order, each field stacked; the numbers must be in range."""
        if len(self._shards) == 1:
            if not self._all_verified:
                self._verify_blocks(indices // self._block_records)
            columns = self._columns[0]
            return {name: columns[name].take(indices, axis=0) for name in self.names}
        return self._gather_across(indices)

    def _gather_across(self, indices: Indices) -> Arrays:
        if not len(indices):
            return {field.name: np.empty((0, *field.shape), dtype=field.on_disk) for field in self.fields}
        if self._even_size:
            shard_of = indices // self._even_size
        else:
            shard_of = np.searchsorted(self._starts, indices, side="right") - 1
        local = indices - self._starts.take(shard_of)
        if not self._all_verified:
            self._verify_blocks(self._first_block.take(shard_of) + local // self._block_records)
        # numpy sorts 16-bit integers faster, by radix sort.
        small = shard_of.astype(np.uint16) if len(self._shards) < 65536 else shard_of
        order = small.argsort(kind="stable")
        local = local.take(order)
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        counts = np.bincount(small, minlength=len(self._shards)).tolist()
        batch: Arrays = {}
        for field in self.fields:
            together = np.empty((len(indices), *field.shape), dtype=field.on_disk)
            low = 0
            for columns, count in zip(self._columns, counts, strict=True):
                if count:
                    # mode="raise" would copy through a buffer; the numbers are in range here.
                    columns[field.name].take(local[low : low + count], 0, together[low : low + count], "clip")
                    low += count
            batch[field.name] = together.take(back, axis=0)
        return batch

    def check(self) -> Iterator[str]:
        """Checks every block of every field and yields each damage; `on_damage` got the shards that cannot be opened."""
        for number, shard in enumerate(self._shards):
            if not self._columns[number]:
                continue
            for block in range(self.manifest.header.num_blocks(shard.records)):
                try:
                    self._check_block(number, block)
                except UserError as error:
                    yield error.message

    def _verify_blocks(self, blocks: Indices) -> None:
        unseen = blocks[~self._verified[blocks]]
        for block in np.unique(unseen):
            number = int(np.searchsorted(self._first_block, block, side="right")) - 1
            self._check_block(number, int(block - self._first_block[number]))
            self._verified[block] = True
        if len(unseen) == 0:
            # Not at every call: a store of terabytes has millions of blocks.
            self._num_idle_calls += 1
            if self._num_idle_calls % _CALLS_PER_SCAN == 1:
                self._all_verified = bool(self._verified[: self._first_block[-1]].all())

    def _check_block(self, number: int, block: int) -> None:
        shard, low = self._shards[number], block * self._block_records
        high = min(low + self._block_records, shard.records)
        for field in self.fields:
            column = self._columns[number][field.name]
            found = zlib.crc32(column[low:high].reshape(-1).view(np.uint8).data)
            wanted = int(self._sums[number][field.name][block])
            if found != wanted:
                raise UserError(
                    f"{self.folder / shard.file}: records {low} to {high - 1} are damaged in '{field.name}': their "
                    f"checksum is {found:08x} and was {wanted:08x} when they were written.",
                    _DAMAGE_CURE,
                )

    def _open(self, shard: ShardInfo) -> tuple[Arrays, dict[str, npt.NDArray[np.uint32]]]:
        path, header = self.folder / shard.file, self.manifest.header
        offsets, table_at = header.place(shard.records)
        wanted = header.shard_bytes(shard.records)
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                if size != wanted or size != shard.bytes:
                    raise UserError(
                        f"{path} {_explain_size(header.fields, offsets, shard, size, wanted)}.", _DAMAGE_CURE
                    )
                mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise UserError(
                f"{path} is missing, with {shard.records} records of this store.", _DAMAGE_CURE
            ) from error
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}.", _DAMAGE_CURE) from error
        if zlib.crc32(memoryview(mapped)[table_at:]) != shard.table_crc32:
            raise UserError(f"{path}: the checksums at its end are damaged.", _DAMAGE_CURE)
        num_blocks = header.num_blocks(shard.records)
        columns, sums = {}, {}
        for place, field in enumerate(header.fields):
            if field.name not in self.names:
                continue
            count = shard.records * int(np.prod(field.shape, dtype=np.int64))
            flat = np.frombuffer(mapped, dtype=field.on_disk, count=count, offset=offsets[field.name])
            columns[field.name] = flat.reshape(shard.records, *field.shape)
            at = table_at + 4 * place * num_blocks
            sums[field.name] = np.frombuffer(mapped, dtype="<u4", count=num_blocks, offset=at)
        return columns, sums


def _explain_size(
    fields: tuple[Field, ...], offsets: dict[str, int], shard: ShardInfo, size: int, wanted: int
) -> str:
    if size > wanted:
        return f"has {size} bytes instead of {wanted}"
    for field in fields:
        end = offsets[field.name] + shard.records * field.row_bytes
        if size < end:
            record = max(0, size - offsets[field.name]) // field.row_bytes
            return f"is truncated: {size} of {wanted} bytes, it ends in record {record} of '{field.name}'"
    return f"is truncated: {size} of {wanted} bytes, it ends in its checksums"


@dataclass(frozen=True)
class StoreReport:
    """What `portwright data check` finds in a store."""

    folder: Path
    num_records: int
    num_shards: int
    num_bytes: int
    fields: tuple[Field, ...]
    tokenizer: dict[str, Any] | None
    problems: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        shown = ", ".join(f"{f.name} {f.dtype}{list(f.shape) if f.shape else ''}" for f in self.fields)
        yield f"{self.folder}: {self.num_records:,} records ({shown}) in {self.num_shards} shard{'s' * (self.num_shards != 1)}, {self.num_bytes:,} bytes"
        yield from self.problems
        yield f"{len(self.problems)} damaged" if self.problems else "every checksum is right"

    def as_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "records": self.num_records,
            "shards": self.num_shards,
            "bytes": self.num_bytes,
            "fields": [field.model_dump(mode="json") for field in self.fields],
            "tokenizer": self.tokenizer,
            "problems": list(self.problems),
        }


def check_store(folder: Path) -> StoreReport:
    """Reads and checks a whole store; raises where the manifest cannot be read."""
    damages: list[UserError] = []
    store = Store(folder, verify="off", on_damage=damages.append)
    shards = store.manifest.shards
    return StoreReport(
        folder=folder,
        num_records=len(store),
        num_shards=len(shards),
        num_bytes=sum(shard.bytes for shard in shards),
        fields=store.fields,
        tokenizer=store.tokenizer,
        problems=(*(each.message for each in damages), *store.check()),
    )
