"""Documents whose sentences are marked as of the summary or not; or sections of the package's text, whose paragraphs'
opening sentences are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from portwright import UserError, text
from portwright.data import ArrayDataset
from portwright.job.input_params import loader_arguments
from portwright.text_tasks.encoding import Encoder, make_encoder, pad_lists
from portwright.text_tasks.labels import Labels
from portwright.text_tasks.records import read_records
from portwright.text_tasks.shipped_tasks import opening_sentences


def get_train_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params, "train_input")


def get_eval_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params, "eval_input")


def make_dataloader(params: dict[str, Any], section: str) -> DataLoader[Any]:
    return DataLoader(make_dataset(params, section), **loader_arguments(params[section], section))


def make_dataset(params: dict[str, Any], section: str) -> ArrayDataset:
    options, model = text.section_options(params, section), params["model"]
    encoder = make_encoder(options, section, model)
    if options["data_dir"] is None:
        documents = opening_sentences(section == "train_input")
    else:
        documents = list(read_documents(options, section))
    rows: list[tuple[list[int], list[int]]] = []
    indices: list[list[int]] = []
    labels: list[list[int]] = []
    for sentences, marks in documents[: options["num_samples"]]:
        for row, places, kept in encode(encoder, sentences, marks, options["max_cls_tokens"]):
            rows.append(row)
            indices.append(places)
            labels.append(kept)
    width = options["max_cls_tokens"]
    return ArrayDataset(
        {
            **encoder.stack(rows),
            "cls_indices": pad_lists(indices, width, 0, np.int32),
            "cls_weights": pad_lists([[1.0] * len(each) for each in indices], width, 0.0, np.float32),
            "labels": pad_lists(labels, width, 0, np.int32),
        }
    )


def encode(
    encoder: Encoder, sentences: Sequence[str], marks: Sequence[int], most: int
) -> Iterator[tuple[tuple[list[int], list[int]], list[int], list[int]]]:
    """Rows of `[CLS] sentence [SEP]` one after another, segments taking turns; what does not fit makes another row."""
    ids: list[int] = []
    types: list[int] = []
    places: list[int] = []
    kept: list[int] = []
    for tokens, mark in zip(encoder.tokenizer.encode_batch(list(sentences)), marks, strict=True):
        piece = [encoder.cls_id, *tokens.tolist()[: encoder.room], encoder.sep_id]
        if places and (len(ids) + len(piece) > encoder.length or len(places) == most):
            yield (ids, types), places, kept
            ids, types, places, kept = [], [], [], []
        types += [len(places) % min(2, encoder.segments)] * len(piece)
        places.append(len(ids))
        kept.append(mark)
        ids += piece
    if places:
        yield (ids, types), places, kept


def read_documents(options: Mapping[str, Any], section: str) -> Iterator[tuple[list[str], list[int]]]:
    known = Labels(2, None, "labels")
    for record in read_records(options["data_dir"], section):
        sentences, marks = record.items(options["sentences_key"]), record.items(options["labels_key"])
        if not sentences or len(sentences) != len(marks):
            raise UserError(
                f"{record.place} has {len(sentences)} sentences and {len(marks)} labels.",
                "Give one label each.",
            )
        yield [str(each) for each in sentences], [known.number(mark, record.place) for mark in marks]
