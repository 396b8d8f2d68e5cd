"""A store as a data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from portwright.data.draws import Draws
from portwright.data.gather import Arrays, GatherDataset, Indices, Transform
from portwright.data.store import Store, Verify


class StoreDataset(GatherDataset):
    """The records of a store that `portwright data prepare` or a StoreWriter made.

    `fields` names those to read (all without); `vocab_size` has the ids in `ids_field` checked against it at once
    (left out: `input_ids`, or `tokens` as `portwright data prepare` writes them).
    """

    def __init__(
        self,
        folder: str | Path,
        transform: Transform | None = None,
        fields: Sequence[str] | None = None,
        *,
        verify: Verify = "touch",
        vocab_size: int | None = None,
        ids_field: str | None = None,
    ) -> None:
        self.store = Store(folder, fields, verify=verify)
        self.transform = transform
        if vocab_size is not None:
            names = self.store.names
            usual = "tokens" if "tokens" in names and "input_ids" not in names else "input_ids"
            self.store.require_ids(ids_field or usual, vocab_size)

    def __len__(self) -> int:
        return len(self.store)

    def gather(self, indices: Indices, draws: Draws | None = None) -> Arrays:
        batch = self.store.gather(indices)
        if self.transform is None:
            return batch
        return self.transform(batch, Draws(self.seed, self.epoch, indices) if draws is None else draws)
