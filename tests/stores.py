"""Stores for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from portwright.data.manifest import Field, Manifest
from portwright.data.store_writer import StoreWriter


def write_store(
    folder: str | Path,
    arrays: Mapping[str, npt.NDArray[Any]],
    *,
    made_by: Mapping[str, Any],
    tokenizer: Mapping[str, Any] | None = None,
    shard_records: int | None = None,
) -> Manifest:
    """Writes arrays that fit in memory as a store, in shards of `shard_records` (all in one without)."""
    fields = [Field(name, array.dtype.name, array.shape[1:]) for name, array in arrays.items()]
    writer = StoreWriter(folder, fields, made_by=made_by, tokenizer=tokenizer)
    total = max((len(array) for array in arrays.values()), default=0)
    step = shard_records or max(total, 1)
    starts = range(0, max(total, 1), step)
    for number, start in enumerate(starts):
        writer.write_shard(number, {name: array[start : start + step] for name, array in arrays.items()})
    return writer.finish(len(starts))
