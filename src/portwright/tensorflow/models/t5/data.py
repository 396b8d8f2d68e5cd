"""Text with spans removed, which the model must predict."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import tensorflow as tf

from portwright import UserError
from portwright.tensorflow.models_common.pipeline import (
    Arrays,
    dataset_of_arrays,
    dataset_of_records,
    has_records,
    split_labels,
)
from portwright.tensorflow.models_common.text_examples import (
    corrupt,
    lengths_after,
    noise_of,
    pack_sequences,
    pad,
    raw_length_for,
    text_samples,
)
from portwright.tensorflow.models_common.vocabulary import END, PAD


def train_input_fn(params: dict[str, Any], input_context: Any = None) -> tf.data.Dataset:
    return make_dataset(params, "train_input", input_context)


def eval_input_fn(params: dict[str, Any], input_context: Any = None) -> tf.data.Dataset:
    return make_dataset(params, "eval_input", input_context)


def make_dataset(params: dict[str, Any], section: str, input_context: Any) -> tf.data.Dataset:
    options = params[section]
    training = section == "train_input"
    if options["data_dir"] is not None and has_records(options["data_dir"]):
        source = tf.io.FixedLenFeature([options["src_max_sequence_length"]], tf.int64)
        target = tf.io.FixedLenFeature([options["tgt_max_sequence_length"]], tf.int64)
        spec = {
            "encoder_input_ids": source,
            "encoder_mask": source,
            "decoder_input_ids": target,
            "decoder_mask": target,
            "labels": target,
        }
        return dataset_of_records(options, training, spec, split_labels, input_context)
    return dataset_of_arrays(corrupted_text(params, section), options, training, split_labels, input_context)


def corrupted_text(params: dict[str, Any], section: str) -> Arrays:
    """Each piece of text `corruptions` times, each time with other spans removed."""
    options, num_sentinels = params[section], params["train_input"]["extra_ids"]
    vocab_size = params["model"]["vocab_size"]
    raw_length = raw_length_for(options["src_max_sequence_length"])
    _, target_length = lengths_after(raw_length)
    if target_length > options["tgt_max_sequence_length"]:
        raise UserError(
            f"{section}.tgt_max_sequence_length is {options['tgt_max_sequence_length']}, and targets of "
            f"src_max_sequence_length {options['src_max_sequence_length']} have {target_length} tokens.",
            f"Set tgt_max_sequence_length to at least {target_length}.",
        )
    num_spans = noise_of(raw_length)[1]
    if num_sentinels < num_spans or num_sentinels >= vocab_size:
        raise UserError(
            f"train_input.extra_ids is {num_sentinels} of {vocab_size} tokens, and a sample has {num_spans} spans.",
            f"Set extra_ids to at least {num_spans}, and fewer than model.vocab_size.",
        )
    packed, vocabulary = text_samples(params, section, pack_sequences, vocab_size - num_sentinels, raw_length)
    sentinels = range(vocab_size - 1, vocab_size - 1 - num_sentinels, -1)  # from the top down, as T5 has them
    texts = packed["input_ids"]
    random = Random(params.get("runconfig", {}).get("seed") or 1)
    end_id, pad_id = vocabulary.ids[END], vocabulary.ids[PAD]
    pairs = [
        corrupt(text.tolist(), sentinels, end_id, random)
        for _ in range(options["corruptions"])
        for text in texts
    ]
    encoder_ids, encoder_mask = pad(
        [source for source, _ in pairs], options["src_max_sequence_length"], pad_id
    )
    labels, decoder_mask = pad([target for _, target in pairs], options["tgt_max_sequence_length"], pad_id)
    # T5's decoder starts with the padding token.
    decoder_ids = np.concatenate([np.full_like(labels[:, :1], pad_id), labels[:, :-1]], 1)
    return {
        "encoder_input_ids": encoder_ids,
        "encoder_mask": encoder_mask,
        "decoder_input_ids": decoder_ids,
        "decoder_mask": decoder_mask,
        "labels": labels,
    }
