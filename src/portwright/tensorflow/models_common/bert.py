"""BERT's encoder and heads, for BERT itself, RoBERTa and Linformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from portwright.tensorflow.layers import (
    BertPooler,
    Dense,
    Dropout,
    EmbeddingLayer,
    LayerNorm,
    SharedWeightsDense,
    TransformerEncoderLayer,
    get_activation,
    mask_of_zeros,
    masked_cross_entropy,
    token_cross_entropy,
)
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.models_common import model_parts
from portwright.tensorflow.models_common.model_parts import make_spec, policy_of


class Bert:
    """An encoder with a head for masked tokens and, unless `disable_nsp`, one for the next sentence.

    `options` are further keywords of the encoder layers, such as another attention.
    """

    def __init__(self, params: Mapping[str, Any], **options: Any) -> None:
        self.params = params
        width, eps, policy = params["hidden_size"], params["layer_norm_epsilon"], policy_of(params)
        first = {"name": "truncated_normal", "std": params["initializer_range"]}
        self.embeddings = EmbeddingLayer(
            params["vocab_size"],
            width,
            embeddings_initializer=first,
            max_position_embeddings=params["max_position_embeddings"],
            position_embeddings_initializer=first,
            num_segments=params["num_segments"] if params["use_segment_embedding"] else None,
            segment_embeddings_initializer=first,
            name="embeddings",
            dtype=policy,
        )
        self.embeddings_norm = LayerNorm(eps, name="embeddings_norm", dtype=policy)
        self.embeddings_dropout = Dropout(params["dropout_rate"], name="embeddings_dropout", dtype=policy)
        self.encoder = [
            TransformerEncoderLayer(
                width,
                params["num_heads"],
                params["filter_size"],
                params["dropout_rate"],
                params["encoder_nonlinearity"],
                eps,
                attention_dropout_rate=params["attention_dropout_rate"],
                attention_initializer=first,
                ffn_initializer=first,
                use_ff_layer1_dropout=False,
                name=f"encoder_{index}",
                dtype=policy,
                **options,
            )
            for index in range(params["num_hidden_layers"])
        ]
        self.mlm_transform = Dense(
            width,
            get_activation(params["encoder_nonlinearity"]),
            kernel_initializer=first,
            name="mlm_transform",
            dtype=policy,
        )
        self.mlm_norm = LayerNorm(eps, name="mlm_norm", dtype=policy)
        self.mlm_output = SharedWeightsDense(params["vocab_size"], name="mlm_output", dtype=policy)
        if not params["disable_nsp"]:
            self.pooler = BertPooler(width, kernel_initializer=first, name="pooler", dtype=policy)
            self.nsp_output = Dense(2, kernel_initializer=first, name="nsp_output", dtype=policy)

    def encode(self, features: Mapping[str, Any], training: bool) -> Any:
        """The last hidden states, [batch, sequence, width]."""
        input_ids = features["input_ids"]
        segment_ids = features.get("segment_ids")
        if segment_ids is None and self.params["use_segment_embedding"]:
            segment_ids = tf.zeros_like(input_ids)
        x = self.embeddings(
            input_ids,
            segment_ids if self.params["use_segment_embedding"] else None,
            position_ids=self._positions(input_ids),
        )
        x = self.embeddings_dropout(self.embeddings_norm(x), training=training)
        padding = mask_of_zeros(features["input_mask"])
        for layer in self.encoder:
            x = layer(x, src_key_padding_mask=padding, training=training)
        return x

    def mlm_logits(self, hidden: Any, positions: Any) -> Any:
        """Logits of the tokens at `positions`, [batch, predictions, vocabulary]."""
        chosen = tf.gather(hidden, positions, batch_dims=1)
        return self.mlm_output(self.mlm_norm(self.mlm_transform(chosen)), self.embeddings.weight)

    def nsp_logits(self, hidden: Any, training: bool) -> Any:
        return self.nsp_output(self.pooler(hidden))

    def _positions(self, input_ids: Any) -> Any:
        """Position ids as RoBERTa counts them, from `pad_id` + 1 on; None for BERT, whose positions start at 0."""
        if not self.params["positions_after_padding"]:
            return None
        pad_id = self.params["pad_token_id"]
        is_token = tf.cast(tf.not_equal(input_ids, pad_id), tf.int32)
        return tf.cumsum(is_token, axis=1) * is_token + pad_id


def masked_lm_spec(network: Bert, features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    """The spec of a masked language model: losses, predictions and metrics of its heads."""
    model = params["model"]
    training = mode == ModeKeys.TRAIN
    hidden = network.encode(features, training)
    mlm_logits = network.mlm_logits(hidden, features["masked_lm_positions"])
    tokens = tf.argmax(mlm_logits, -1, output_type=tf.int32)
    predictions = {"masked_lm_predictions": tokens, "masked_lm_positions": features["masked_lm_positions"]}
    nsp_logits = None
    if not model["disable_nsp"]:
        nsp_logits = tf.cast(network.nsp_logits(hidden, training), tf.float32)
        predictions["next_sentence_probabilities"] = tf.nn.softmax(nsp_logits)
    if mode == ModeKeys.PREDICT:
        return make_spec(mode, params, predictions=predictions)

    truth, weights = features["masked_lm_ids"], features["masked_lm_weights"]
    loss = masked_cross_entropy(mlm_logits, truth, weights, loss_weight=model["mlm_loss_weight"])
    measured = [truth, tokens, weights, token_cross_entropy(mlm_logits, truth)]
    if nsp_logits is not None:
        nsp_losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=nsp_logits)
        loss += tf.reduce_mean(nsp_losses)
        measured += [labels, tf.argmax(nsp_logits, -1, output_type=tf.int32)]
    return make_spec(mode, params, loss=loss, host_call=(_eval_metrics, measured))


def _eval_metrics(
    truth: Any, tokens: Any, weights: Any, losses: Any, nsp_truth: Any = None, nsp_found: Any = None
) -> dict[str, Any]:
    found = {
        "eval/mlm_accuracy": model_parts.accuracy(truth, tokens, weights),
        "eval/mlm_perplexity": model_parts.perplexity(losses, weights),
    }
    if nsp_truth is not None:
        found["eval/nsp_accuracy"] = model_parts.accuracy(nsp_truth, nsp_found)
    return found
