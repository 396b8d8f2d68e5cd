"""T5 (arXiv 1910.10683) and T5 1.1: relative positions, norms without a mean, scores without a scale, and no biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn

from portwright.job.model_params import T5Params, read_model_section
from portwright.layers import (
    EmbeddingLayer,
    RelativePositionEmbeddingLayer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from portwright.layers.cache import DecoderLayerCache
from portwright.layers.norms import RMSNorm
from portwright.networks.encoder_decoder import (
    EncoderDecoder,
    causal_mask,
    padding_mask,
    past_of,
    shared_bias,
)


class T5(EncoderDecoder):
    """An encoder and a decoder; `params` is the model section, T5Params has its keys and their defaults.

    attention_mask and decoder_attention_mask are 1 for a token and 0 for padding. T5 1.1 is
    `feed_forward_nonlinearity: geglu_new` with `share_embedding_weights: false`.
    """

    text_kind = "t5"  # the kind of tokenizer that its text is read with

    def __init__(self, params: Mapping[str, Any]) -> None:
        options = read_model_section(T5Params, params)
        super().__init__(options)
        self.embeddings = EmbeddingLayer(
            options.vocab_size,
            options.d_model,
            embeddings_initializer=_normal(options.initializer_factor),
            position_embedding_type=None,
        )
        self.dropout = nn.Dropout(options.dropout_rate)
        self.encoder_positions = _positions(options, bidirectional=True)
        self.encoder = TransformerEncoder(
            TransformerEncoderLayer(**_layer_options(options)),
            options.encoder_num_hidden_layers,
            RMSNorm(options.d_model, eps=options.layer_norm_epsilon),
            enable_nested_tensor=False,
        )
        self.decoder_positions = _positions(options, bidirectional=False)
        self.decoder = TransformerDecoder(
            TransformerDecoderLayer(**_layer_options(options)),
            options.decoder_num_hidden_layers,
            RMSNorm(options.d_model, eps=options.layer_norm_epsilon),
        )
        is_scaled = options.scale_decoder_outputs
        is_scaled = options.share_embedding_weights if is_scaled is None else is_scaled
        self.output_scale = options.d_model**-0.5 if is_scaled else 1.0
        self.head: nn.Linear | None = None
        if not options.share_embedding_weights:
            self.head = nn.Linear(options.d_model, options.vocab_size, bias=False)
        self.initializer_factor = options.initializer_factor
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all weights anew, different ones for each layer."""
        self.embeddings.reset_parameters()
        for part in (
            self.encoder_positions,
            self.decoder_positions,
            *self.encoder.layers,
            *self.decoder.layers,
        ):
            cast(Any, part).reset_parameters()
        for norm in self.modules():
            if isinstance(norm, RMSNorm):
                nn.init.constant_(norm.weight, self.initializer_factor)
        if self.head is not None:
            # HuggingFace has 1 here; but the hidden states are not scaled, and such logits would start too large.
            nn.init.normal_(self.head.weight, std=self.initializer_factor * self.head.in_features**-0.5)

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The memory [batch, source, width] that the decoder attends to."""
        x = self.dropout(self.embeddings(input_ids))
        length = input_ids.shape[1]
        bias = shared_bias(self.encoder_positions(length, length), padding_mask(attention_mask))
        return self.dropout(self.encoder(x, self_attn_position_bias=bias))

    def decode_hidden(
        self,
        decoder_input_ids: Tensor,
        memory: Tensor,
        attention_mask: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        past_kv: Sequence[DecoderLayerCache] | None = None,
    ) -> Tensor:
        """The scaled states that the output layer is applied to; arguments as those of `decode`."""
        num_past, length = past_of(past_kv), decoder_input_ids.shape[1]
        x = self.dropout(self.embeddings(decoder_input_ids))
        mask = causal_mask(length, num_past, decoder_attention_mask, decoder_input_ids.device)
        positions = self.decoder_positions(length, num_past + length, past_length=num_past)
        hidden: Tensor = self.decoder(
            x,
            memory,
            memory_mask=padding_mask(attention_mask),
            self_attn_position_bias=shared_bias(positions, mask),
            past_kv=past_kv,
        )
        hidden = self.dropout(hidden)
        return hidden if self.output_scale == 1.0 else hidden * self.output_scale

    def head_weight(self) -> tuple[Tensor, Tensor | None]:
        """The output layer's matrix [vocabulary, width]; it has no bias."""
        return (self.embeddings.weight if self.head is None else self.head.weight), None


def _normal(std: float) -> dict[str, Any]:
    return {"name": "normal", "mean": 0.0, "std": std}


def _positions(options: T5Params, bidirectional: bool) -> RelativePositionEmbeddingLayer:
    return RelativePositionEmbeddingLayer(
        options.num_heads,
        num_relative_attention_buckets=options.relative_attention_num_buckets,
        bidirectional_relative_attention=bidirectional,
        relative_attn_bias_initializer=_normal(options.initializer_factor * options.d_model**-0.5),
        max_relative_positions=options.relative_attention_max_distance,
    )


def _layer_options(options: T5Params) -> dict[str, Any]:
    width, inner, factor = options.d_model, options.d_kv * options.num_heads, options.initializer_factor
    return {
        "d_model": width,
        "nhead": options.num_heads,
        "dim_feedforward": options.d_ff,
        "dropout": options.dropout_rate,
        "activation": options.feed_forward_nonlinearity,
        "layer_norm_eps": options.layer_norm_epsilon,
        "batch_first": True,
        "norm_first": True,
        "bias": False,
        "norm_layer": "rmsnorm",
        "attention_type": "dot_product",
        "attention_initializer": _normal(factor * width**-0.5),
        "attention_output_layer_initializer": _normal(factor * inner**-0.5),
        "ffn_initializer": _normal(factor * width**-0.5),
        "ffn_output_layer_initializer": _normal(factor * options.d_ff**-0.5),
        # Smaller initial queries replace the division of the scores by the root of the head's width.
        "extra_attention_params": {
            "inner_dim": inner,
            "attention_q_initializer": _normal(factor * (width * options.d_kv) ** -0.5),
        },
    }
