"""The model zoo's layers: ours with the zoo's defaults, argument order and results.

Against torch.nn's, and ours, they take the batch first, use gelu, have no biases but in norms, give a bare tensor
unless more is asked for, and stacks draw each layer's weights anew. Releases from 2.0 on also drop out between the
two products of the feed-forward: `LAYERS_1` and `LAYERS_2` say which class a release means by a name. Both read
checkpoints of either, whose queries, keys and values are three matrices.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

from torch import Tensor, nn

from portwright import layers
from portwright.compat.modelzoo_attention import (
    XAVIER,
    MultiheadAttention,
    MultiQueryAttention,
    merge_padding,
)
from portwright.compat.modelzoo_blocks import (
    GPTJDecoderLayer,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from portwright.layers import RelativePositionEmbeddingLayer
from portwright.layers.activations import Activation
from portwright.layers.attention import RotaryEmbedding
from portwright.layers.block_parts import Device
from portwright.layers.blocks import LayerPast
from portwright.layers.initializers import InitializerSpec

__all__ = [
    "LAYERS_1",
    "LAYERS_2",
    "EmbeddingLayer",
    "FeedForwardNetwork",
    "GPTJDecoderLayer",
    "MultiQueryAttention",
    "MultiheadAttention",
    "RelativePositionEmbeddingLayer",
    "SingleFeedForwardLayer",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
]


class EmbeddingLayer(layers.EmbeddingLayer):
    """The zoo's embedding: its sinusoids, and rotary positions that are left to whoever makes the helper."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("sinusoid_variant", "modelzoo")
        if kwargs.get("position_embedding_type") == "rotary" and kwargs.get("rotary_dim") is None:
            kwargs["position_embedding_type"] = None
        super().__init__(*args, **kwargs)

    def forward(
        self,
        input_ids: Tensor,
        segment_ids: Tensor | None = None,
        past_length: int = 0,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """As ours, but segments that there is no table for are passed over."""
        segment_ids = segment_ids if self.segment_embeddings is not None else None
        return super().forward(input_ids, segment_ids, past_length, position_ids)


class SingleFeedForwardLayer(layers.SingleFeedForwardLayer):
    """One of the zoo's dense layers, without a bias by default."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        use_bias: bool = False,
        activation: str | Activation | None = None,
        dropout: float | None = None,
        device: Device = None,
    ) -> None:
        super().__init__(in_features, out_features, use_bias, activation, dropout, device)


class FeedForwardNetwork(layers.FeedForwardNetwork):
    """The zoo's dense layers, without biases by default; from 2.0 on their arguments come as one config object."""

    def __init__(
        self,
        input_unit: Any,
        layers_units: Sequence[int] = (),
        layers_activation: Sequence[str | Activation | None] | None = None,
        layers_dropout_rates: Sequence[float | None] | None = None,
        use_bias: bool = False,
        kernel_initializer: InitializerSpec = XAVIER,
        bias_initializer: InitializerSpec = "zeros",
        output_layer_initializer: InitializerSpec | None = None,
        device: Device = None,
    ) -> None:
        if isinstance(input_unit, int):
            super().__init__(
                input_unit,
                layers_units,
                layers_activation,
                layers_dropout_rates,
                use_bias,
                kernel_initializer,
                bias_initializer,
                output_layer_initializer,
                device,
            )
            return
        config = input_unit
        super().__init__(
            config.input_unit,
            config.layers_units,
            getattr(config, "layers_activation", None),
            getattr(config, "layers_dropout_rates", None),
            getattr(config, "use_bias", False),
            getattr(config, "kernel_initializer", XAVIER),
            getattr(config, "bias_initializer", "zeros"),
            getattr(config, "output_layer_initializer", None),
            getattr(config, "device", None),
        )


class TransformerEncoder(layers.TransformerEncoder):
    """The zoo's stack of encoder layers, each with weights of its own."""

    def __init__(
        self,
        encoder_layer: nn.Module,
        num_layers: int,
        norm: nn.Module | None = None,
        enable_nested_tensor: bool = False,
    ) -> None:
        super().__init__(encoder_layer, num_layers, norm, enable_nested_tensor)
        _draw_each(self.layers)

    def forward(  # type: ignore[override]
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        rotary_position_embedding_helper: RotaryEmbedding | None = None,
        self_attn_position_bias: Tensor | None = None,
        *,
        is_causal: bool | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        mask, src_key_padding_mask = merge_padding(mask, src_key_padding_mask)
        return super().forward(
            src,
            mask,
            src_key_padding_mask,
            is_causal,
            rotary_position_embedding_helper=rotary_position_embedding_helper,
            self_attn_position_bias=self_attn_position_bias,
            position_ids=position_ids,
        )


class TransformerDecoder(layers.TransformerDecoder):
    """The zoo's stack of decoder layers, each with weights of its own."""

    def __init__(self, decoder_layer: nn.Module, num_layers: int, norm: nn.Module | None = None) -> None:
        super().__init__(decoder_layer, num_layers, norm)
        _draw_each(self.layers)

    def forward(  # type: ignore[override]
        self,
        tgt: Tensor,
        memory: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        rotary_position_embedding_helper: RotaryEmbedding | None = None,
        *,
        past_kv: Sequence[LayerPast] | None = None,
        cache_present_kv: bool = False,
        self_attn_position_bias: Tensor | None = None,
        cross_attn_position_bias: Tensor | None = None,
        position_ids: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Any:
        tgt_mask, tgt_key_padding_mask = merge_padding(tgt_mask, tgt_key_padding_mask)
        memory_mask, memory_key_padding_mask = merge_padding(memory_mask, memory_key_padding_mask)
        return super().forward(
            tgt,
            memory,
            tgt_mask,
            memory_mask,
            tgt_key_padding_mask,
            memory_key_padding_mask,
            tgt_is_causal,
            memory_is_causal,
            rotary_position_embedding_helper=rotary_position_embedding_helper,
            past_kv=past_kv,
            cache_present_kv=cache_present_kv,
            self_attn_position_bias=self_attn_position_bias,
            cross_attn_position_bias=cross_attn_position_bias,
            position_ids=position_ids,
        )


class Transformer(layers.Transformer):
    """The zoo's Transformer, whose weights stay as its layers drew them."""

    _encoder_layer: type[TransformerEncoderLayer] = TransformerEncoderLayer
    _decoder_layer: type[TransformerDecoderLayer] = TransformerDecoderLayer

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "gelu",
        custom_encoder: Any | None = None,
        custom_decoder: Any | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = True,
        norm_first: bool = False,
        attention_type: str = "scaled_dot_product",
        use_projection_bias_in_attention: bool = False,
        use_ffn_bias_in_attention: bool = False,
        use_ffn_bias: bool = False,
        attention_initializer: InitializerSpec = XAVIER,
        ffn_initializer: InitializerSpec = XAVIER,
        device: Device = None,
    ) -> None:
        nn.Module.__init__(self)
        of_layer: dict[str, Any] = {
            "dim_feedforward": dim_feedforward,
            "dropout": dropout,
            "activation": activation,
            "layer_norm_eps": layer_norm_eps,
            "batch_first": batch_first,
            "norm_first": norm_first,
            "attention_type": attention_type,
            "use_projection_bias_in_attention": use_projection_bias_in_attention,
            "use_ffn_bias_in_attention": use_ffn_bias_in_attention,
            "use_ffn_bias": use_ffn_bias,
            "attention_initializer": attention_initializer,
            "ffn_initializer": ffn_initializer,
            "device": device,
        }
        if custom_encoder is None:
            norm = nn.LayerNorm(d_model, eps=layer_norm_eps, device=device)
            layer = self._encoder_layer(d_model, nhead, **of_layer)
            custom_encoder = TransformerEncoder(layer, num_encoder_layers, norm)
        self.encoder = custom_encoder
        if custom_decoder is None:
            norm = nn.LayerNorm(d_model, eps=layer_norm_eps, device=device)
            decoder_layer = self._decoder_layer(d_model, nhead, **of_layer)
            custom_decoder = TransformerDecoder(decoder_layer, num_decoder_layers, norm)
        self.decoder = custom_decoder
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def _load_from_state_dict(self, state_dict: MutableMapping[str, Any], prefix: str, *args: Any) -> None:
        # The zoo registers the norms of its stacks twice; the stacks read them under their own names.
        for name in [
            name
            for name in state_dict
            if name.startswith((f"{prefix}encoder_norm.", f"{prefix}decoder_norm."))
        ]:
            state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _draw_each(stack: nn.ModuleList) -> None:
    for layer in stack:
        reset = getattr(layer, "_reset_parameters", None)
        if reset is not None:
            reset()


class _TransformerEncoderLayer2(TransformerEncoderLayer):
    has_ff_layer1_dropout = True


class _TransformerDecoderLayer2(TransformerDecoderLayer):
    has_ff_layer1_dropout = True


class _GPTJDecoderLayer2(GPTJDecoderLayer):
    has_ff_layer1_dropout = True


class _Transformer2(Transformer):
    _encoder_layer = _TransformerEncoderLayer2
    _decoder_layer = _TransformerDecoderLayer2


LAYERS_1: dict[str, type[nn.Module]] = {
    "EmbeddingLayer": EmbeddingLayer,
    "FeedForwardNetwork": FeedForwardNetwork,
    "GPTJDecoderLayer": GPTJDecoderLayer,
    "MultiQueryAttention": MultiQueryAttention,
    "MultiheadAttention": MultiheadAttention,
    "RelativePositionEmbeddingLayer": RelativePositionEmbeddingLayer,
    "SingleFeedForwardLayer": SingleFeedForwardLayer,
    "Transformer": Transformer,
    "TransformerDecoder": TransformerDecoder,
    "TransformerDecoderLayer": TransformerDecoderLayer,
    "TransformerEncoder": TransformerEncoder,
    "TransformerEncoderLayer": TransformerEncoderLayer,
}
LAYERS_2: dict[str, type[nn.Module]] = {
    **LAYERS_1,
    "GPTJDecoderLayer": _GPTJDecoderLayer2,
    "Transformer": _Transformer2,
    "TransformerDecoderLayer": _TransformerDecoderLayer2,
    "TransformerEncoderLayer": _TransformerEncoderLayer2,
}
