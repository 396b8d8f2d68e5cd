"""The Transformer of 2017 (arXiv 1706.03762): norms after the residuals, sinusoids, and one embedding for all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn

from portwright.errors import UserError
from portwright.job.model_params import Seq2SeqParams, read_model_section
from portwright.layers import (
    EmbeddingLayer,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from portwright.layers.cache import DecoderLayerCache
from portwright.layers.plain_ops import needs_plain_ops
from portwright.networks.encoder_decoder import EncoderDecoder, causal_mask, padding_mask, past_of


class Seq2Seq(EncoderDecoder):
    """An encoder and a decoder; `params` is the model section, Seq2SeqParams has its keys and their defaults.

    attention_mask and decoder_attention_mask are 1 for a token and 0 for padding.
    """

    text_kind = "pairs"  # the kind of text: sentences and their translations

    def __init__(self, params: Mapping[str, Any]) -> None:
        options = read_model_section(Seq2SeqParams, params)
        super().__init__(options)
        sizes = options.src_vocab_size, options.tgt_vocab_size
        if options.share_encoder_decoder_embedding and sizes[0] != sizes[1]:
            raise UserError(
                f"One embedding is to serve vocabularies of {sizes[0]} and {sizes[1]}.",
                "Make src_vocab_size and tgt_vocab_size the same, or set share_encoder_decoder_embedding: false.",
            )
        if options.hidden_size % options.num_heads:
            raise UserError(
                f"model.hidden_size is {options.hidden_size} and num_heads {options.num_heads}.",
                "Let the heads divide the width.",
            )
        self.encoder_embeddings = _embedding(options, options.src_vocab_size)
        self.decoder_embeddings: EmbeddingLayer | None = None
        if not options.share_encoder_decoder_embedding:
            self.decoder_embeddings = _embedding(options, options.tgt_vocab_size)
        self.encoder = TransformerEncoder(
            TransformerEncoderLayer(activation=options.encoder_nonlinearity, **_layer_options(options)),
            options.encoder_num_hidden_layers,
            enable_nested_tensor=False,
        )
        self.decoder = TransformerDecoder(
            TransformerDecoderLayer(activation=options.decoder_nonlinearity, **_layer_options(options)),
            options.decoder_num_hidden_layers,
        )
        self.head: nn.Linear | None = None
        if not options.share_embedding_weights:
            self.head = nn.Linear(options.hidden_size, options.tgt_vocab_size, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all weights anew, different ones for each layer."""
        for part in (
            self.encoder_embeddings,
            self.decoder_embeddings,
            *self.encoder.layers,
            *self.decoder.layers,
        ):
            if part is not None:
                cast(Any, part).reset_parameters()
        if self.head is not None:
            nn.init.xavier_uniform_(self.head.weight)

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The memory [batch, source, width] that the decoder attends to."""
        return self.encoder(self.encoder_embeddings(input_ids), mask=padding_mask(attention_mask))

    def decode_hidden(
        self,
        decoder_input_ids: Tensor,
        memory: Tensor,
        attention_mask: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        past_kv: Sequence[DecoderLayerCache] | None = None,
    ) -> Tensor:
        """The states that the output layer is applied to; arguments as those of `decode`."""
        num_past, length = past_of(past_kv), decoder_input_ids.shape[1]
        x = self._target_embeddings()(decoder_input_ids, past_length=num_past)
        mask: Tensor | None = None
        # torch's kernel hides later tokens by itself; decomposed for another target, it would do so with ops that few have.
        is_causal = decoder_attention_mask is None and num_past == 0 and not needs_plain_ops(x)
        if not is_causal:
            mask = causal_mask(length, num_past, decoder_attention_mask, decoder_input_ids.device)
        return self.decoder(
            x,
            memory,
            tgt_mask=mask,
            memory_mask=padding_mask(attention_mask),
            tgt_is_causal=is_causal,
            past_kv=past_kv,
        )

    def head_weight(self) -> tuple[Tensor, Tensor | None]:
        """The output layer's matrix [vocabulary, width]; it has no bias."""
        return (self._target_embeddings().weight if self.head is None else self.head.weight), None

    def _target_embeddings(self) -> EmbeddingLayer:
        return self.encoder_embeddings if self.decoder_embeddings is None else self.decoder_embeddings


def _embedding(options: Seq2SeqParams, vocab_size: int) -> EmbeddingLayer:
    first = {"name": "normal", "mean": 0.0, "std": options.hidden_size**-0.5}
    return EmbeddingLayer(
        vocab_size,
        options.hidden_size,
        embeddings_initializer=first,
        max_position_embeddings=options.max_position_embeddings,
        position_embedding_type=options.position_embedding_type,
        position_embeddings_initializer=first,
        embedding_scale=math.sqrt(options.hidden_size),
        dropout=options.dropout_rate,
    )


def _layer_options(options: Seq2SeqParams) -> dict[str, Any]:
    return {
        "d_model": options.hidden_size,
        "nhead": options.num_heads,
        "dim_feedforward": options.filter_size,
        "dropout": options.dropout_rate,
        "layer_norm_eps": options.layer_norm_epsilon,
        "batch_first": True,
        "norm_first": False,
        "attention_dropout_rate": options.attention_dropout_rate,
        "use_projection_bias_in_attention": options.use_projection_bias_in_attention,
        "use_ffn_bias_in_attention": options.use_projection_bias_in_attention,
        "use_ffn_bias": options.use_ffn_bias,
        "attention_initializer": "xavier_uniform",
        "ffn_initializer": "xavier_uniform",
    }
