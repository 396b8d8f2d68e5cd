"""The model zoo's layers: Portwright's with the zoo's defaults, argument order and results.

Unlike torch.nn's and Portwright's, they take the batch first, use gelu, have biases only in norms, return a bare tensor
unless more is requested, and initialise each layer of a stack separately. Releases from 2.0 on also have a dropout
between the two products of the feed-forward: `LAYERS_1` and `LAYERS_2` map names to a release's classes. Both read
checkpoints of either release, whose queries, keys and values are three matrices.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from portwright import layers
from portwright.layers import RelativePositionEmbeddingLayer
from portwright.layers.attention import check_kv_groups
from portwright.layers.bias import attn_mask_to_4d, combine_masks

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

XAVIER = "xavier_uniform"


def _as_mask(mask: Tensor | None) -> Tensor | None:
    """Turns the zoo's integer masks, in which values other than 0 are masked, into bool masks."""
    return mask if mask is None or mask.is_floating_point() else mask.bool()


def merge_padding(attn_mask: Tensor | None, padding: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Merges a padding mask of three or four dimensions, as the zoo allows, into the attention mask."""
    attn_mask, padding = _as_mask(attn_mask), _as_mask(padding)
    if padding is None or padding.dim() < 3:
        return attn_mask, padding
    padding = padding[:, None] if padding.dim() == 3 else padding
    if attn_mask is None:
        return padding, None
    return combine_masks(attn_mask_to_4d(attn_mask, padding.shape[0], 1), padding), None


def merge_masks(arguments: dict[str, Any], mask: str, padding: str) -> None:
    """Merges the two masks of these names in the arguments of a call."""
    arguments[mask], arguments[padding] = merge_padding(arguments.get(mask), arguments.get(padding))


def by_name(order: str, given: Sequence[Any], named: Mapping[str, Any], **defaults: Any) -> dict[str, Any]:
    """The arguments of a call by name; `order` names those that the zoo takes by position."""
    names = order.split()
    if len(given) > len(names):
        raise TypeError(
            f"{len(given)} arguments were given by position, and there are {len(names)}: {order}."
        )
    placed = dict(zip(names, given, strict=False))
    if twice := placed.keys() & named.keys():
        raise TypeError(f"got multiple values for {', '.join(sorted(twice))}.")
    return {**defaults, **placed, **named}


_INIT = """embed_dim num_heads dropout batch_first add_bias_kv add_zero_attn kdim vdim use_projection_bias use_ffn_bias
    attention_initializer output_layer_initializer attention_type device"""
_FORWARD = """q k v attn_mask key_padding_mask need_weights average_attn_weights past_kv cache_present_kv past_kv_self_attn
    position_bias rotary_position_embedding_helper layer_idx position_ids"""


class MultiheadAttention(layers.MultiheadAttention):
    """The zoo's attention: `forward` returns a tensor, or a pair with the attention weights or the keys and values to cache."""

    def __init__(self, *given: Any, **named: Any) -> None:
        arguments = by_name(
            _INIT, given, named, batch_first=True, use_ffn_bias=False, attention_initializer=XAVIER
        )
        arguments["use_projection_bias"] = bool(arguments.get("use_projection_bias"))
        super().__init__(**{"bias": False, **arguments})

    def forward(self, *given: Any, **named: Any) -> Any:
        arguments = by_name(_FORWARD, given, named, need_weights=False, cache_present_kv=False)
        arguments.pop("layer_idx", None)
        query, key, value = (arguments.pop(name) for name in "qkv")
        need_weights, gives_cache = arguments["need_weights"], arguments.pop("cache_present_kv")
        merge_masks(arguments, "attn_mask", "key_padding_mask")
        output, weights, present = super().forward(query, key, value, cache_present_kv=True, **arguments)
        if gives_cache:
            return output, present
        return (output, weights) if need_weights else output

    def _load_from_state_dict(self, state_dict: MutableMapping[str, Any], prefix: str, *args: Any) -> None:
        rename_attention(state_dict, prefix, self)
        super()._load_from_state_dict(state_dict, prefix, *args)


class MultiQueryAttention(MultiheadAttention):
    """The zoo's attention with keys and values shared by groups of heads."""

    def __init__(
        self, embed_dim: int, num_heads: int, *args: Any, num_kv_groups: int = 1, **kwargs: Any
    ) -> None:
        self.num_kv_groups = check_kv_groups(num_heads, num_kv_groups)
        super().__init__(embed_dim, num_heads, *args, **kwargs)


def rename_attention(
    state_dict: MutableMapping[str, Any], prefix: str, attention: layers.MultiheadAttention
) -> None:
    """Joins the zoo's three input matrices into Portwright's one, and renames the output projection."""
    for kind in ("weight", "bias"):
        names = [f"{prefix}proj_{part}_dense_layer.{kind}" for part in "qkv"]
        if all(name in state_dict for name in names):
            parts = [state_dict.pop(name) for name in names]
            if kind == "bias" or attention.in_proj_weight is not None:
                state_dict[f"{prefix}in_proj_{kind}"] = torch.cat(parts)
            else:
                for part, tensor in zip("qkv", parts, strict=True):
                    state_dict[f"{prefix}{part}_proj_weight"] = tensor
        output = state_dict.pop(f"{prefix}proj_output_dense_layer.{kind}", None)
        if output is not None:
            state_dict[f"{prefix}out_proj.{kind}"] = output


_LAST_ARGUMENTS = """attention_dropout_rate attention_type use_projection_bias_in_attention use_ffn_bias_in_attention use_ffn_bias
    attention_initializer ffn_initializer"""
_FIRST_ARGUMENTS = (
    "d_model nhead dim_feedforward dropout activation layer_norm_eps batch_first norm_first device"
)
DEFAULTS: dict[str, Any] = {
    "activation": "gelu", "batch_first": True, "use_projection_bias_in_attention": False, "use_ffn_bias_in_attention": False,
    "use_ffn_bias": False, "attention_initializer": XAVIER, "ffn_initializer": XAVIER,
}  # fmt: skip


class _ZooBlock(nn.Module):
    """The base class of the zoo's layers, which have its defaults and read its checkpoints."""

    order: str  # the names of the arguments by position
    has_ff_layer1_dropout = False

    def __init__(self, *given: Any, **named: Any) -> None:
        own = {"use_ff_layer1_dropout": self.has_ff_layer1_dropout, **DEFAULTS}
        super().__init__(**by_name(self.order, given, named, **own))

    def _load_from_state_dict(self, state_dict: MutableMapping[str, Any], prefix: str, *args: Any) -> None:
        for name in ("self_attn", "multihead_attn"):
            attention = getattr(self, name, None)
            if isinstance(attention, layers.MultiheadAttention):
                rename_attention(state_dict, f"{prefix}{name}.", attention)
        for place, name in enumerate(("linear1", "linear2")):
            for kind in ("weight", "bias"):
                parts = [
                    state_dict.pop(f"{prefix}ffn.ffn.{place}.{linear}.{kind}", None)
                    for linear in ("linear_layer", "linear_layer_for_glu")
                ]
                found = [part for part in parts if part is not None]
                if found:  # value and gate are one product here
                    state_dict[f"{prefix}{name}.{kind}"] = torch.cat(found)
        super()._load_from_state_dict(state_dict, prefix, *args)


class TransformerEncoderLayer(_ZooBlock, layers.TransformerEncoderLayer):
    """The zoo's encoder layer."""

    order = f"{_FIRST_ARGUMENTS} {_LAST_ARGUMENTS}"

    def forward(self, *given: Any, **named: Any) -> Tensor:
        order = "src src_mask src_key_padding_mask rotary_position_embedding_helper self_attn_position_bias"
        arguments = by_name(order, given, named)
        merge_masks(arguments, "src_mask", "src_key_padding_mask")
        return super().forward(**arguments)


class TransformerDecoderLayer(_ZooBlock, layers.TransformerDecoderLayer):
    """The zoo's decoder layer."""

    order = f"{_FIRST_ARGUMENTS} add_cross_attention {_LAST_ARGUMENTS}"

    def forward(self, *given: Any, **named: Any) -> Any:
        arguments = by_name(f"{DECODED} past_kv cache_present_kv {BIASES} layer_idx", given, named)
        arguments.pop("layer_idx", None)
        merge_masks(arguments, "tgt_mask", "tgt_key_padding_mask")
        merge_masks(arguments, "memory_mask", "memory_key_padding_mask")
        return super().forward(**arguments)


DECODED = """tgt memory tgt_mask memory_mask tgt_key_padding_mask memory_key_padding_mask
    rotary_position_embedding_helper"""
BIASES = "self_attn_position_bias cross_attn_position_bias"


class GPTJDecoderLayer(layers.GPTJDecoderLayer, TransformerDecoderLayer):
    """The zoo's layer of GPT-J, and with `use_untied_layer_norm` of GPT-NeoX."""


def get_clones(module: nn.Module, count: int) -> nn.ModuleList:
    """Copies of a module, with weights of their own."""
    return nn.ModuleList(copy.deepcopy(module) for _ in range(count))


def variance_scaling_(
    tensor: Tensor, scale: float = 1.0, mode: str = "fan_in", distribution: str = "truncated_normal"
) -> Tensor:
    spec = {"name": "variance_scaling", "scale": scale, "mode": mode, "distribution": distribution}
    return layers.get_initializer(spec)(tensor)


def _named(name: str) -> Callable[[Tensor], Tensor]:
    return lambda tensor: layers.get_initializer(name)(tensor)


lecun_normal_ = _named("lecun_normal")
lecun_uniform_ = _named("lecun_uniform")


class RotaryPositionEmbeddingHelper(layers.RotaryPositionEmbeddingHelper):
    """Portwright's class, which as in release 1.6 can be given the length of the sequence with the cached part."""

    def rotate_tensor(  # type: ignore[override]
        self,
        x: Tensor,
        real_seq_length: int | None = None,
        offset: int = 0,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        return super().rotate_tensor(x, offset=offset, position_ids=position_ids)


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
        for name in list(state_dict):
            if name.startswith((f"{prefix}encoder_norm.", f"{prefix}decoder_norm.")):
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
