"""The model zoo's layers: Portwright's with the zoo's defaults, argument order and results.

Unlike torch.nn's and Portwright's, they take the batch first, use gelu, have biases only in norms, return a bare tensor
unless more is requested, and initialise each layer of a stack separately. Releases from 2.0 on also have a dropout
between the two products of the feed-forward: `LAYERS_1` and `LAYERS_2` map names to a release's classes. Both read
checkpoints of either release, whose queries, keys and values are three matrices.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from torch import Tensor, nn

from portwright import layers
from portwright.compat.modelzoo_blocks import (
    DECODED,
    DEFAULTS,
    GPTJDecoderLayer,
    MultiheadAttention,
    MultiQueryAttention,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
    by_name,
    merge_masks,
)
from portwright.layers import RelativePositionEmbeddingLayer

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
    """The zoo's embedding: with its sinusoids; for rotary positions the caller makes the helper."""

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
        """As Portwright's, but without a table of segments, segment ids are ignored."""
        segment_ids = segment_ids if self.segment_embeddings is not None else None
        return super().forward(input_ids, segment_ids, past_length, position_ids)


class SingleFeedForwardLayer(layers.SingleFeedForwardLayer):
    """One of the zoo's dense layers, without a bias by default."""

    def __init__(self, *given: Any, **named: Any) -> None:
        order = "in_features out_features use_bias activation dropout device"
        super().__init__(**by_name(order, given, named, use_bias=False))


_FEED_FORWARD = """input_unit layers_units layers_activation layers_dropout_rates use_bias kernel_initializer bias_initializer
    output_layer_initializer device"""


class FeedForwardNetwork(layers.FeedForwardNetwork):
    """The zoo's dense layers, without biases by default; from 2.0 on their arguments come as one config object."""

    def __init__(self, *given: Any, **named: Any) -> None:
        arguments = by_name(_FEED_FORWARD, given, named, layers_units=(), use_bias=False)
        config = arguments["input_unit"]
        if not isinstance(config, int):
            held = {name: getattr(config, name) for name in _FEED_FORWARD.split() if hasattr(config, name)}
            arguments = {"use_bias": False, **held}
        super().__init__(**arguments)


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

    def forward(self, *given: Any, **named: Any) -> Tensor:
        order = "src mask src_key_padding_mask rotary_position_embedding_helper self_attn_position_bias"
        arguments = by_name(order, given, named)
        merge_masks(arguments, "mask", "src_key_padding_mask")
        return super().forward(**arguments)


class TransformerDecoder(layers.TransformerDecoder):
    """The zoo's stack of decoder layers, each with weights of its own."""

    def __init__(self, decoder_layer: nn.Module, num_layers: int, norm: nn.Module | None = None) -> None:
        super().__init__(decoder_layer, num_layers, norm)
        _draw_each(self.layers)

    def forward(self, *given: Any, **named: Any) -> Any:
        arguments = by_name(DECODED, given, named)
        merge_masks(arguments, "tgt_mask", "tgt_key_padding_mask")
        merge_masks(arguments, "memory_mask", "memory_key_padding_mask")
        return super().forward(**arguments)


_TRANSFORMER = """d_model nhead num_encoder_layers num_decoder_layers dim_feedforward dropout activation custom_encoder
    custom_decoder layer_norm_eps batch_first norm_first attention_type use_projection_bias_in_attention
    use_ffn_bias_in_attention use_ffn_bias attention_initializer ffn_initializer device"""


class Transformer(layers.Transformer):
    """The zoo's Transformer, whose weights stay as its layers drew them."""

    _encoder_layer: type[TransformerEncoderLayer] = TransformerEncoderLayer
    _decoder_layer: type[TransformerDecoderLayer] = TransformerDecoderLayer

    def __init__(self, *given: Any, **named: Any) -> None:
        nn.Module.__init__(self)
        options = by_name(
            _TRANSFORMER, given, named, d_model=512, nhead=8, num_encoder_layers=6, num_decoder_layers=6,
            layer_norm_eps=1e-5, **DEFAULTS,
        )  # fmt: skip
        if unknown := options.keys() - set(_TRANSFORMER.split()):
            raise TypeError(f"Transformer has no argument {', '.join(sorted(unknown))}.")
        counts = [options.pop(f"num_{side}_layers") for side in ("encoder", "decoder")]
        made = [options.pop(f"custom_{side}", None) for side in ("encoder", "decoder")]
        norm = {"eps": options["layer_norm_eps"], "device": options.get("device")}
        kinds = ((TransformerEncoder, self._encoder_layer), (TransformerDecoder, self._decoder_layer))
        self.encoder, self.decoder = (
            given_one
            if given_one is not None
            else stack(layer(**options), count, nn.LayerNorm(options["d_model"], **norm))
            for (stack, layer), count, given_one in zip(kinds, counts, made, strict=True)
        )
        self.d_model, self.nhead = options["d_model"], options["nhead"]
        self.batch_first = options["batch_first"]

    def _load_from_state_dict(self, state_dict: MutableMapping[str, Any], prefix: str, *args: Any) -> None:
        # The zoo registers the norms of its stacks twice; the second names are dropped.
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
    name: globals()[name] for name in __all__ if not name.startswith("LAYERS")
}
LAYERS_2: dict[str, type[nn.Module]] = {
    **LAYERS_1,
    "GPTJDecoderLayer": _GPTJDecoderLayer2,
    "Transformer": _Transformer2,
    "TransformerDecoderLayer": _TransformerDecoderLayer2,
    "TransformerEncoderLayer": _TransformerEncoderLayer2,
}
