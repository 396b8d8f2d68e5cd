"""Input of masked language models: records that are masked already, or text that is masked batch by batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from pydantic import Field, PositiveInt

from portwright.errors import UserError
from portwright.tensorflow.models_common.input_params import TextInputParams
from portwright.tensorflow.models_common.pipeline import dataset_of_arrays, dataset_of_records, has_records
from portwright.tensorflow.models_common.text_examples import (
    sentence_pairs,
    single_segments,
    text_samples,
)
from portwright.tensorflow.models_common.token_masking import mask_tokens


class MaskedInputParams(TextInputParams):
    max_predictions_per_seq: PositiveInt = Field(
        10, description="the most tokens of a sample that are masked"
    )


def masked_lm_dataset(
    params: Mapping[str, Any], section: str, *, pairs: bool, input_context: Any = None
) -> tf.data.Dataset:
    """Batches of (features, next_sentence_labels), or of features alone without `pairs`.

    Features: input_ids, input_mask (1 for a token, 0 for padding), masked_lm_positions, masked_lm_ids,
    masked_lm_weights and, with pairs, segment_ids.
    """
    options = params[section]
    training = section == "train_input"
    check_positions(params, section)
    if options["data_dir"] is not None and has_records(options["data_dir"]):
        return dataset_of_records(
            options, training, _record_spec(options, pairs), _split_labels, input_context
        )

    make = sentence_pairs if pairs else single_segments
    size, length = params["model"]["vocab_size"], options["max_sequence_length"]
    arrays, vocabulary = text_samples(params, section, make, size, length)
    seed = params.get("runconfig", {}).get("seed") or 1

    def mask(batch: dict[str, tf.Tensor], number: tf.Tensor) -> Any:
        return _split_labels(
            mask_tokens(batch, number, vocabulary, options["max_predictions_per_seq"], seed), number
        )

    return dataset_of_arrays(arrays, options, training, mask, input_context)


def check_positions(params: Mapping[str, Any], section: str, used_up: int = 0) -> None:
    """A sample must not be longer than the model has positions."""
    length, room = params[section]["max_sequence_length"], params["model"]["max_position_embeddings"]
    if params["model"].get("positions_after_padding"):
        used_up = params["model"]["pad_token_id"] + 1
    if length + used_up > room:
        raise UserError(
            f"{section}.max_sequence_length is {length} and model.max_position_embeddings {room}"
            + (f", of which {used_up} are for padding." if used_up else "."),
            f"Set model.max_position_embeddings to at least {length + used_up}.",
        )


def _record_spec(options: Mapping[str, Any], pairs: bool) -> dict[str, Any]:
    tokens = tf.io.FixedLenFeature([options["max_sequence_length"]], tf.int64)
    num_predictions = options["max_predictions_per_seq"]
    spec = {
        "input_ids": tokens,
        "input_mask": tokens,
        "masked_lm_positions": tf.io.FixedLenFeature([num_predictions], tf.int64),
        "masked_lm_ids": tf.io.FixedLenFeature([num_predictions], tf.int64),
        "masked_lm_weights": tf.io.FixedLenFeature([num_predictions], tf.float32),
    }
    if pairs:
        spec |= {"segment_ids": tokens, "next_sentence_labels": tf.io.FixedLenFeature([], tf.int64)}
    return spec


def _split_labels(batch: dict[str, tf.Tensor], number: tf.Tensor) -> Any:
    if "next_sentence_labels" not in batch:
        return batch
    features = dict(batch)
    labels = features.pop("next_sentence_labels")
    return features, labels
