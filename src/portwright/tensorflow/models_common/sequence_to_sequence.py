"""What models with an encoder and a decoder end with."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright.tensorflow.layers import masked_cross_entropy, token_cross_entropy
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.models_common.gpt import next_token_metrics
from portwright.tensorflow.models_common.mode_spec import make_spec


def sequence_to_sequence_spec(
    logits: Any, features: Any, labels: Any, mode: str, params: dict[str, Any]
) -> Any:
    """The spec for logits of the tokens after those of decoder_input_ids; perplexity is without label smoothing."""
    model = params["model"]
    tokens = tf.argmax(logits, -1, output_type=tf.int32)
    if mode == ModeKeys.PREDICT:
        return make_spec(mode, params, predictions={"next_tokens": tokens})
    weights = features["decoder_mask"]
    loss = masked_cross_entropy(
        logits,
        labels,
        weights,
        label_smoothing=model["label_smoothing"],
        loss_scaling=model["loss_scaling"],
        loss_weight=model["loss_weight"],
    )
    measured = [labels, tokens, weights, token_cross_entropy(logits, labels)]
    return make_spec(mode, params, loss=loss, host_call=(next_token_metrics, measured))
