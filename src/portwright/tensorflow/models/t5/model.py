"""T5: an encoder and a decoder with relative positions, norms without a mean, and hardly a bias."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright.tensorflow import ModeKeys
from portwright.tensorflow.layers import (
    Dense,
    Dropout,
    EmbeddingLayer,
    RelativePositionEmbeddingLayer,
    RMSNorm,
    SharedWeightsDense,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
    mask_of_zeros,
)
from portwright.tensorflow.models_common.gpt import sequence_to_sequence_spec
from portwright.tensorflow.models_common.model_parts import policy_of


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    logits = T5(params["model"]).logits(features, training=mode == ModeKeys.TRAIN)
    return sequence_to_sequence_spec(logits, features, labels, mode, params)


class T5:
    """T5 with relu, or T5 1.1 with `feed_forward_nonlinearity: geglu_new` and `share_embedding_weights: false`."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.params, self.policy = params, policy_of(params)
        self.embeddings = EmbeddingLayer(
            params["vocab_size"],
            params["d_model"],
            embeddings_initializer=self._normal(1.0),
            position_embedding_type=None,
            name="embeddings",
            dtype=self.policy,
        )
        self.encoder, self.encoder_bias, self.encoder_norm = self._stack("encoder", TransformerEncoderLayer)
        self.decoder, self.decoder_bias, self.decoder_norm = self._stack("decoder", TransformerDecoderLayer)
        self.dropout = Dropout(params["dropout_rate"], name="dropout", dtype=self.policy)
        self.output: Any
        if params["share_embedding_weights"]:
            self.output = SharedWeightsDense(
                params["vocab_size"], use_bias=False, name="output", dtype=self.policy
            )
        else:
            self.output = Dense(
                params["vocab_size"],
                use_bias=False,
                kernel_initializer=self._normal(params["d_model"] ** -0.5),
                name="output",
                dtype=self.policy,
            )

    def logits(self, features: dict[str, Any], training: bool) -> Any:
        """Logits of the token after each of decoder_input_ids."""
        padding = mask_of_zeros(features["encoder_mask"])
        memory = self.dropout(self.embeddings(features["encoder_input_ids"]), training=training)
        length = memory.shape[1]
        bias = self.encoder_bias(length, length)
        for layer in self.encoder:
            memory = layer(
                memory, src_key_padding_mask=padding, self_attn_position_bias=bias, training=training
            )
        memory = self.dropout(self.encoder_norm(memory), training=training)

        x = self.dropout(self.embeddings(features["decoder_input_ids"]), training=training)
        length = x.shape[1]
        bias = self.decoder_bias(length, length)
        for layer in self.decoder:
            x = layer(
                x,
                memory,
                tgt_is_causal=True,
                memory_key_padding_mask=padding,
                self_attn_position_bias=bias,
                training=training,
            )
        x = self.dropout(self.decoder_norm(x), training=training)
        if not self.params["share_embedding_weights"]:
            return self.output(x)
        return self.output(x * tf.cast(self.params["d_model"] ** -0.5, x.dtype), self.embeddings.weight)

    def _stack(self, side: str, kind: Any) -> tuple[list[Any], RelativePositionEmbeddingLayer, RMSNorm]:
        params = self.params
        width, inner = params["d_model"], params["d_kv"] * params["num_heads"]
        layers = [
            kind(
                width,
                params["num_heads"],
                params["d_ff"],
                params["dropout_rate"],
                params["feed_forward_nonlinearity"],
                params["layer_norm_epsilon"],
                norm_first=True,
                bias=False,
                attention_type="dot_product",
                attention_initializer=self._normal(width**-0.5),
                attention_output_layer_initializer=self._normal(inner**-0.5),
                # The smaller initial weights of the query replace the division of scores by the root of the head's width.
                extra_attention_params={
                    "inner_dim": inner,
                    "attention_q_initializer": self._normal((width * params["d_kv"]) ** -0.5),
                },
                ffn_initializer=self._normal(width**-0.5),
                ffn_output_layer_initializer=self._normal(params["d_ff"] ** -0.5),
                norm_layer="rmsnorm",
                name=f"{side}_{index}",
                dtype=self.policy,
            )
            for index in range(params[f"{side}_num_hidden_layers"])
        ]
        bias = RelativePositionEmbeddingLayer(
            params["num_heads"],
            params["relative_attention_num_buckets"],
            bidirectional_relative_attention=side == "encoder",
            relative_attn_bias_initializer=self._normal(width**-0.5),
            max_relative_positions=params["relative_attention_max_distance"],
            name=f"{side}_positions",
            dtype=self.policy,
        )
        return layers, bias, RMSNorm(params["layer_norm_epsilon"], name=f"{side}_norm", dtype=self.policy)

    def _normal(self, std: float) -> dict[str, Any]:
        return {"name": "normal", "std": std * self.params["initializer_factor"]}
