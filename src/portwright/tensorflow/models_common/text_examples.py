"""Makes samples of fixed length from documents, as arrays."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from portwright.data.tables import read_text
from portwright.errors import UserError
from portwright.tensorflow.models_common.pipeline import Arrays, folders_of
from portwright.tensorflow.models_common.vocabulary import END, PAD, START, Vocabulary
from portwright.text.packing import pad_rows

Document = list[str]  # its sentences

_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z\"*])")
_HAS_WORD = re.compile(r"[A-Za-z]{2}")


def python_documentation() -> list[Document]:
    """About 100,000 words in some 80 documents; the text is that of the running Python."""
    from pydoc_data import topics

    documents = [split_sentences(text) for _, text in sorted(topics.topics.items())]
    return [document for document in documents if document]


def read_text_files(folders: list[str]) -> list[Document]:
    """Reads the *.txt files of folders (UTF-8): each line is a sentence or paragraph, an empty line separates documents."""
    documents: list[Document] = []
    files = [path for folder in folders for path in sorted(Path(folder).glob("*.txt"))]
    if not files:
        raise UserError(
            f"data_dir {', '.join(repr(folder) for folder in folders)} has neither *.tfrecord* nor *.txt files.",
            "Name a folder that has some, or leave data_dir out to use Python's documentation.",
        )
    for path in files:
        for block in re.split(r"\n\s*\n", read_text(path)):
            sentences = [line.strip() for line in block.splitlines() if line.strip()]
            if sentences:
                documents.append(sentences)
    if not documents:
        raise UserError(f"The *.txt files in {', '.join(folders)} have no text.", "Give files with text.")
    return documents


def split_sentences(text: str) -> Document:
    """Splits text into sentences; underlines and other lines without a word are left out."""
    lines = [line for line in text.splitlines() if not line.strip() or _HAS_WORD.search(line)]
    sentences = []
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines)):
        sentences += [
            " ".join(part.split()) for part in _SENTENCE_END.split(paragraph) if _HAS_WORD.search(part)
        ]
    return sentences


MakeSamples = Callable[[Sequence[Document], Vocabulary, int], Arrays]

HELD_OUT = 10  # of generated samples, every tenth is for evaluation


def load_documents(params: Mapping[str, Any], section: str) -> list[Document]:
    """The *.txt files of the section's data_dir, or Python's documentation."""
    data_dir = params[section]["data_dir"]
    if data_dir is None and params["train_input"]["data_dir"] is not None:
        raise UserError(
            f"{section} has no data_dir, and train_input has one.",
            f"Name the folder for evaluation too: {section}.data_dir.",
        )
    return python_documentation() if data_dir is None else read_text_files(folders_of(data_dir))


def load_vocabulary(params: Mapping[str, Any], size: int) -> Vocabulary:
    """The vocabulary of vocab_file, or one of at most `size` tokens from the training text, also for evaluation."""
    options = params["train_input"]
    pad_id = params["model"].get("pad_token_id", 0)
    if options["vocab_file"] is None:
        if options["data_dir"] is None:
            return _documentation_vocabulary(size, options["do_lower"], pad_id)
        return _learn(load_documents(params, "train_input"), size, options["do_lower"], pad_id)
    vocabulary = Vocabulary.read(options["vocab_file"], lower_case=options["do_lower"])
    if len(vocabulary) > size:
        raise UserError(
            f"vocab_file has {len(vocabulary)} tokens, and the model has room for {size}.",
            f"Set model.vocab_size to at least {len(vocabulary)}.",
        )
    if "pad_token_id" in params["model"] and vocabulary.ids[PAD] != pad_id:
        raise UserError(
            f"model.pad_token_id is {pad_id}, and {PAD} of vocab_file is {vocabulary.ids[PAD]}.",
            f"Set model.pad_token_id to {vocabulary.ids[PAD]}.",
        )
    return vocabulary


@cache
def _documentation_vocabulary(size: int, lower_case: bool, pad_id: int) -> Vocabulary:
    return _learn(python_documentation(), size, lower_case, pad_id)


def _learn(documents: Sequence[Document], size: int, lower_case: bool, pad_id: int) -> Vocabulary:
    texts = (sentence for document in documents for sentence in document)
    return Vocabulary.learn(texts, size, lower_case=lower_case, pad_id=pad_id)


def text_samples(
    params: Mapping[str, Any], section: str, make: MakeSamples, vocab_size: int, length: int
) -> tuple[Arrays, Vocabulary]:
    """The samples that `make` makes from a section's text, for training or for evaluation; and the vocabulary."""
    vocabulary = load_vocabulary(params, vocab_size)
    documents = load_documents(params, section)
    if params[section]["data_dir"] is None and params["train_input"]["vocab_file"] is None:
        arrays = _documentation_samples(make, vocabulary, length)
    else:
        arrays = make(documents, vocabulary, length)
    return take_split(arrays, params, section), vocabulary


@cache  # called repeatedly by training, evaluation and tests
def _documentation_samples(make: MakeSamples, vocabulary: Vocabulary, length: int) -> Arrays:
    return make(python_documentation(), vocabulary, length)


def take_split(arrays: Arrays, params: Mapping[str, Any], section: str) -> Arrays:
    """At most num_samples of the samples; of those of Python's documentation, only the ones for training or evaluation."""
    options = params[section]
    if options["data_dir"] is None:
        held_out = np.arange(len(next(iter(arrays.values())))) % HELD_OUT == 0
        chosen = held_out if section == "eval_input" else ~held_out
        arrays = {name: array[chosen] for name, array in arrays.items()}
    limit = options.get("num_samples")
    return {name: array[:limit] for name, array in arrays.items()}


def pack_sequences(documents: Sequence[Document], vocabulary: Vocabulary, length: int) -> Arrays:
    """Cuts the text, with the end token after each document, into pieces of `length`; labels are the next tokens."""
    stream: list[int] = []
    for document in documents:
        for sentence in document:
            stream += vocabulary.encode(sentence)
        stream.append(vocabulary.ids[END])
    num_samples = (len(stream) - 1) // length
    if num_samples < 1:
        raise UserError(
            f"The text has {len(stream)} tokens, fewer than a sample of {length}.", "Give more text."
        )
    tokens = np.asarray(stream[: num_samples * length + 1], np.int32)
    inputs = tokens[:-1].reshape(num_samples, length)
    return {
        "input_ids": inputs,
        "input_mask": np.ones_like(inputs),
        "labels": tokens[1:].reshape(num_samples, length),
    }


def single_segments(documents: Sequence[Document], vocabulary: Vocabulary, length: int) -> Arrays:
    """Sentences of a document, as many as fit, between the start and the end token; padded at the end."""
    samples = [
        [vocabulary.ids[START], *piece, vocabulary.ids[END]]
        for document in documents
        for piece in _fill(document, vocabulary, length - 2)
    ]
    input_ids, input_mask = pad(samples, length, vocabulary.ids[PAD])
    return {"input_ids": input_ids, "input_mask": input_mask}


def sentence_pairs(
    documents: Sequence[Document], vocabulary: Vocabulary, length: int, seed: int = 1
) -> Arrays:
    """Two pieces of text, the second of which follows the first (label 0) or comes from elsewhere (label 1)."""
    random = np.random.default_rng(seed)
    halves = [list(_fill(document, vocabulary, (length - 3) // 2)) for document in documents]
    halves = [pieces for pieces in halves if len(pieces) > 1]
    if len(halves) < 2:
        raise UserError(
            f"Pairs need two documents of two pieces of text; there are {len(halves)}.",
            "Give more text, documents apart by an empty line, or set model.disable_nsp.",
        )
    start, end = vocabulary.ids[START], vocabulary.ids[END]
    samples, first_lengths, labels = [], [], []
    for number, pieces in enumerate(halves):
        for first, following in pairwise(pieces):
            elsewhere = bool(random.random() < 0.5)
            if elsewhere:
                other = halves[(number + 1 + int(random.integers(len(halves) - 1))) % len(halves)]
                following = other[int(random.integers(len(other)))]
            samples.append([start, *first, end, *following, end])
            first_lengths.append(len(first) + 2)
            labels.append(int(elsewhere))
    input_ids, input_mask = pad(samples, length, vocabulary.ids[PAD])
    after_first = np.arange(length) >= np.asarray(first_lengths)[:, None]
    return {
        "input_ids": input_ids,
        "input_mask": input_mask,
        "segment_ids": (after_first & (input_mask == 1)).astype(np.int32),
        "next_sentence_labels": np.asarray(labels, np.int32),
    }


def pad(samples: Sequence[Sequence[int]], length: int, pad_id: int) -> tuple[Any, Any]:
    """Pads samples to one length; the second array is 1 for tokens and 0 for padding."""
    rows = pad_rows(samples, length, pad_id)
    return rows["tokens"], (np.arange(length) < rows["length"][:, None]).astype(np.int32)


def _fill(document: Document, vocabulary: Vocabulary, length: int) -> list[list[int]]:
    """Joins whole sentences to texts of at most `length` tokens; a longer sentence is cut."""
    if length < 1:
        raise UserError(
            f"max_sequence_length leaves {length} tokens for text.", "Take a longer max_sequence_length."
        )
    pieces: list[list[int]] = []
    current: list[int] = []
    for sentence in document:
        tokens = vocabulary.encode(sentence)[:length]
        if current and len(current) + len(tokens) > length:
            pieces.append(current)
            current = []
        current = current + tokens
    return [*pieces, current] if current else pieces


NOISE_FRACTION = 0.15
MEAN_SPAN_LENGTH = 3


def lengths_after(raw_length: int) -> tuple[int, int]:
    """The lengths of input and target, with their end tokens, for a text of `raw_length` tokens."""
    num_noise, num_spans = noise_of(raw_length)
    return raw_length - num_noise + num_spans + 1, num_noise + num_spans + 1


def raw_length_for(input_length: int) -> int:
    """The longest text whose corrupted form has no more than `input_length` tokens."""
    raw_length = input_length
    while lengths_after(raw_length + 1)[0] <= input_length:
        raw_length += 1
    while raw_length > 1 and lengths_after(raw_length)[0] > input_length:
        raw_length -= 1
    return raw_length


def corrupt(
    tokens: Sequence[int], sentinels: Sequence[int], end_id: int, random: Random
) -> tuple[list[int], list[int]]:
    """Returns the text with spans replaced by sentinels, and the spans, each after its sentinel; both end in `end_id`."""
    num_noise, num_spans = noise_of(len(tokens))
    if len(sentinels) < num_spans:
        raise ValueError(f"{num_spans} spans and {len(sentinels)} sentinels")
    kept = _random_parts(len(tokens) - num_noise, num_spans, random)
    noise = _random_parts(num_noise, num_spans, random)
    source: list[int] = []
    target: list[int] = []
    place = 0
    for sentinel, num_kept, num_gone in zip(sentinels, kept, noise, strict=False):
        source += [*tokens[place : place + num_kept], sentinel]
        target += [sentinel, *tokens[place + num_kept : place + num_kept + num_gone]]
        place += num_kept + num_gone
    return [*source, end_id], [*target, end_id]


def noise_of(length: int) -> tuple[int, int]:
    """The number of tokens to remove from a text of `length`, and the number of spans that they form."""
    num_noise = min(max(1, round(length * NOISE_FRACTION)), max(1, length - 1))
    num_spans = max(1, min(round(num_noise / MEAN_SPAN_LENGTH), length - num_noise))
    return num_noise, num_spans


def _random_parts(total: int, num_parts: int, random: Random) -> list[int]:
    """`num_parts` sizes of at least 1 that add up to `total`."""
    cuts = [0, *sorted(random.sample(range(1, total), num_parts - 1)), total]
    return [after - before for before, after in pairwise(cuts)]
