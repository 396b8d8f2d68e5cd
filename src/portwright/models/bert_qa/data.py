"""Questions with a text that answers them, from SQuAD's JSON or tables; or questions on the package's own rules."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from portwright import UserError, text
from portwright.data import ArrayDataset
from portwright.data.tables import read_text
from portwright.job.input_params import loader_arguments
from portwright.text_tasks.encoding import Encoder, make_encoder
from portwright.text_tasks.records import Record, read_records
from portwright.text_tasks.shipped_tasks import questions_on_rules

Sample = tuple[str, str, str, int]  # question, context, answer, where it starts; no answer is ""


def get_train_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params, "train_input")


def get_eval_dataloader(params: dict[str, Any]) -> DataLoader[Any]:
    return make_dataloader(params, "eval_input")


def make_dataloader(params: dict[str, Any], section: str) -> DataLoader[Any]:
    return DataLoader(make_dataset(params, section), **loader_arguments(params[section], section))


def make_dataset(params: dict[str, Any], section: str) -> ArrayDataset:
    options, model = text.section_options(params, section), params["model"]
    encoder = make_encoder(options, section, model)
    samples: Sequence[Sample]
    if options["data_dir"] is None:
        samples = [tuple(each) for each in questions_on_rules(section == "train_input")]
    else:
        records = read_records(options["data_dir"], section, "question", {".json": read_squad})
        samples = [read_sample(record) for record in records]
    rows: list[tuple[list[int], list[int]]] = []
    spans: list[tuple[int, int]] = []
    for sample in samples[: options["num_samples"]]:
        for row, span in encode(encoder, sample, options, section):
            rows.append(row)
            spans.append(span)
    places = np.asarray(spans, np.int32)
    return ArrayDataset(
        {**encoder.stack(rows), "start_positions": places[:, 0].copy(), "end_positions": places[:, 1].copy()}
    )


def encode(
    encoder: Encoder, sample: Sample, options: Mapping[str, Any], section: str
) -> Iterator[tuple[tuple[list[int], list[int]], tuple[int, int]]]:
    """Windows of a text with the question before each; where one lacks the answer, both ends are [CLS]."""
    question, context, answer, start = sample
    asked = encoder.tokenizer.encode(question).tolist()[: options["max_query_length"]]
    ids, offsets = encoder.encode_with_places(context)
    room = encoder.room - len(asked) - encoder.num_between
    if room < 1:
        raise UserError(
            f"{section}: a question of {len(asked)} tokens leaves no room for text in {encoder.length}.",
            "Set a larger max_sequence_length or a smaller max_query_length.",
        )
    end = start + len(answer)
    inside = [place for place, (a, b) in enumerate(offsets) if a < end and b > start] if answer else []
    before = 1 + len(asked) + encoder.num_between  # [CLS], question, [SEP]
    for first in range(0, max(len(ids), 1), min(options["doc_stride"], room)):
        window = ids[first : first + room]
        held = bool(inside) and first <= inside[0] and inside[-1] < first + len(window)
        span = (before + inside[0] - first, before + inside[-1] - first) if held else (0, 0)
        yield encoder.join(asked, window), span
        if first + room >= len(ids):
            break


def read_sample(record: Record) -> Sample:
    """A record with `answers` as HuggingFace has them (lists of text and answer_start), or answer and answer_start."""
    question, context = record.text("question"), record.text("context")
    answers = record.mapping("answers") if record.values.get("answers") else record.values
    several = "text" in answers or "answers" in record.values
    texts, starts = answers.get("text" if several else "answer"), answers.get("answer_start")
    answer, first = (each[0] if isinstance(each, list) and each else each for each in (texts, starts))
    if not answer:
        return question, context, "", 0
    answer = str(answer)
    try:
        start = int(first) if first is not None else 0
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{record.place}: answer_start is {first!r}.", "Give the place of its first letter."
        ) from error
    if context[start : start + len(answer)] != answer:
        start = context.find(answer)
    if start < 0:
        raise UserError(
            f"{record.place}: the answer {answer[:60]!r} is not in its context.",
            "Answers are words of the context.",
        )
    return question, context, answer, start


def read_squad(file: Path) -> Iterator[Record]:
    """SQuAD 1.1 and 2.0: data, paragraphs, qas."""
    try:
        content = json.loads(read_text(file))
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                for asked in paragraph["qas"]:
                    first = (asked.get("answers") or [{"text": "", "answer_start": 0}])[0]
                    values = {"question": asked["question"], "context": paragraph["context"]}
                    values |= {"answer": first["text"], "answer_start": first["answer_start"]}
                    yield Record(f"{file} question {asked.get('id', '?')}", values)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{file} is no JSON: {error.msg} at line {error.lineno}.", "It may be cut off."
        ) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{file} is no SQuAD file: {type(error).__name__} {error}.",
            "It has data, paragraphs, context and qas.",
        ) from error
