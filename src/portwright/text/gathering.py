"""Data sets of rows: in memory, or those of a store. The one file here that imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from portwright.data.draws import Draws
from portwright.data.gather import ArrayDataset, Arrays, GatherDataset, Indices, Transform
from portwright.data.store_dataset import StoreDataset
from portwright.errors import UserError
from portwright.text.inputs import find_inputs
from portwright.text.objectives import Document, Objective
from portwright.text.prepare import PrepareOptions, units_of
from portwright.text.preparing import make_rows
from portwright.text.ready import (
    FIELDS,
    csv_columns,
    read_csv_samples,
    read_csv_tokens,
    read_hdf5,
)
from portwright.text.shipped import shipped_documents, split_held_out
from portwright.text.sources import Source, check_text_size
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
    tokenizer: Tokenizer | None,
    transform: Transform | None,
    options: Mapping[str, Any],
    vocab_size: int,
) -> GatherDataset:
    """The samples of a section. Without a tokenizer and a transform, they are ready as they lie in files."""
    dataset: GatherDataset
    if source.kind == "store":
        dataset = _store_dataset(source, objective, transform, options, vocab_size)
    elif source.kind in ("hdf5", "csv"):
        dataset = _samples_dataset(source, objective, tokenizer, transform, options, vocab_size)
    else:
        assert tokenizer is not None
        dataset = ArrayDataset(_text_rows(source, objective, tokenizer, options), transform)
    if not len(dataset):
        raise UserError(f"{source.section} has no sample: its text is too short.", "Give more text.")
    limit = options.get("num_samples")
    return dataset if limit is None or limit >= len(dataset) else FirstSamples(dataset, limit)


def _text_rows(
    source: Source, objective: Objective, tokenizer: Tokenizer, options: Mapping[str, Any]
) -> Arrays:
    if source.kind == "shipped":
        texts = split_held_out(shipped_documents(), training=source.training)
        return objective.rows([Document(text) for text in texts], tokenizer)
    check_text_size(source)
    chosen = PrepareOptions(objective, split=options.get("split"), text_key=options.get("text_key", "text"))
    parts = [
        make_rows(unit, objective, tokenizer, chosen.documents, chosen.text_key, skip_bad=False)[0]
        for unit, _ in units_of(find_inputs(source.places), chosen)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _store_dataset(
    source: Source,
    objective: Objective,
    transform: Transform | None,
    options: Mapping[str, Any],
    vocab_size: int,
) -> GatherDataset:
    dataset = StoreDataset(source.places[0], transform)
    names = {field.name for field in dataset.store.fields}
    if "tokens" not in names:
        if not set(FIELDS[objective.name]) <= names:
            raise UserError(
                f"{source.section}: '{source.places[0]}' has the fields {', '.join(sorted(names))}.",
                f"Prepare it with `portwright data prepare --objective {objective.name}`, or give "
                f"{', '.join(FIELDS[objective.name])}.",
            )
        dataset.transform = None
        dataset.store.require_ids("input_ids", vocab_size)
        return dataset
    made = dataset.store.manifest.header.made_by.get("objective")
    made = made if isinstance(made, dict) else {}
    _check_made(source, objective, made)
    if made.get("static") and made.get("max_predictions") != objective.max_predictions:
        raise UserError(
            f"{source.section}.max_predictions_per_seq is {objective.max_predictions}, and '{source.places[0]}' was "
            f"masked with {made.get('max_predictions')}.",
            f"Set it to {made.get('max_predictions')}, or prepare the store without --static.",
        )
    dataset.store.require_ids("tokens", vocab_size)
    return dataset


def _check_made(source: Source, objective: Objective, made: Mapping[str, Any]) -> None:
    folder = source.places[0]
    fits = {"masked": ("masked", "pairs")}.get(objective.name, (objective.name,))
    if made.get("name") not in fits:
        cure = f"Prepare the text with --objective {objective.name}."
        if objective.name == "pairs" and made.get("name") == "masked":
            cure += " Without pairs of sentences, set model.disable_nsp."
        raise UserError(
            f"{source.section}: '{folder}' was prepared for the objective {made.get('name')!r}, and this model learns "
            f"by {objective.name}.",
            cure,
        )
    for key in ("sequence_length", *(("noise_density", "mean_span") if objective.name == "spans" else ())):
        if made.get(key) != getattr(objective, key):
            raise UserError(
                f"{source.section}: '{folder}' was prepared with {key} {made.get(key)}, and {getattr(objective, key)} is "
                "asked for.",
                f"Set it to {made.get(key)}, or prepare the text anew.",
            )


def _samples_dataset(
    source: Source,
    objective: Objective,
    tokenizer: Tokenizer | None,
    transform: Transform | None,
    options: Mapping[str, Any],
    vocab_size: int,
) -> GatherDataset:
    if source.kind == "hdf5":
        arrays = read_hdf5(source.places, objective.name, vocab_size)
    elif "tokens" in csv_columns(source.places[0]):
        if objective.name not in ("masked", "pairs"):
            raise UserError(
                f"{source.section}: '{source.places[0]}' holds tokens to be masked.",
                f"Give text, or samples of {', '.join(FIELDS[objective.name])}.",
            )
        if tokenizer is None:
            raise UserError(
                f"{source.section}: '{source.places[0]}' holds tokens, and no tokenizer is named.",
                "Name the vocab.txt that made them.",
            )
        rows = read_csv_tokens(
            source.places,
            objective.sequence_length,
            tokenizer,
            pairs=objective.name == "pairs",
            do_lower=options.get("do_lower", True),
        )
        return ArrayDataset(rows, transform)
    else:
        arrays = read_csv_samples(source.places, objective.name, vocab_size)
    found = arrays["input_ids"].shape[1]
    if found != objective.sequence_length:
        raise UserError(
            f"{source.section}: the samples have {found} tokens, and {objective.sequence_length} are asked for.",
            f"Set the section's sequence length to {found}.",
        )
    return ArrayDataset(arrays)
