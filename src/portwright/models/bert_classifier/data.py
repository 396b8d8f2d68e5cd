"""Texts or pairs of texts with a label, from tables; or lines of the package's text: are they prose, code or table?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from portwright import UserError, text
from portwright.data import ArrayDataset
from portwright.job.input_params import loader_arguments
from portwright.text_tasks.encoding import make_encoder
from portwright.text_tasks.labels import Labels, as_number
from portwright.text_tasks.records import Record, read_records
from portwright.text_tasks.shipped_tasks import KINDS, lines_by_kind


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
        texts, pairs, labels = read_lines(model, section)
    else:
        texts, pairs, labels = read_samples(options, section, model)
    chosen = slice(options["num_samples"])
    firsts = encoder.tokenizer.encode_batch(texts[chosen])
    seconds = encoder.tokenizer.encode_batch(pairs[chosen]) if pairs else [None] * len(firsts)
    rows = [encoder.join(first, second) for first, second in zip(firsts, seconds, strict=True)]
    return ArrayDataset({**encoder.stack(rows), "labels": np.asarray(labels[chosen])})


def read_lines(model: Mapping[str, Any], section: str) -> tuple[list[str], list[str], list[Any]]:
    if problem_of(model) != "single_label_classification" or model["num_labels"] < len(KINDS):
        raise UserError(
            f"model.num_labels is {model['num_labels']} and problem_type {model['problem_type']!r}, and the text of the package "
            f"is classified into {len(KINDS)}: {', '.join(KINDS)}.",
            f"Give {section}.data_dir, or set num_labels to {len(KINDS)}.",
        )
    samples = lines_by_kind(section == "train_input")
    return [text for text, _ in samples], [], [np.int32(kind) for _, kind in samples]


def read_samples(
    options: Mapping[str, Any], section: str, model: Mapping[str, Any]
) -> tuple[list[str], list[str], list[Any]]:
    """Texts, their second parts if there are any, and labels as the loss takes them."""
    records = read_records(options["data_dir"], section)
    texts = [record.text(options["text_key"]) for record in records]
    pair_key = options["text_pair_key"]
    pairs = [record.text(pair_key) for record in records] if pair_key else []
    problem = problem_of(model)
    known = Labels(model["num_labels"], model["label_names"], "num_labels")
    return texts, pairs, [read_label(record, options["label_key"], problem, known) for record in records]


def read_label(record: Record, key: str, problem: str, known: Labels) -> Any:
    if problem == "single_label_classification":
        return np.int32(known.number(record.get(key), record.place))
    if problem == "regression" and known.count == 1:
        return np.float32(as_number(record.get(key), record.place))
    if problem == "regression":
        numbers = [as_number(each, record.place) for each in record.items(key)]
        if len(numbers) != known.count:
            raise UserError(
                f"{record.place} has {len(numbers)} numbers.", f"model.num_labels is {known.count}."
            )
        return np.asarray(numbers, np.float32)
    held = np.zeros(known.count, np.float32)
    for each in record.items(key):
        held[known.number(each, record.place)] = 1.0
    return held


def problem_of(model: Mapping[str, Any]) -> str:
    return model["problem_type"] or (
        "single_label_classification" if model["num_labels"] > 1 else "regression"
    )
