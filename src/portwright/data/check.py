"""What `portwright data check` finds in a store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.data.manifest import Field
from portwright.data.store import Store
from portwright.errors import UserError


@dataclass(frozen=True)
class StoreReport:
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
    """Reads all of a store; a manifest that cannot be read is raised."""
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
