"""Words with a label each, from CoNLL files or tables; or words of the package's text: which stood in code spans?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from portwright import UserError, text
from portwright.data import ArrayDataset
from portwright.data.tables import read_text
from portwright.job.input_params import loader_arguments
from portwright.text_tasks.encoding import Encoder, make_encoder, pad_lists
from portwright.text_tasks.labels import Labels
from portwright.text_tasks.records import Record, read_records
from portwright.text_tasks.shipped_tasks import CODE_TAGS, words_in_code

CONLL = (
    ".conll",
    ".iob",
    ".bio",
    ".txt",
)  # a word a line with its label last, an empty line after a sentence
IGNORED = -100


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
        if model["num_classes"] < len(CODE_TAGS):
            raise UserError(
                f"model.num_classes is {model['num_classes']}, and words of the package's text are {', '.join(CODE_TAGS)}.",
                f"Give {section}.data_dir, or set num_classes to {len(CODE_TAGS)}.",
            )
        samples = words_in_code(section == "train_input")
    else:
        samples = list(read_samples(options, section, model))
    encoded = [encode(encoder, words, tags) for words, tags in samples[: options["num_samples"]]]
    rows = [encoder.join(ids) for ids, _ in encoded]
    # A label for [CLS], those of the tokens that there is room for; then [SEP] and padding.
    labels = [[IGNORED, *tags[: encoder.room]] for _, tags in encoded]
    return ArrayDataset(
        {**encoder.stack(rows), "labels": pad_lists(labels, encoder.length, IGNORED, np.int32)}
    )


def encode(encoder: Encoder, words: list[str], tags: list[int]) -> tuple[list[int], list[int]]:
    """Tokens and their labels: the first token of a word has the word's, the others do not count."""
    ids: list[int] = []
    labels: list[int] = []
    for pieces, tag in zip(encoder.encode_words(words), tags, strict=True):
        ids += pieces
        labels += [tag, *[IGNORED] * (len(pieces) - 1)]
    return ids, labels


def read_samples(
    options: Mapping[str, Any], section: str, model: Mapping[str, Any]
) -> Iterator[tuple[list[str], list[int]]]:
    known = Labels(model["num_classes"], model["label_names"], "num_classes")
    keys = options["tokens_key"], options["labels_key"]
    readers = dict.fromkeys(CONLL, partial(read_conll, keys=keys))
    for record in read_records(options["data_dir"], section, "sentence", readers):
        words, tags = (record.items(key) for key in keys)
        if len(words) != len(tags):
            raise UserError(
                f"{record.place} has {len(words)} words and {len(tags)} labels.", "Give one each."
            )
        if words:
            yield [str(word) for word in words], [known.number(tag, record.place) for tag in tags]


def read_conll(file: Path, keys: tuple[str, str]) -> Iterator[Record]:
    """Sentences of a file with a word a line: the first column is the word, the last its label."""
    words: list[str] = []
    tags: list[str] = []
    first = 1
    for number, line in enumerate([*read_text(file).split("\n"), ""], start=1):
        columns = line.split()
        if columns and columns[0] != "-DOCSTART-":
            if len(columns) < 2:
                raise UserError(
                    f"{file} line {number} is {line.strip()!r}.", "A line is a word and its label."
                )
            first = number if not words else first
            words.append(columns[0])
            tags.append(columns[-1])
        elif words:
            yield Record(f"{file} line {first}", dict(zip(keys, (words, tags), strict=True)))
            words, tags = [], []
