"""Datasets of text: for models that predict the next token, and for those that predict masked ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from pydantic import Field, PositiveInt

from portwright.errors import UserError
from portwright.tensorflow.models_common.input_params import TextInputParams
from portwright.tensorflow.models_common.pipeline import (
    dataset_of_arrays,
    dataset_of_records,
    has_records,
    split_labels,
)
from portwright.tensorflow.models_common.text_examples import (
    pack_sequences,
    sentence_pairs,
    single_segments,
    text_samples,
)
from portwright.tensorflow.models_common.vocabulary import SPECIAL_TOKENS, Vocabulary

MASKED_FRACTION = 0.15  # BERT's figures: of the masked tokens 80% become [MASK], 10% another token, 10% stay


def mask_tokens(
    features: dict[str, tf.Tensor],
    number: tf.Tensor,
    vocabulary: Vocabulary,
    max_predictions: int,
    seed: int,
) -> dict[str, tf.Tensor]:
    """Adds masked_lm_positions, masked_lm_ids and masked_lm_weights to a batch, and masks its input_ids.

    The draws depend on `seed` and `number` alone.
    """
    input_ids = features["input_ids"]
    batch_size, length = input_ids.shape
    special = [vocabulary.ids[token] for token in SPECIAL_TOKENS]
    may_be_masked = tf.cast(features["input_mask"], tf.bool)
    for token_id in special:
        may_be_masked &= tf.not_equal(input_ids, token_id)  # in a v1 graph, != compares objects

    draw_seed = tf.stack([tf.constant(seed, tf.int64), tf.cast(number, tf.int64)])
    order, kinds, others = (tf.random.experimental.stateless_fold_in(draw_seed, part) for part in range(3))
    ranks = tf.where(may_be_masked, tf.random.stateless_uniform([batch_size, length], order), -1.0)
    num_drawn = min(max_predictions, int(length))
    scores, positions = tf.math.top_k(ranks, num_drawn)
    num_candidates = tf.reduce_sum(tf.cast(may_be_masked, tf.float32), 1, keepdims=True)
    num_masked = tf.maximum(1.0, tf.round(num_candidates * MASKED_FRACTION))
    masked = (tf.range(num_drawn, dtype=tf.float32)[None] < num_masked) & (scores >= 0)

    originals = tf.gather(input_ids, positions, batch_dims=1)
    kind = tf.random.stateless_uniform([batch_size, num_drawn], kinds)
    another = tf.random.stateless_uniform(
        [batch_size, num_drawn], others, len(special), len(vocabulary), tf.int32
    )
    mask_id = vocabulary.ids["[MASK]"]
    replaced = tf.where(kind < 0.8, mask_id, tf.where(kind < 0.9, another, originals))
    rows = tf.tile(tf.range(batch_size)[:, None], [1, num_drawn])
    input_ids = tf.tensor_scatter_nd_update(
        input_ids, tf.stack([rows, positions], -1), tf.where(masked, replaced, originals)
    )
    more = [[0, 0], [0, max_predictions - num_drawn]]
    return {
        **features,
        "input_ids": input_ids,
        "masked_lm_positions": tf.pad(tf.where(masked, positions, 0), more),
        "masked_lm_ids": tf.pad(tf.where(masked, originals, 0), more),
        "masked_lm_weights": tf.pad(tf.cast(masked, tf.float32), more),
    }


class MaskedInputParams(TextInputParams):
    max_predictions_per_seq: PositiveInt = Field(
        10, description="the most tokens of a sample that are masked"
    )


def masked_lm_dataset(params: Mapping[str, Any], section: str, input_context: Any = None) -> tf.data.Dataset:
    """Batches of (features, next_sentence_labels), or of features alone with `disable_nsp` in the model's params.

    Features: input_ids, input_mask (1 for a token, 0 for padding), masked_lm_positions, masked_lm_ids,
    masked_lm_weights and, with next sentences, segment_ids.
    """
    pairs = not params["model"]["disable_nsp"]
    options = params[section]
    training = section == "train_input"
    check_positions(params, section)
    if options["data_dir"] is not None and has_records(options["data_dir"]):
        return dataset_of_records(
            options, training, _record_spec(options, pairs), _split_next_sentences, input_context
        )

    make = sentence_pairs if pairs else single_segments
    size, length = params["model"]["vocab_size"], options["max_sequence_length"]
    arrays, vocabulary = text_samples(params, section, make, size, length)
    seed = params.get("runconfig", {}).get("seed") or 1

    def mask(batch: dict[str, tf.Tensor], number: tf.Tensor) -> Any:
        return _split_next_sentences(
            mask_tokens(batch, number, vocabulary, options["max_predictions_per_seq"], seed), number
        )

    return dataset_of_arrays(arrays, options, training, mask, input_context)


def check_positions(params: Mapping[str, Any], section: str) -> None:
    """A sample must not be longer than the model has positions."""
    length, room = params[section]["max_sequence_length"], params["model"]["max_position_embeddings"]
    used_up = 0
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


def _split_next_sentences(batch: dict[str, tf.Tensor], number: tf.Tensor) -> Any:
    if "next_sentence_labels" not in batch:
        return batch
    return split_labels(batch, number, "next_sentence_labels")


def language_model_dataset(
    params: Mapping[str, Any], section: str, input_context: Any = None
) -> tf.data.Dataset:
    """Batches of ({input_ids, input_mask}, labels); input_mask is 1 where a token's loss counts."""
    options = params[section]
    training = section == "train_input"
    length = options["max_sequence_length"]
    check_positions(params, section)
    if options["data_dir"] is not None and has_records(options["data_dir"]):
        tokens = tf.io.FixedLenFeature([length], tf.int64)
        spec = {"input_ids": tokens, "input_mask": tokens, "labels": tokens}
        return dataset_of_records(options, training, spec, split_labels, input_context)
    arrays, _ = text_samples(params, section, pack_sequences, params["model"]["vocab_size"], length)
    return dataset_of_arrays(arrays, options, training, split_labels, input_context)
