"""BERT's encoder, for BERT itself, RoBERTa (positions begin after padding's) and Linformer (mixed keys and values)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from portwright.errors import UserError, suggest
from portwright.layers import EmbeddingLayer, TransformerEncoder, TransformerEncoderLayer, get_initializer
from portwright.layers.block_parts import BlockOptions
from portwright.layers.linformer import SHARE_STYLES, LinformerAttention

ZOO_SHARE_STYLES = {  # the model zoo's name of a Linformer variant: ours
    "linformer": "no-share",
    "linformer-shared-heads": "share-headwise",
    "linformer-shared-kv": "share-kv",
    "linformer-shared-layers": "share-layerwise",
}


class Bert(nn.Module):
    """Embeddings of tokens, positions and segments, and encoder layers with a norm after each part.

    `params` is the model section of params.yaml. With `add_pooler` there is a dense layer over the first token.
    """

    def __init__(self, params: Mapping[str, Any], add_pooler: bool = True) -> None:
        super().__init__()
        width, heads = params["hidden_size"], params["num_heads"]
        if width % heads:
            raise UserError(
                f"model.hidden_size is {width} and num_heads {heads}.", "Let the heads divide the width."
            )
        self.hidden_size: int = width
        self.pad_token_id: int = params["pad_token_id"]
        self.positions_after_padding: bool = params["positions_after_padding"]
        self.max_position_embeddings: int = params["max_position_embeddings"]
        drawn = truncated_normal(params)
        freezes = params.get("freeze_padding_embedding", False)
        self.embeddings = EmbeddingLayer(
            params["vocab_size"],
            width,
            pad_token_id=self.pad_token_id if freezes else None,
            embeddings_initializer=drawn,
            max_position_embeddings=self.max_position_embeddings,
            position_embeddings_initializer=drawn,
            num_segments=params["num_segments"] if params["use_segment_embedding"] else None,
            segment_embeddings_initializer=drawn,
        )
        self._zero_padding(self.embeddings.word_embeddings, "vocab_size", False)
        if self.positions_after_padding:
            self._zero_padding(self.embeddings.position_embeddings, "max_position_embeddings", freezes)
        self.embeddings_norm = nn.LayerNorm(width, eps=params["layer_norm_epsilon"])
        self.embeddings_dropout = nn.Dropout(params["dropout_rate"])
        options: BlockOptions = {
            "attention_dropout_rate": params["attention_dropout_rate"],
            "attention_initializer": drawn,
            "ffn_initializer": drawn,
            "use_ff_layer1_dropout": False,
        }
        options.update(_attention_options(params))
        layer = TransformerEncoderLayer(
            width,
            heads,
            params["filter_size"],
            params["dropout_rate"],
            params["encoder_nonlinearity"],
            params["layer_norm_epsilon"],
            batch_first=True,
            **options,
        )
        # torch's encoder would zero padded positions, in evaluation only; BERT's does not.
        self.encoder = TransformerEncoder(layer, params["num_hidden_layers"], enable_nested_tensor=False)
        for item in self.encoder.layers:  # copies of one layer until now
            item.reset_parameters()
        self._share_mixtures(params)
        self.pooler = Pooler(width, drawn) if add_pooler else None

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """The last hidden states, [batch, sequence, width]; without `attention_mask` nothing is padding."""
        if position_ids is None and self.positions_after_padding:
            position_ids = self.count_positions(input_ids)
        if token_type_ids is None and self.embeddings.segment_embeddings is not None:
            token_type_ids = torch.zeros_like(input_ids)
        elif self.embeddings.segment_embeddings is None:
            token_type_ids = None
        x = self.embeddings(input_ids, token_type_ids, position_ids=position_ids)
        x = self.embeddings_dropout(self.embeddings_norm(x))
        padding = None if attention_mask is None else attention_mask == 0
        return self.encoder(x, src_key_padding_mask=padding)

    forward = encode

    def count_positions(self, input_ids: Tensor) -> Tensor:
        """RoBERTa's positions: those of tokens count from pad_token_id + 1, that of padding is pad_token_id."""
        length, first = input_ids.shape[-1], self.pad_token_id + 1
        if length + first > self.max_position_embeddings:
            raise UserError(
                f"{length} tokens need {length + first} positions, and model.max_position_embeddings is {self.max_position_embeddings}.",
                f"Give at most {max(0, self.max_position_embeddings - first)} tokens: positions count from pad_token_id + 1.",
            )
        is_token = (input_ids != self.pad_token_id).to(torch.int32)
        return is_token.cumsum(-1) * is_token + self.pad_token_id

    def _zero_padding(self, table: nn.Module | None, key: str, freezes: bool) -> None:
        """Sets padding's embedding to zeros; with `freezes` it has no gradient either."""
        assert isinstance(table, nn.Embedding)
        if self.pad_token_id >= table.num_embeddings:
            raise UserError(
                f"model.pad_token_id is {self.pad_token_id} and {key} {table.num_embeddings}.",
                f"Padding is one of them: raise {key}, or give another token.",
            )
        if freezes:
            table.padding_idx = self.pad_token_id
        with torch.no_grad():
            table.weight[self.pad_token_id].zero_()

    def _share_mixtures(self, params: Mapping[str, Any]) -> None:
        """Gives every layer the same mixing matrix where all share one."""
        attentions: list[Any] = [layer.self_attn for layer in self.encoder.layers]
        first = attentions[0]
        if not isinstance(first, LinformerAttention) or first.param_share_style != "share-layerwise":
            return
        matrix = torch.empty(params["projected_dims"], self.max_position_embeddings)
        mixtures = nn.Parameter(nn.init.xavier_uniform_(matrix)[None])
        for attention in attentions:
            attention.tie_kernel_projections(mixtures)


class Pooler(nn.Module):
    """A dense layer and tanh on the first token's state."""

    def __init__(self, width: int, initializer: Mapping[str, Any]) -> None:
        super().__init__()
        self.dense = make_linear(width, width, initializer)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.tanh(self.dense(hidden[:, 0]))


def truncated_normal(params: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": "truncated_normal", "std": params["initializer_range"]}


def make_linear(
    width_in: int, width_out: int, initializer: Mapping[str, Any], bias: bool = True
) -> nn.Linear:
    """A dense layer with weights from an initializer, and biases of zero."""
    linear = nn.Linear(width_in, width_out, bias=bias)
    get_initializer(initializer)(linear.weight.detach())
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear


def _attention_options(params: Mapping[str, Any]) -> BlockOptions:
    style = params.get("attention_style")
    if style is None:
        return {}
    if style not in ZOO_SHARE_STYLES and style not in SHARE_STYLES:
        raise UserError(f"model.attention_style is {style!r}.", suggest(str(style), ZOO_SHARE_STYLES))
    if params["projected_dims"] > params["max_position_embeddings"]:
        raise UserError(
            f"model.projected_dims is {params['projected_dims']} and max_position_embeddings {params['max_position_embeddings']}.",
            "Linformer mixes keys into fewer than there are: take no more than that.",
        )
    return {
        "attention_module": "linformer_attention",
        "extra_attention_params": {
            "kv_len": params["max_position_embeddings"],
            "reduced_kv_len_dim": params["projected_dims"],
            "param_share_style": ZOO_SHARE_STYLES.get(style, style),
        },
    }
