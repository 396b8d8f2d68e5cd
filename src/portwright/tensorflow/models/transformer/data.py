"""Sentence pairs in two languages: your own text files, or numbers in English and German words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from portwright import UserError
from portwright.data.tables import read_text
from portwright.tensorflow.models_common.pipeline import Arrays, dataset_of_arrays, split_labels
from portwright.tensorflow.models_common.text_examples import HELD_OUT, pad
from portwright.text.pairs import read_parallel
from portwright.text.shipped import number_pairs

SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")
FILES = ("src_data_dir", "tgt_data_dir", "src_vocab_file", "tgt_vocab_file")


def train_input_fn(params: dict[str, Any], input_context: Any = None) -> tf.data.Dataset:
    return make_dataset(params, "train_input", input_context)


def eval_input_fn(params: dict[str, Any], input_context: Any = None) -> tf.data.Dataset:
    return make_dataset(params, "eval_input", input_context)


def make_dataset(params: dict[str, Any], section: str, input_context: Any) -> tf.data.Dataset:
    """Batches of ({encoder_input_ids, encoder_mask, decoder_input_ids, decoder_mask}, labels); masks are 1 for a token."""
    options = params[section]
    sources, targets, source_words, target_words = read_pairs(params, section)
    room = params["model"]["src_vocab_size"], params["model"]["tgt_vocab_size"]
    for name, words, size in zip(("src", "tgt"), (source_words, target_words), room, strict=True):
        if len(words) > size:
            raise UserError(
                f"The vocabulary has {len(words)} tokens and model.{name}_vocab_size is {size}.",
                f"Set model.{name}_vocab_size to at least {len(words)}.",
            )
    arrays = to_arrays(sources, targets, source_words, target_words, options)
    return dataset_of_arrays(arrays, options, section == "train_input", split_labels, input_context)


def read_pairs(
    params: dict[str, Any], section: str
) -> tuple[list[str], list[str], dict[str, int], dict[str, int]]:
    """Reads the sentences and the vocabularies of both languages."""
    options = params[section]
    given = [name for name in FILES if options[name] is not None]
    if not given:
        if section == "eval_input" and params["train_input"]["src_data_dir"] is not None:
            raise UserError(
                "eval_input has no src_data_dir, and train_input has one.",
                "Name the files for evaluation too.",
            )
        sources, targets = number_pairs(options["num_samples"] * HELD_OUT // (HELD_OUT - 1))
        chosen = [(i % HELD_OUT == 0) == (section == "eval_input") for i in range(len(sources))]
        words = [number_words(sentences) for sentences in (sources, targets)]
        pairs = [
            pair for pair, taken in zip(zip(sources, targets, strict=True), chosen, strict=True) if taken
        ]
        return [source for source, _ in pairs], [target for _, target in pairs], words[0], words[1]
    if len(given) < len(FILES):
        missing = [name for name in FILES if name not in given]
        raise UserError(
            f"{section} has {', '.join(given)} but not {', '.join(missing)}.",
            "Give all four, or none of them.",
        )
    sources, targets = read_parallel(options["src_data_dir"], options["tgt_data_dir"])
    return sources, targets, read_words(options["src_vocab_file"]), read_words(options["tgt_vocab_file"])


def number_words(sentences: list[str]) -> dict[str, int]:
    words = sorted({word for sentence in sentences for word in sentence.split()})
    return {word: number for number, word in enumerate([*SPECIAL_TOKENS, *words])}


def read_words(path: str) -> dict[str, int]:
    words = {
        line.split()[0]: number
        for number, line in enumerate(read_text(Path(path)).splitlines())
        if line.strip()
    }
    missing = [token for token in SPECIAL_TOKENS if token not in words]
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}.", "Add them, each on a line of its own.")
    return words


def to_arrays(
    sources: list[str],
    targets: list[str],
    source_words: dict[str, int],
    target_words: dict[str, int],
    options: dict[str, Any],
) -> Arrays:
    """Pairs as arrays of token numbers, without those that are empty or longer than a sample."""
    encoder, decoder, labels = [], [], []
    for source, target in zip(sources, targets, strict=True):
        source_ids = [source_words.get(word, source_words["<unk>"]) for word in source.split()]
        target_ids = [target_words.get(word, target_words["<unk>"]) for word in target.split()]
        fits = (
            0 < len(source_ids) <= options["src_max_sequence_length"]
            and 0 < len(target_ids) < options["tgt_max_sequence_length"]
        )
        if fits:
            encoder.append(source_ids)
            decoder.append([target_words["<s>"], *target_ids])
            labels.append([*target_ids, target_words["</s>"]])
    encoder_ids, encoder_mask = pad(encoder, options["src_max_sequence_length"], source_words["<pad>"])
    decoder_ids, decoder_mask = pad(decoder, options["tgt_max_sequence_length"], target_words["<pad>"])
    label_ids, _ = pad(labels, options["tgt_max_sequence_length"], target_words["<pad>"])
    return {
        "encoder_input_ids": encoder_ids,
        "encoder_mask": encoder_mask,
        "decoder_input_ids": decoder_ids,
        "decoder_mask": decoder_mask,
        "labels": label_ids,
    }
