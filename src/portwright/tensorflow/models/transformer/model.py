"""The Transformer of "Attention is all you need": norms after the residuals, and none after the stacks."""

from __future__ import annotations

import math
from typing import Any

from portwright import UserError
from portwright.tensorflow import ModeKeys
from portwright.tensorflow.layers import (
    Dense,
    EmbeddingLayer,
    SharedWeightsDense,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
    mask_of_zeros,
)
from portwright.tensorflow.models_common.gpt import sequence_to_sequence_spec
from portwright.tensorflow.models_common.model_parts import policy_of


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    network = Transformer(params["model"], longest(params))
    logits = network.logits(features, training=mode == ModeKeys.TRAIN)
    return sequence_to_sequence_spec(logits, features, labels, mode, params)


def longest(params: dict[str, Any]) -> int:
    """The longest sample of training and evaluation: both use one table of positions."""
    sections = [params["train_input"], params["eval_input"]]
    return max(s[f"{side}_max_sequence_length"] for s in sections for side in ("src", "tgt"))


class Transformer:
    """Embeddings times the root of the width, plus sinusoids; an encoder, a decoder and an output layer."""

    def __init__(self, params: dict[str, Any], num_positions: int) -> None:
        self.params, self.policy = params, policy_of(params)
        sizes = params["src_vocab_size"], params["tgt_vocab_size"]
        if params["share_encoder_decoder_embedding"] and sizes[0] != sizes[1]:
            raise UserError(
                f"One embedding is to serve vocabularies of {sizes[0]} and {sizes[1]}.",
                "Make src_vocab_size and tgt_vocab_size the same, or set share_encoder_decoder_embedding: false.",
            )
        self.encoder_embeddings = self._embed("encoder_embeddings", sizes[0], num_positions)
        self.decoder_embeddings = self.encoder_embeddings
        if not params["share_encoder_decoder_embedding"]:
            self.decoder_embeddings = self._embed("decoder_embeddings", sizes[1], num_positions)
        self.encoder = [
            self._layer(TransformerEncoderLayer, "encoder", index)
            for index in range(params["encoder_num_hidden_layers"])
        ]
        self.decoder = [
            self._layer(TransformerDecoderLayer, "decoder", index)
            for index in range(params["decoder_num_hidden_layers"])
        ]
        kind = SharedWeightsDense if params["share_embedding_weights"] else Dense
        self.output = kind(sizes[1], use_bias=False, name="output", dtype=self.policy)

    def logits(self, features: dict[str, Any], training: bool) -> Any:
        """Logits of the token after each of decoder_input_ids."""
        source_padding = mask_of_zeros(features["encoder_mask"])
        memory = self.encoder_embeddings(features["encoder_input_ids"], training=training)
        for layer in self.encoder:
            memory = layer(memory, src_key_padding_mask=source_padding, training=training)
        x = self.decoder_embeddings(features["decoder_input_ids"], training=training)
        for layer in self.decoder:
            x = layer(
                x,
                memory,
                tgt_is_causal=True,
                memory_key_padding_mask=source_padding,
                training=training,
            )
        if self.params["share_embedding_weights"]:
            return self.output(x, self.decoder_embeddings.weight)
        return self.output(x)

    def _embed(self, name: str, vocab_size: int, num_positions: int) -> EmbeddingLayer:
        width = self.params["hidden_size"]
        first = {"name": "normal", "std": width**-0.5}
        return EmbeddingLayer(
            vocab_size,
            width,
            embeddings_initializer=first,
            max_position_embeddings=num_positions,
            position_embedding_type=self.params["position_embedding_type"],
            position_embeddings_initializer=first,
            embedding_scale=math.sqrt(width),
            dropout=self.params["dropout_rate"],
            name=name,
            dtype=self.policy,
        )

    def _layer(self, kind: Any, side: str, index: int) -> Any:
        params = self.params
        return kind(
            params["hidden_size"],
            params["num_heads"],
            params["filter_size"],
            params["dropout_rate"],
            params[f"{side}_nonlinearity"],
            params["layer_norm_epsilon"],
            attention_dropout_rate=params["attention_dropout_rate"],
            name=f"{side}_{index}",
            dtype=self.policy,
        )
