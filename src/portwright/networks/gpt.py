"""Decoders that predict the next token: GPT-2, GPT-3 and GPT-J.

Shapes: b sequences, t new tokens, k tokens that can be attended to (cached ones first), d hidden width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from portwright.errors import UserError
from portwright.job.model_params import GptDecoderParams
from portwright.layers import (
    DecoderLayerCache,
    EmbeddingLayer,
    GPTJDecoderLayer,
    TransformerDecoder,
    TransformerDecoderLayer,
)
from portwright.layers.initializers import InitializerSpec, get_initializer
from portwright.layers.plain_ops import needs_plain_ops
from portwright.networks.token_loss import head_loss


class Gpt(nn.Module):
    """A decoder whose layers norm their input, with learned positions; with `rotary_dim` GPT-J's layers and positions.

    `params` is the model section; what it leaves out has GptDecoderParams' default. With
    `share_embedding_weights` the output layer is the word embedding, and `head` does not exist.
    """

    text_kind = "gpt"  # the kind of tokenizer that its text is read with
    head_bias: nn.Parameter | None

    def __init__(self, params: Mapping[str, Any], device: torch.device | str | None = None) -> None:
        super().__init__()
        chosen = {**_DEFAULTS, **params}
        width, depth, heads = chosen["hidden_size"], chosen["num_hidden_layers"], chosen["num_heads"]
        self.vocab_size: int = chosen["vocab_size"]
        self.rotary_dim: int | None = chosen["rotary_dim"]
        _check_sizes(chosen)
        self.window: int | None = chosen["attention_sliding_window_length"]
        self.every_other_is_dense: bool = chosen["sliding_window_every_other_decoder_layer"]
        self.loss_scaling: str = chosen["loss_scaling"]
        self.loss_weight: float = chosen["loss_weight"]
        first, last, of_words = _initializers(chosen)
        embedding_rate = chosen["embedding_dropout_rate"]
        self.embeddings = EmbeddingLayer(
            chosen["vocab_size"],
            width,
            embeddings_initializer=of_words,
            max_position_embeddings=chosen["max_position_embeddings"],
            position_embedding_type="learned" if self.rotary_dim is None else "rotary",
            position_embeddings_initializer=of_words,
            rotary_dim=self.rotary_dim,
            dropout=chosen["dropout_rate"] if embedding_rate is None else embedding_rate,
            device=device,
        )
        options: dict[str, Any] = {
            "dim_feedforward": chosen["filter_size"],
            "dropout": chosen["dropout_rate"],
            "activation": chosen["nonlinearity"],
            "layer_norm_eps": chosen["layer_norm_epsilon"],
            "batch_first": True,
            "attention_type": chosen["attention_type"],
            "attention_dropout_rate": chosen["attention_dropout_rate"],
            "use_ffn_bias": chosen["use_ffn_bias"],
            "attention_initializer": first,
            "attention_output_layer_initializer": last,
            "ffn_initializer": first,
            "ffn_output_layer_initializer": last,
            "use_ff_layer1_dropout": False,
            "device": device,
        }
        for name in ("use_projection_bias_in_attention", "use_ffn_bias_in_attention"):
            # By default GPT-J's attention has no biases.
            options[name] = self.rotary_dim is None if chosen[name] is None else chosen[name]
        layer: TransformerDecoderLayer
        if self.rotary_dim is None:
            layer = TransformerDecoderLayer(
                width, heads, norm_first=True, add_cross_attention=False, **options
            )
        else:
            layer = GPTJDecoderLayer(width, heads, **options)
        norm = nn.LayerNorm(width, eps=chosen["layer_norm_epsilon"], device=device)
        self.decoder = TransformerDecoder(layer, depth, norm)
        for copied in self.decoder.layers:
            copied.reset_parameters()  # the layers are copies of one layer with its weights
        has_bias = chosen["use_bias_in_output"]
        self.is_tied: bool = chosen["share_embedding_weights"]
        if self.is_tied:
            bias = nn.Parameter(torch.zeros(chosen["vocab_size"], device=device)) if has_bias else None
            self.register_parameter("head_bias", bias)
        else:
            self.head = nn.Linear(width, chosen["vocab_size"], bias=has_bias, device=device)
            get_initializer(first)(self.head.weight.detach())
            if has_bias:
                nn.init.zeros_(self.head.bias)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        past_kv: Sequence[DecoderLayerCache] | None = None,
        *,
        labels: Tensor | None = None,
        label_weights: Tensor | None = None,
    ) -> Tensor:
        """Gives the logits [b, t, vocabulary] of the token after each, or with `labels` the loss, without logits.

        `attention_mask` [b, k] is 1 for tokens and 0 for padding. Without `position_ids`, positions count from the
        cache's end, padding included, as in HuggingFace's forward. With `document_ids` [b, t] tokens do not see other
        documents, and positions restart with each. `past_kv`, from `make_cache`, is extended in place. `label_weights`
        [b, t] says how much each label counts; labels of -100 do not count.
        """
        hidden = self.hidden(input_ids, attention_mask, position_ids, document_ids, past_kv)
        weight, bias = self.head_weight()
        if labels is None:
            return F.linear(hidden, weight, bias)
        check_token_shape("labels", labels, input_ids)
        return head_loss(
            hidden,
            weight,
            bias,
            labels,
            label_weights,
            loss_scaling=self.loss_scaling,
            loss_weight=self.loss_weight,
        )

    def hidden(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        past_kv: Sequence[DecoderLayerCache] | None = None,
    ) -> Tensor:
        """Gives the last hidden states [b, t, d]; the arguments are those of `forward`."""
        if input_ids.dim() != 2:
            raise UserError(
                f"input_ids has shape {tuple(input_ids.shape)}.",
                "Give it [batch, tokens]; [None] adds a batch of one.",
            )
        length, num_past = input_ids.shape[1], past_kv[0].self_attn.length if past_kv else 0
        mask: Tensor | None = None  # with None the kernel hides later tokens
        if document_ids is not None:
            if num_past:
                raise UserError(
                    f"document_ids were given with a cache of {num_past} tokens.",
                    "Generate one document at a time, or give all tokens at once.",
                )
            check_token_shape("document_ids", document_ids, input_ids)
            mask = document_mask(document_ids)
            if position_ids is None:  # how many tokens of its own document come before each
                position_ids = (~mask[:, 0]).sum(dim=-1) - 1
        elif needs_plain_ops(input_ids):
            mask = banded_mask(length, num_past, num_past + length, input_ids.device)
        hides_padding = padding_mask(attention_mask, input_ids, num_past)
        x = self.embeddings(input_ids, past_length=num_past, position_ids=position_ids)
        options: dict[str, Any] = {
            "tgt_key_padding_mask": hides_padding,
            "past_kv": past_kv,
            "rotary_position_embedding_helper": self.embeddings.get_rope_helper(),
            "position_ids": None if self.rotary_dim is None else position_ids,
        }
        if self.window is not None:
            banded = banded_mask(length, num_past, self.window, input_ids.device)
            return self._decode_banded(x, mask, banded if mask is None else banded | mask, options)
        return self.decoder(x, tgt_mask=mask, tgt_is_causal=mask is None, **options)

    def head_weight(self) -> tuple[Tensor, Tensor | None]:
        """Gives the weight [vocabulary, d] and the bias of the output layer, which may be the word embedding."""
        if self.is_tied:
            return self.embeddings.weight, self.head_bias
        return self.head.weight, self.head.bias

    def make_cache(self) -> list[DecoderLayerCache]:
        """Empty caches, one a layer, to pass as `past_kv` at every step of a generation."""
        return self.decoder.make_cache()

    def _decode_banded(
        self, x: Tensor, mask: Tensor | None, banded: Tensor, options: dict[str, Any]
    ) -> Tensor:
        """Runs the decoder, whose dense and banded layers need different masks."""
        past_kv = options.pop("past_kv")
        for index, layer in enumerate(self.decoder.layers):
            is_dense = self.every_other_is_dense and index % 2 == 0
            chosen = mask if is_dense else banded
            cached = {} if past_kv is None else {"past_kv": past_kv[index]}
            x = layer(x, tgt_mask=chosen, tgt_is_causal=chosen is None, **options, **cached)
        norm: Any = self.decoder.norm
        return norm(x)


_DEFAULTS: dict[str, Any] = {
    name: field.get_default(call_default_factory=True)
    for name, field in GptDecoderParams.model_fields.items()
}


def _check_sizes(params: Mapping[str, Any]) -> None:
    width, heads, rotary_dim = params["hidden_size"], params["num_heads"], params["rotary_dim"]
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_heads", "filter_size"):
        if not isinstance(params[name], int) or params[name] < 1:
            raise UserError(f"model.{name} is {params[name]!r}.", "Give a whole number above 0.")
    if width % heads:
        raise UserError(
            f"model.hidden_size is {width} and num_heads {heads}.", "Take heads that divide the width."
        )
    if rotary_dim is not None and rotary_dim > width // heads:
        raise UserError(
            f"model.rotary_dim is {rotary_dim}, and a head is {width // heads} wide.",
            "Take no more than that.",
        )


def _initializers(params: Mapping[str, Any]) -> tuple[InitializerSpec, InitializerSpec, InitializerSpec]:
    """Initializers of matrices in general, of those that add to the residual stream, and of embeddings.

    The deeper the model, the smaller the matrices that add to the residual stream. Without `initializer_range` the
    numbers are those of GPT-J's code (mesh-transformer-jax).
    """
    width, depth, std = params["hidden_size"], params["num_hidden_layers"], params["initializer_range"]
    if std is None:
        return (
            {"name": "truncated_normal", "std": 1 / math.sqrt(width)},
            {"name": "truncated_normal", "std": 2 / (depth * math.sqrt(width))},
            {"name": "truncated_normal", "std": 1 / math.sqrt(params["vocab_size"])},
        )
    everywhere = {"name": "normal", "std": std}
    return everywhere, {"name": "normal", "std": std / math.sqrt(2 * depth)}, everywhere


# Masks of tokens that the decoder must not see: True is hidden.


def banded_mask(num_queries: int, num_past: int, window: int, device: torch.device) -> Tensor:
    """The mask [queries, keys] by which each token sees the `window` latest ones, itself included."""
    keys = torch.arange(num_past + num_queries, device=device)
    distance = keys[num_past:, None] - keys[None, :]
    return (distance < 0) | (distance >= window)


def document_mask(document_ids: Tensor) -> Tensor:
    """The causal mask [batch, 1, queries, keys] that also hides other documents."""
    length = document_ids.shape[1]
    positions = torch.arange(length, device=document_ids.device)
    is_later = positions[None, :] > positions[:, None]
    is_other = document_ids[:, :, None] != document_ids[:, None, :]
    return (is_later | is_other)[:, None]


def padding_mask(attention_mask: Tensor | None, input_ids: Tensor, num_past: int) -> Tensor | None:
    """The mask [batch, keys] that hides padding, from a numeric mask in which 1 is a token and 0 padding."""
    if attention_mask is None:
        return None
    wanted = (input_ids.shape[0], num_past + input_ids.shape[1])
    if tuple(attention_mask.shape) != wanted:
        raise UserError(
            f"attention_mask has shape {tuple(attention_mask.shape)}.",
            f"Give it {wanted}: one for each token{', cached ones first' if num_past else ''}.",
        )
    return attention_mask == 0


def check_token_shape(name: str, given: Tensor, input_ids: Tensor) -> None:
    """Refuses a tensor without one value for each token."""
    if given.shape != input_ids.shape:
        raise UserError(
            f"{name} has shape {tuple(given.shape)} and input_ids {tuple(input_ids.shape)}.",
            "Give one for each token.",
        )
