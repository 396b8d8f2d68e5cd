"""Stacks of layers and the whole Transformer, with torch.nn's arguments."""

from __future__ import annotations

from typing import Any

from typing_extensions import Unpack

from portwright.errors import UserError
from portwright.tensorflow.layers.activations import Activation
from portwright.tensorflow.layers.attention import KeyValue
from portwright.tensorflow.layers.base import BaseLayer, check_sizes
from portwright.tensorflow.layers.block_parts import BlockOptions
from portwright.tensorflow.layers.blocks import TransformerDecoderLayer, TransformerEncoderLayer
from portwright.tensorflow.layers.norms import LayerNorm


class TransformerEncoder(BaseLayer):
    """Layers like the one given, each with weights of its own, named layers_0, layers_1, ..., and a norm at the end."""

    def __init__(
        self, encoder_layer: BaseLayer, num_layers: int, norm: BaseLayer | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**{"dtype": encoder_layer.policy, **kwargs})
        check_sizes(num_layers=num_layers)
        self.layers = [encoder_layer.clone(f"layers_{index}") for index in range(num_layers)]
        self.norm = norm

    def call(
        self,
        src: Any,
        mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
        *,
        rotary_position_embedding_helper: Any = None,
        self_attn_position_bias: Any = None,
        position_ids: Any = None,
        training: bool = False,
    ) -> Any:
        """Encodes [batch, sequence, width]."""
        x = src
        for layer in self.layers:
            x = layer(
                x,
                src_mask=mask,
                src_key_padding_mask=src_key_padding_mask,
                is_causal=is_causal,
                rotary_position_embedding_helper=rotary_position_embedding_helper,
                self_attn_position_bias=self_attn_position_bias,
                position_ids=position_ids,
                training=training,
            )
        return x if self.norm is None else self.norm(x)


class TransformerDecoder(BaseLayer):
    """Layers like the one given, each with weights of its own, named layers_0, layers_1, ..., and a norm at the end."""

    def __init__(
        self, decoder_layer: BaseLayer, num_layers: int, norm: BaseLayer | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**{"dtype": decoder_layer.policy, **kwargs})
        check_sizes(num_layers=num_layers)
        self.layers = [decoder_layer.clone(f"layers_{index}") for index in range(num_layers)]
        self.norm = norm

    def call(
        self,
        tgt: Any,
        memory: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        *,
        past_kv: list[KeyValue] | None = None,
        cache_present_kv: bool = False,
        rotary_position_embedding_helper: Any = None,
        self_attn_position_bias: Any = None,
        cross_attn_position_bias: Any = None,
        position_ids: Any = None,
        training: bool = False,
    ) -> Any:
        """Decodes; with `cache_present_kv` a pair comes back, of the output and of what to give as `past_kv` next."""
        if past_kv is not None and len(past_kv) != len(self.layers):
            raise UserError(
                f"past_kv has {len(past_kv)} entries for {len(self.layers)} layers.", "Give one a layer."
            )
        x = tgt
        presents = []
        for index, layer in enumerate(self.layers):
            x, present = layer(
                x,
                memory,
                tgt_mask=tgt_mask,
                memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
                tgt_is_causal=tgt_is_causal,
                past_kv=None if past_kv is None else past_kv[index],
                cache_present_kv=True,
                rotary_position_embedding_helper=rotary_position_embedding_helper,
                self_attn_position_bias=self_attn_position_bias,
                cross_attn_position_bias=cross_attn_position_bias,
                position_ids=position_ids,
                training=training,
            )
            presents.append(present)
        x = x if self.norm is None else self.norm(x)
        return (x, presents) if cache_present_kv else x


class Transformer(BaseLayer):
    """torch.nn.Transformer: an encoder, and a decoder that attends to it; `BlockOptions` names further keywords."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        name: str | None = None,
        dtype: Any = None,
        **options: Unpack[BlockOptions],
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        of_layer = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias)
        self.d_model = d_model
        self.encoder = TransformerEncoder(
            TransformerEncoderLayer(*of_layer, dtype=self.policy, **options),
            num_encoder_layers,
            LayerNorm(layer_norm_eps, bias=bias, name="norm", dtype=self.policy),
            name="encoder",
        )
        self.decoder = TransformerDecoder(
            TransformerDecoderLayer(*of_layer, dtype=self.policy, **options),
            num_decoder_layers,
            LayerNorm(layer_norm_eps, bias=bias, name="norm", dtype=self.policy),
            name="decoder",
        )

    def call(
        self,
        src: Any,
        tgt: Any,
        src_mask: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        src_key_padding_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        src_is_causal: bool = False,
        tgt_is_causal: bool = False,
        *,
        training: bool = False,
    ) -> Any:
        """Encodes `src` and decodes `tgt` with it."""
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise UserError(
                f"src and tgt have shapes {src.shape} and {tgt.shape}.", f"d_model is {self.d_model}."
            )
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal, training=training)
        return self.decoder(
            tgt,
            memory,
            tgt_mask,
            memory_mask,
            tgt_key_padding_mask,
            memory_key_padding_mask,
            tgt_is_causal,
            training=training,
        )
