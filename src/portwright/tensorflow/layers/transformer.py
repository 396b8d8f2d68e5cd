"""Stacks of layers and the whole Transformer, with torch.nn's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import Unpack

from portwright.errors import UserError
from portwright.tensorflow.layers.activations import Activation
from portwright.tensorflow.layers.attention import KeyValue
from portwright.tensorflow.layers.base import BaseLayer, check_sizes
from portwright.tensorflow.layers.blocks import BlockOptions, TransformerDecoderLayer, TransformerEncoderLayer
from portwright.tensorflow.layers.norms import LayerNorm


class _Stack(BaseLayer):
    """Layers like the one given, each with weights of its own, named layers_0, layers_1, ..., and a norm at the end."""

    def __init__(
        self, layer: BaseLayer, num_layers: int, norm: BaseLayer | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**{"dtype": layer.policy, **kwargs})
        check_sizes(num_layers=num_layers)
        self.layers = [layer.clone(f"layers_{index}") for index in range(num_layers)]
        self.norm = norm


class TransformerEncoder(_Stack):
    """A stack of encoder layers; further keywords of a call are passed to each layer."""

    def __init__(
        self, encoder_layer: BaseLayer, num_layers: int, norm: BaseLayer | None = None, **kwargs: Any
    ) -> None:
        super().__init__(encoder_layer, num_layers, norm, **kwargs)

    def call(
        self,
        src: Any,
        mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
        *,
        training: bool = False,
        **of_layer: Any,
    ) -> Any:
        """Encodes [batch, sequence, width]."""
        x = src
        for layer in self.layers:
            x = layer(x, mask, src_key_padding_mask, is_causal, training=training, **of_layer)
        return x if self.norm is None else self.norm(x)


class TransformerDecoder(_Stack):
    """A stack of decoder layers; further keywords of a call are passed to each layer."""

    def __init__(
        self, decoder_layer: BaseLayer, num_layers: int, norm: BaseLayer | None = None, **kwargs: Any
    ) -> None:
        super().__init__(decoder_layer, num_layers, norm, **kwargs)

    def call(
        self,
        tgt: Any,
        memory: Any = None,
        *masks: Any,
        past_kv: list[KeyValue] | None = None,
        cache_present_kv: bool = False,
        training: bool = False,
        **of_layer: Any,
    ) -> Any:
        """Decodes; with `cache_present_kv` a pair comes back, of the output and of what to give as `past_kv` next."""
        if past_kv is not None and len(past_kv) != len(self.layers):
            raise UserError(
                f"past_kv has {len(past_kv)} entries for {len(self.layers)} layers.", "Give one a layer."
            )
        x, presents = tgt, []
        pasts: Sequence[KeyValue | None] = past_kv or [None] * len(self.layers)
        for layer, past in zip(self.layers, pasts, strict=True):
            x, present = layer(
                x, memory, *masks, past_kv=past, cache_present_kv=True, training=training, **of_layer
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
