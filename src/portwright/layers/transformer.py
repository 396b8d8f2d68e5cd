"""Stacks of layers and the whole Transformer, as torch.nn has them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

from portwright.errors import UserError
from portwright.layers.activations import Activation
from portwright.layers.attention import RotaryEmbedding
from portwright.layers.bias import merge_for_layers, to_bias
from portwright.layers.block_parts import (
    INITIALIZER_OPTIONS,
    Block,
    BlockOptions,
    Device,
    check_options,
    given,
)
from portwright.layers.blocks import LayerPast, TransformerDecoderLayer, TransformerEncoderLayer
from portwright.layers.cache import DecoderLayerCache, KVCache
from portwright.layers.masks import generate_square_subsequent_mask


class TransformerEncoder(nn.TransformerEncoder):
    """torch.nn.TransformerEncoder over layers of this package, of torch's or of your own.

    No nested tensors are used, whatever `enable_nested_tensor` says. But where torch's encoder would use them, which zeroes
    padded positions, these are zeroed here too. Masks are merged once for all layers.
    """

    def __init__(
        self,
        encoder_layer: nn.Module,
        num_layers: int,
        norm: nn.Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        nn.Module.__init__(self)
        self.layers = _clone(encoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm
        self.enable_nested_tensor = enable_nested_tensor
        self.use_nested_tensor = enable_nested_tensor and _torch_would_nest(encoder_layer)
        self.mask_check = mask_check

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
        *,
        rotary_position_embedding_helper: RotaryEmbedding | None = None,
        self_attn_position_bias: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Encodes; `is_causal` needs no mask, and with None the mask's values are not tested for being causal."""
        zero_padding = self._zeroes_padding(src, mask, src_key_padding_mask)
        output, causal, padding = src, bool(is_causal), src_key_padding_mask
        if all(_takes_merged(layer) for layer in self.layers):
            mask, padding, causal = _merge(self.layers, src, mask, padding, causal)
        else:  # other layers get the masks that torch's encoder gives them
            mask = None if mask is None else _as_float(mask, src)
            padding = None if padding is None else _as_float(padding, src)
        extras = given(
            rotary_position_embedding_helper=rotary_position_embedding_helper,
            self_attn_position_bias=self_attn_position_bias,
            position_ids=position_ids,
        )
        for layer in self.layers:
            output = layer(output, src_mask=mask, is_causal=causal, src_key_padding_mask=padding, **extras)
        if zero_padding and src_key_padding_mask is not None:
            output = _zero_aligned_padding(output, src_key_padding_mask)
        return output if self.norm is None else self.norm(output)

    def _zeroes_padding(self, src: Tensor, mask: Tensor | None, padding: Tensor | None) -> bool:
        """Whether torch's encoder would use nested tensors here, which zeroes padding."""
        if not self.use_nested_tensor or padding is None or mask is not None or src.dim() != 3:
            return False
        if (
            torch.compiler.is_compiling()
            or torch.is_autocast_enabled()
            or not torch.backends.mha.get_fastpath_enabled()
        ):
            return False
        first = self.layers[0]
        if first.training:
            return False
        has_grad = src.requires_grad or any(parameter.requires_grad for parameter in first.parameters())
        return not (torch.is_grad_enabled() and has_grad)


class TransformerDecoder(nn.TransformerDecoder):
    """torch.nn.TransformerDecoder over layers of this package, of torch's or of your own."""

    def __init__(self, decoder_layer: nn.Module, num_layers: int, norm: nn.Module | None = None) -> None:
        nn.Module.__init__(self)
        self.layers = _clone(decoder_layer, num_layers)
        self.num_layers = num_layers
        self.norm = norm

    def make_cache(self) -> list[DecoderLayerCache]:
        """Empty caches, one a layer, to pass as `past_kv` at every step of a generation."""
        return [DecoderLayerCache(KVCache(), KVCache()) for _ in self.layers]

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
        *,
        rotary_position_embedding_helper: RotaryEmbedding | None = None,
        past_kv: Sequence[LayerPast] | None = None,
        cache_present_kv: bool = False,
        self_attn_position_bias: Tensor | None = None,
        cross_attn_position_bias: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Any:
        """Decodes; with `cache_present_kv` it returns the output and the `past_kv` of the next call."""
        if past_kv is not None and len(past_kv) != len(self.layers):
            raise UserError(
                f"past_kv has {len(past_kv)} entries for {len(self.layers)} layers.", "Give one a layer."
            )
        output, causal, padding = tgt, bool(tgt_is_causal), tgt_key_padding_mask
        if past_kv is None and all(_takes_merged(layer) for layer in self.layers):
            tgt_mask, padding, causal = _merge(self.layers, tgt, tgt_mask, padding, causal)
        extras = given(
            rotary_position_embedding_helper=rotary_position_embedding_helper,
            self_attn_position_bias=self_attn_position_bias,
            cross_attn_position_bias=cross_attn_position_bias,
            position_ids=position_ids,
            cache_present_kv=cache_present_kv or None,
        )
        presents: list[LayerPast] = []
        for index, layer in enumerate(self.layers):
            if past_kv is not None:
                extras["past_kv"] = past_kv[index]
            output = layer(
                output,
                memory,
                tgt_mask=tgt_mask,
                memory_mask=memory_mask,
                tgt_key_padding_mask=padding,
                memory_key_padding_mask=memory_key_padding_mask,
                tgt_is_causal=causal,
                memory_is_causal=memory_is_causal,
                **extras,
            )
            if cache_present_kv:
                output, present = output
                presents.append(present)
        if self.norm is not None:
            output = self.norm(output)
        return (output, presents) if cache_present_kv else output


class Transformer(nn.Transformer):
    """torch.nn.Transformer; `BlockOptions` names the keywords that its layers take beyond torch's."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = F.relu,
        custom_encoder: Any | None = None,
        custom_decoder: Any | None = None,
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
        of_layer = (
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            batch_first,
            norm_first,
        )
        placed: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        if custom_encoder is None:
            layer = TransformerEncoderLayer(*of_layer, **placed, **options)
            norm = nn.LayerNorm(d_model, eps=layer_norm_eps, **placed)
            custom_encoder = TransformerEncoder(layer, num_encoder_layers, norm)
        self.encoder = custom_encoder
        if custom_decoder is None:
            decoder_layer = TransformerDecoderLayer(*of_layer, **placed, **options)
            norm = nn.LayerNorm(d_model, eps=layer_norm_eps, **placed)
            custom_decoder = TransformerDecoder(decoder_layer, num_decoder_layers, norm)
        self.decoder = custom_decoder
        if all(options.get(name) is None for name in INITIALIZER_OPTIONS):
            self._reset_parameters()  # as in torch: xavier_uniform for all matrices, in custom parts too
        else:
            for part in (*self.encoder.modules(), *self.decoder.modules()):
                if isinstance(part, Block):
                    part.reset_parameters()
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """Encodes `src` and decodes `tgt` with it."""
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise UserError(
                f"src and tgt have widths {src.shape[-1]} and {tgt.shape[-1]}.", f"d_model is {self.d_model}."
            )
        batch_dim = 0 if self.batch_first else 1
        if src.dim() == 3 and tgt.dim() == 3 and src.shape[batch_dim] != tgt.shape[batch_dim]:
            raise UserError(
                f"src and tgt have batches of {src.shape[batch_dim]} and {tgt.shape[batch_dim]}.",
                f"Give both the same; batch_first is {self.batch_first}.",
            )
        memory = self.encoder(
            src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, **given(is_causal=src_is_causal)
        )
        return self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            **given(tgt_is_causal=tgt_is_causal, memory_is_causal=memory_is_causal or None),
        )

    @staticmethod
    def generate_square_subsequent_mask(
        sz: int, device: Device = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The causal mask: -inf is masked, 0 attended."""
        return generate_square_subsequent_mask(sz, device=device, dtype=dtype)


def _clone(layer: nn.Module, count: int) -> nn.ModuleList:
    return nn.ModuleList(copy.deepcopy(layer) for _ in range(count))


def _as_float(mask: Tensor, like: Tensor) -> Tensor:
    return to_bias(mask, like.dtype) if mask.dtype == torch.bool else mask


def _merge(
    layers: nn.ModuleList, x: Tensor, mask: Tensor | None, padding: Tensor | None, is_causal: bool
) -> tuple[Tensor | None, Tensor | None, bool]:
    if padding is None or len(layers) == 0:
        return mask, padding, is_causal
    attention: Any = layers[0].self_attn
    seq_first = x.dim() == 3 and not attention.batch_first
    x = x.transpose(0, 1) if seq_first else x
    batch = x.shape[0] if x.dim() == 3 else 1
    return merge_for_layers(mask, padding, is_causal, x=x, batch=batch, heads=attention.num_heads)


def _takes_merged(layer: nn.Module) -> bool:
    """Whether a layer takes merged masks: only our own code is between its arguments and our attention."""
    own = TransformerDecoderLayer if isinstance(layer, TransformerDecoderLayer) else TransformerEncoderLayer
    kept = isinstance(layer, Block) and all(
        getattr(type(layer), name) is getattr(own, name) for name in ("forward", "_sa_block")
    )
    return (
        kept
        and "forward" not in layer.__dict__
        and type(layer.self_attn).__module__.startswith("portwright.")
    )


def _torch_would_nest(layer: nn.Module) -> bool:
    """Whether torch's encoder would use nested tensors for such a layer, by torch's conditions in its order."""
    if not isinstance(layer, nn.TransformerEncoderLayer):
        return False
    attention: Any = layer.self_attn
    activation: Any = layer.activation
    return (
        not layer.norm_first
        and attention.batch_first
        and attention._qkv_same_embed_dim
        and attention.in_proj_bias is not None
        and (activation in (F.relu, F.gelu) or isinstance(activation, nn.ReLU | nn.GELU))
        and getattr(layer.norm1, "eps", None) == getattr(layer.norm2, "eps", None)
        and attention.num_heads % 2 == 0
    )


def _zero_aligned_padding(output: Tensor, padding: Tensor) -> Tensor:
    """Zeroes padded positions if in every row padding comes last: only then torch uses nested tensors."""
    is_padding = padding != 0
    is_aligned = (is_padding[:, 1:] | ~is_padding[:, :-1]).all()
    return output.masked_fill((is_padding & is_aligned)[:, :, None], 0.0)
