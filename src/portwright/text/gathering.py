"""Data sets of rows: in memory, or those of a store. The one file here that imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portwright.data.draws import Draws
from portwright.data.gather import ArrayDataset, Arrays, GatherDataset, Indices, Transform
from portwright.data.store_dataset import StoreDataset
from portwright.errors import UserError
from portwright.text.objectives import Document, Objective
from portwright.text.shipped import shipped_documents, split_held_out
from portwright.text.sources import Source
from portwright.text.tokenizer import Tokenizer


class FirstSamples(GatherDataset):
    """The first samples of another data set."""

    def __init__(self, dataset: GatherDataset, num_samples: int) -> None:
        self.dataset, self._length = dataset, min(num_samples, len(dataset))

    def __len__(self) -> int:
        return self._length

    def gather(self, indices: Indices, draws: Draws | None = None) -> Arrays:
        return self.dataset.gather(indices, Draws(self.seed, self.epoch, indices) if draws is None else draws)


def make_dataset(
    source: Source,
    objective: Objective,
    tokenizer: Tokenizer,
    transform: Transform,
    options: Mapping[str, Any],
) -> GatherDataset:
    """The rows of a section's text, each batch made by `transform`."""
    dataset: GatherDataset
    if source.kind == "store":
        dataset = StoreDataset(source.places[0], transform)
    else:
        texts = split_held_out(shipped_documents(), training=source.training)
        rows = objective.rows([Document(text) for text in texts], tokenizer)
        dataset = ArrayDataset(rows, transform)
    if not len(dataset):
        raise UserError(f"{source.section} has no sample.", "Give more text.")
    limit = options.get("num_samples")
    return dataset if limit is None or limit >= len(dataset) else FirstSamples(dataset, limit)
