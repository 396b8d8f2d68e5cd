"""Masking for masked language models, anew for each batch and the same again after a resume."""

from __future__ import annotations

import tensorflow as tf

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
