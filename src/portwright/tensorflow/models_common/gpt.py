"""Decoders that predict the next token: GPT-2, GPT-3 and GPT-J."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from portwright.errors import UserError
from portwright.tensorflow.layers import (
    Dense,
    EmbeddingLayer,
    GPTJDecoderLayer,
    LayerNorm,
    RotaryPositionEmbeddingHelper,
    SharedWeightsDense,
    TransformerDecoderLayer,
    masked_cross_entropy,
    token_cross_entropy,
)
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.models_common import model_parts
from portwright.tensorflow.models_common.model_parts import make_spec, policy_of


class Gpt:
    """Pre-norm layers and learned positions; with `rotary_dim` in params, GPT-J's layers and positions."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.params = params
        width, depth, policy = params["hidden_size"], params["num_hidden_layers"], policy_of(params)
        rotary_dim = params.get("rotary_dim")
        if width % params["num_heads"]:
            raise UserError(
                f"model.hidden_size is {width} and num_heads {params['num_heads']}.",
                "Take heads that divide the width.",
            )
        if rotary_dim is not None and rotary_dim > width // params["num_heads"]:
            raise UserError(
                f"model.rotary_dim is {rotary_dim}, and a head is {width // params['num_heads']} wide.",
                "Take no more than that.",
            )
        first = {"name": "normal", "std": params["initializer_range"]}
        # In GPT-2 the initial weights of outputs to the residual stream are smaller in deeper models.
        last = {"name": "normal", "std": params["initializer_range"] / (2 * depth) ** 0.5}
        embedding_rate = params["embedding_dropout_rate"]
        self.embeddings = EmbeddingLayer(
            params["vocab_size"],
            width,
            embeddings_initializer=first,
            max_position_embeddings=params["max_position_embeddings"],
            position_embedding_type="learned" if rotary_dim is None else None,
            position_embeddings_initializer=first,
            dropout=params["dropout_rate"] if embedding_rate is None else embedding_rate,
            name="embeddings",
            dtype=policy,
        )
        self.rotary = None
        if rotary_dim is not None:
            self.rotary = RotaryPositionEmbeddingHelper(params["max_position_embeddings"], rotary_dim)
        self.decoder = [self._make_layer(index, first, last, policy) for index in range(depth)]
        self.final_norm = LayerNorm(params["layer_norm_epsilon"], name="final_norm", dtype=policy)
        has_bias = params["use_bias_in_output"]
        self.output: Any
        if params["share_embedding_weights"]:
            self.output = SharedWeightsDense(
                params["vocab_size"], use_bias=has_bias, name="output", dtype=policy
            )
        else:
            self.output = Dense(
                params["vocab_size"], use_bias=has_bias, kernel_initializer=first, name="output", dtype=policy
            )

    def logits(self, input_ids: Any, training: bool) -> Any:
        """Of the token after each, [batch, sequence, vocabulary]."""
        x = self.embeddings(input_ids, training=training)
        for layer in self.decoder:
            x = layer(x, tgt_is_causal=True, rotary_position_embedding_helper=self.rotary, training=training)
        x = self.final_norm(x)
        return (
            self.output(x, self.embeddings.weight)
            if self.params["share_embedding_weights"]
            else self.output(x)
        )

    def _make_layer(self, index: int, first: Any, last: Any, policy: Any) -> Any:
        params = self.params
        options: dict[str, Any] = {
            "dropout": params["dropout_rate"],
            "activation": params["nonlinearity"],
            "layer_norm_eps": params["layer_norm_epsilon"],
            "attention_dropout_rate": params["attention_dropout_rate"],
            "attention_initializer": first,
            "attention_output_layer_initializer": last,
            "ffn_initializer": first,
            "ffn_output_layer_initializer": last,
            "use_ff_layer1_dropout": False,
            "name": f"decoder_{index}",
            "dtype": policy,
        }
        sizes: dict[str, Any] = {"nhead": params["num_heads"], "dim_feedforward": params["filter_size"]}
        if self.rotary is not None:
            no_biases: dict[str, Any] = {
                "use_projection_bias_in_attention": False,
                "use_ffn_bias_in_attention": False,
            }
            return GPTJDecoderLayer(params["hidden_size"], **sizes, **options, **no_biases)
        return TransformerDecoderLayer(
            params["hidden_size"], **sizes, **options, norm_first=True, add_cross_attention=False
        )


def language_model_spec(network: Gpt, features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    """The spec of a model that predicts the next token.

    input_mask says which tokens' losses count; it hides nothing from attention, which only looks back.
    """
    model = params["model"]
    logits = network.logits(features["input_ids"], training=mode == ModeKeys.TRAIN)
    tokens = tf.argmax(logits, -1, output_type=tf.int32)
    if mode == ModeKeys.PREDICT:
        wide = tf.cast(logits, tf.float32)
        best = tf.exp(tf.reduce_max(wide, -1) - tf.reduce_logsumexp(wide, -1))
        return make_spec(mode, params, predictions={"next_tokens": tokens, "probabilities": best})
    weights = features["input_mask"]
    loss = masked_cross_entropy(
        logits, labels, weights, loss_scaling=model["loss_scaling"], loss_weight=model["loss_weight"]
    )
    measured = [labels, tokens, weights, token_cross_entropy(logits, labels)]
    return make_spec(mode, params, loss=loss, host_call=(next_token_metrics, measured))


def next_token_metrics(truth: Any, tokens: Any, weights: Any, losses: Any) -> dict[str, Any]:
    return {
        "eval/accuracy": model_parts.accuracy(truth, tokens, weights),
        "eval/lm_perplexity": model_parts.perplexity(losses, weights),
    }


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
