"""Input of models that predict the next token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from portwright.errors import UserError
from portwright.tensorflow.models_common.pipeline import dataset_of_arrays, dataset_of_records, has_records
from portwright.tensorflow.models_common.text_examples import pack_sequences, text_samples


def language_model_dataset(
    params: Mapping[str, Any], section: str, input_context: Any = None
) -> tf.data.Dataset:
    """Batches of ({input_ids, input_mask}, labels); input_mask is 1 where a token's loss counts."""
    options = params[section]
    training = section == "train_input"
    length = options["max_sequence_length"]
    if length > params["model"]["max_position_embeddings"]:
        raise UserError(
            f"{section}.max_sequence_length is {length} and model.max_position_embeddings "
            f"{params['model']['max_position_embeddings']}.",
            f"Set model.max_position_embeddings to at least {length}.",
        )
    if options["data_dir"] is not None and has_records(options["data_dir"]):
        tokens = tf.io.FixedLenFeature([length], tf.int64)
        spec = {"input_ids": tokens, "input_mask": tokens, "labels": tokens}
        return dataset_of_records(options, training, spec, _split_labels, input_context)
    arrays, _ = text_samples(params, section, pack_sequences, params["model"]["vocab_size"], length)
    return dataset_of_arrays(arrays, options, training, _split_labels, input_context)


def _split_labels(batch: dict[str, tf.Tensor], number: tf.Tensor) -> Any:
    features = dict(batch)
    labels = features.pop("labels")
    return features, labels
