"""Encoder and decoder layers: torch.nn's, with the model zoo's options as keywords."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from portwright.errors import UserError
from portwright.layers.activations import Activation
from portwright.layers.attention import RotaryEmbedding
from portwright.layers.block_parts import (
    Block,
    BlockOptions,
    Device,
    check_options,
    feed_forward_rate,
    given,
    make_norm,
)
from portwright.layers.cache import DecoderLayerCache, KVCache

LayerPast = DecoderLayerCache | tuple[Tensor, ...]
"""A cache to be added to, or keys and values: of the layer itself, then of the memory where it attends to one."""


class TransformerEncoderLayer(Block, nn.TransformerEncoderLayer):
    """torch.nn.TransformerEncoderLayer on fused kernels; `BlockOptions` names the further keywords.

    Arguments, parameter names and initial weights are torch's, and so are the numbers, but for queries to which every
    key is masked: those get zeros from attention. With a gated activation linear1 gives value and gate.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[BlockOptions],
    ) -> None:
        nn.Module.__init__(self)
        check_options(options)
        self.self_attn = self._make_attention(
            d_model, nhead, dropout, bias, batch_first, options, device, dtype
        )
        self._make_feed_forward(d_model, dim_feedforward, dropout, activation, bias, options, device, dtype)
        self.norm_first = norm_first
        self.norm1 = make_norm(d_model, layer_norm_eps, bias, options, device, dtype)
        self.norm2 = make_norm(d_model, layer_norm_eps, bias, options, device, dtype)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(feed_forward_rate(options, dropout, "use_ff_layer2_dropout"))
        self._set_activation(activation)
        # Makes a torch.nn.TransformerEncoder around this layer pass no nested tensors.
        self.activation_relu_or_gelu = 0

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        *,
        rotary_position_embedding_helper: RotaryEmbedding | None = None,
        self_attn_position_bias: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Encodes; masks are torch's, and may have four dimensions; `is_causal` needs no mask."""
        extras = given(
            rotary_position_embedding_helper=rotary_position_embedding_helper,
            position_bias=self_attn_position_bias,
            position_ids=position_ids,
        )
        x = src
        if self.norm_first:
            x = x + self._sa_block(self.norm1(x), src_mask, src_key_padding_mask, is_causal, **extras)
            return x + self._ff_block(self.norm2(x))
        x = self.norm1(x + self._sa_block(x, src_mask, src_key_padding_mask, is_causal, **extras))
        return self.norm2(x + self._ff_block(x))

    def _ff_block(self, x: Tensor) -> Tensor:
        return self.dropout2(self._feed(x))


class TransformerDecoderLayer(Block, nn.TransformerDecoderLayer):
    """torch.nn.TransformerDecoderLayer on fused kernels; `BlockOptions` names the further keywords.

    What the encoder layer's docstring says holds here. Without `add_cross_attention` there is no memory, and no norm2.
    """

    add_cross_attention: bool = True

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        add_cross_attention: bool = True,
        cross_attention_kv_dim: int | None = None,
        **options: Unpack[BlockOptions],
    ) -> None:
        nn.Module.__init__(self)
        check_options(options)
        self.add_cross_attention = add_cross_attention
        self.self_attn = self._make_attention(
            d_model, nhead, dropout, bias, batch_first, options, device, dtype
        )
        if add_cross_attention:
            self.multihead_attn = self._make_attention(
                d_model, nhead, dropout, bias, batch_first, options, device, dtype, cross_attention_kv_dim
            )
        self._make_feed_forward(d_model, dim_feedforward, dropout, activation, bias, options, device, dtype)
        self.norm_first = norm_first
        self.norm1 = make_norm(d_model, layer_norm_eps, bias, options, device, dtype)
        if add_cross_attention:
            self.norm2 = make_norm(d_model, layer_norm_eps, bias, options, device, dtype)
        self.norm3 = make_norm(d_model, layer_norm_eps, bias, options, device, dtype)
        self.dropout1 = nn.Dropout(dropout)
        if add_cross_attention:
            self.dropout2 = nn.Dropout(dropout)
        self.dropout3 = nn.Dropout(feed_forward_rate(options, dropout, "use_ff_layer2_dropout"))
        self._set_activation(activation)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        *,
        rotary_position_embedding_helper: RotaryEmbedding | None = None,
        past_kv: LayerPast | None = None,
        cache_present_kv: bool = False,
        self_attn_position_bias: Tensor | None = None,
        cross_attn_position_bias: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Any:
        """Decodes; with `cache_present_kv` it returns the output and the `past_kv` of the next call.

        With a cache `tgt` has only the new positions. Masks cover these, or these and the cached ones.
        """
        caches = _open_caches(past_kv, cache_present_kv)
        extras = given(
            rotary_position_embedding_helper=rotary_position_embedding_helper,
            position_bias=self_attn_position_bias,
            position_ids=position_ids,
            past_kv=None if caches is None else caches.self_attn,
        )
        cross_extras = given(
            position_bias=cross_attn_position_bias,
            past_kv=None if caches is None else caches.cross_attn,
            past_kv_self_attn=None if caches is None else False,
        )
        x = self._run(
            tgt,
            memory,
            (tgt_mask, tgt_key_padding_mask, tgt_is_causal),
            (memory_mask, memory_key_padding_mask, memory_is_causal),
            extras,
            cross_extras,
        )
        return (x, _close_caches(past_kv, caches)) if caches is not None and cache_present_kv else x

    def _run(
        self,
        x: Tensor,
        memory: Tensor | None,
        self_masks: tuple[Tensor | None, Tensor | None, bool],
        memory_masks: tuple[Tensor | None, Tensor | None, bool],
        extras: dict[str, Any],
        cross_extras: dict[str, Any],
    ) -> Tensor:
        if self.norm_first:
            x = x + self._sa_block(self.norm1(x), *self_masks, **extras)
            if self.add_cross_attention:
                x = x + self._mha_block(self.norm2(x), memory, *memory_masks, **cross_extras)
            return x + self._ff_block(self.norm3(x))
        x = self.norm1(x + self._sa_block(x, *self_masks, **extras))
        if self.add_cross_attention:
            x = self.norm2(x + self._mha_block(x, memory, *memory_masks, **cross_extras))
        return self.norm3(x + self._ff_block(x))

    def _mha_block(
        self,
        x: Tensor,
        mem: Tensor | None,
        attn_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        is_causal: bool = False,
        **extras: Any,
    ) -> Tensor:
        cache = extras.get("past_kv")
        if mem is None and (cache is None or cache.length == 0):
            raise UserError(
                "The decoder layer attends to a memory and got none.",
                "Give memory, or make the layer with add_cross_attention=False.",
            )
        attended = self.multihead_attn(
            x,
            mem,
            mem,
            attn_mask=attn_mask,
            key_padding_mask=key_padding_mask,
            is_causal=is_causal,
            need_weights=False,
            **extras,
        )[0]
        return self.dropout2(attended)

    def _ff_block(self, x: Tensor) -> Tensor:
        return self.dropout3(self._feed(x))


class GPTJDecoderLayer(TransformerDecoderLayer):
    """A decoder layer in which attention and feed-forward both read the normed input and are added to it together.

    With `use_untied_layer_norm` the feed-forward has a norm of its own (GPT-NeoX), else they share norm1 (GPT-J).
    The other arguments are TransformerDecoderLayer's, but the activation is gelu unless given.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        use_untied_layer_norm: bool = False,
        *,
        activation: str | Activation = "gelu",
        **kwargs: Any,
    ) -> None:
        for name in ("add_cross_attention", "norm_first"):
            if name in kwargs and kwargs.pop(name) != (name == "norm_first"):
                raise UserError(
                    f"A GPTJDecoderLayer was asked for with another {name}.",
                    "It norms first and has no memory; use TransformerDecoderLayer for others.",
                )
        super().__init__(
            d_model, nhead, activation=activation, norm_first=True, add_cross_attention=False, **kwargs
        )
        self.use_untied_layer_norm = use_untied_layer_norm
        if not use_untied_layer_norm:
            self.register_module("norm3", None)

    def _run(
        self,
        x: Tensor,
        memory: Tensor | None,
        self_masks: tuple[Tensor | None, Tensor | None, bool],
        memory_masks: tuple[Tensor | None, Tensor | None, bool],
        extras: dict[str, Any],
        cross_extras: dict[str, Any],
    ) -> Tensor:
        normed = self.norm1(x)
        attended = self._sa_block(normed, *self_masks, **extras)
        return x + self._ff_block(self.norm3(x) if self.use_untied_layer_norm else normed) + attended


def _open_caches(past_kv: LayerPast | None, wanted: bool) -> DecoderLayerCache | None:
    if past_kv is None:
        return DecoderLayerCache(KVCache(), KVCache()) if wanted else None
    if isinstance(past_kv, DecoderLayerCache):
        return past_kv
    if len(past_kv) not in (2, 4):
        raise UserError(
            f"past_kv holds {len(past_kv)} tensors.",
            "Give keys and values, then those of the memory if there is one.",
        )
    memory_kv = (past_kv[2], past_kv[3]) if len(past_kv) == 4 else ()
    return DecoderLayerCache(KVCache((past_kv[0], past_kv[1])), KVCache(memory_kv))


def _close_caches(past_kv: LayerPast | None, caches: DecoderLayerCache) -> LayerPast:
    """The caches in the form of `past_kv`: the cache itself, or all keys and values."""
    if isinstance(past_kv, DecoderLayerCache):
        return past_kv
    return (*caches.self_attn.held, *caches.cross_attn.held)
