"""T5 and T5 1.1 as `T5ForConditionalGeneration` stores them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from portwright.errors import UnsupportedError, suggest
from portwright.huggingface.mapping import Entry, Family
from portwright.job.model_params import T5Params, read_model_section
from portwright.networks.t5 import T5

# In HuggingFace `gated-gelu` means the tanh approximation, and the exact one has no name.
_GATED = {
    "gated-gelu": "geglu_new",
    "gated-gelu_new": "geglu_new",
    "gated-relu": "reglu",
    "gated-silu": "swiglu",
}
_PLAIN = (
    "relu",
    "gelu",
    "gelu_new",
    "silu",
    "tanh",
    "sigmoid",
    "linear",
    "mish",
    "quick_gelu",
    "relu6",
    "leaky_relu",
)
_OURS = {**{name: name for name in _PLAIN}, "swish": "silu", **_GATED}
_THEIRS = {ours: theirs for theirs, ours in reversed(_OURS.items())}

_SAME_NAMES = (
    "vocab_size",
    "d_model",
    "d_kv",
    "d_ff",
    "num_heads",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "dropout_rate",
    "layer_norm_epsilon",
    "initializer_factor",
)
_DEFAULTS = {  # of T5Config, for keys that older files lack
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6,
    "initializer_factor": 1.0,
}


def params_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The model section of a config.json.

    transformers 5 always writes `tie_word_embeddings: true`, and has `scale_decoder_outputs` instead. Without that scale
    the head may be tied or not: it is assumed untied, and `share_head` corrects that by the file's tensors.
    """
    if config.get("is_encoder_decoder") is False:
        raise UnsupportedError(
            "config.json says is_encoder_decoder: false, an encoder or a decoder alone.",
            "Take the T5ForConditionalGeneration that it is a part of.",
        )
    activation = config.get("feed_forward_proj", "relu")
    if activation not in _OURS:
        raise UnsupportedError(f"feed_forward_proj is {activation!r}.", suggest(str(activation), _OURS))
    num_layers = config.get("num_layers", 6)
    num_decoder_layers = config.get("num_decoder_layers")
    is_scaled = config.get("scale_decoder_outputs")
    is_scaled = config.get("tie_word_embeddings") is not False if is_scaled is None else bool(is_scaled)
    pad, start, end = (config.get(f"{name}_token_id") for name in ("pad", "decoder_start", "eos"))
    pad = 0 if pad is None else pad
    end = 1 if end is None else end
    return {
        **{name: config.get(name, _DEFAULTS[name]) for name in _SAME_NAMES},
        "encoder_num_hidden_layers": num_layers,
        "decoder_num_hidden_layers": num_layers if num_decoder_layers is None else num_decoder_layers,
        "feed_forward_nonlinearity": _OURS[activation],
        "share_embedding_weights": is_scaled,
        "scale_decoder_outputs": is_scaled,
        "pad_token_id": pad,
        "eos_token_id": end[0] if isinstance(end, list) else end,
        "decoder_start_token_id": pad if start is None else start,
    }


def share_head(params: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Sets, by the names in the file, whether a model without scale shares its head."""
    if params["scale_decoder_outputs"]:
        return params
    return {**params, "share_embedding_weights": not any(name.endswith("lm_head.weight") for name in names)}


def config_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of a model section, with `tie_word_embeddings` for old releases and the scaling for new ones."""
    options = read_model_section(T5Params, params)
    name = options.feed_forward_nonlinearity
    if name not in _THEIRS:
        raise UnsupportedError(
            f"T5ForConditionalGeneration has no feed_forward_proj for feed_forward_nonlinearity {name!r}.",
            suggest(name, _THEIRS),
        )
    is_scaled = options.scale_decoder_outputs
    return {
        **{name: getattr(options, name) for name in _SAME_NAMES},
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "num_layers": options.encoder_num_hidden_layers,
        "num_decoder_layers": options.decoder_num_hidden_layers,
        "feed_forward_proj": _THEIRS[name],
        "tie_word_embeddings": options.share_embedding_weights,
        "scale_decoder_outputs": options.share_embedding_weights if is_scaled is None else is_scaled,
        "pad_token_id": options.pad_token_id,
        "eos_token_id": options.eos_token_id,
        "decoder_start_token_id": options.decoder_start_token_id,
    }


def entries(params: Mapping[str, Any]) -> list[Entry]:
    options = read_model_section(T5Params, params)
    made = [Entry("embeddings.word_embeddings.weight", "shared.weight")]
    is_gated = options.feed_forward_nonlinearity in _GATED.values()
    for side, count in (
        ("encoder", options.encoder_num_hidden_layers),
        ("decoder", options.decoder_num_hidden_layers),
    ):
        block, ours = f"{side}.block.{{i}}.layer.", f"{side}.layers.{{i}}."
        parts = [("self_attn", "SelfAttention")]
        if side == "decoder":
            parts.append(("multihead_attn", "EncDecAttention"))
        for number, (own, their) in enumerate(parts):
            attention = f"{block}{number}.{their}"
            packed = tuple(f"{attention}.{name}.weight" for name in "qkv")
            made += [
                Entry(f"{ours}{own}.in_proj_weight", packed, count=count),
                Entry(f"{ours}{own}.out_proj.weight", f"{attention}.o.weight", count=count),
                Entry(f"{ours}norm{number + 1}.weight", f"{block}{number}.layer_norm.weight", count=count),
            ]
        last = len(parts)
        dense = f"{block}{last}.DenseReluDense"
        # Our layer has the value before the gate.
        first = (f"{dense}.wi_1.weight", f"{dense}.wi_0.weight") if is_gated else f"{dense}.wi.weight"
        made += [
            Entry(f"{ours}linear1.weight", first, count=count),
            Entry(f"{ours}linear2.weight", f"{dense}.wo.weight", count=count),
            Entry(f"{ours}norm{last + 1}.weight", f"{block}{last}.layer_norm.weight", count=count),
            Entry(f"{side}.norm.weight", f"{side}.final_layer_norm.weight"),
            Entry(
                f"{side}_positions.relative_attention_bias.weight",
                f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            ),
        ]
    if not options.share_embedding_weights:
        made.append(Entry("head.weight", "lm_head.weight"))
    return made


FAMILY = Family(
    name="t5",
    model_type="t5",
    architectures={"t5": "T5ForConditionalGeneration"},
    entries=entries,
    params_of=params_of,
    config_of=config_of,
    # An early release saved a bias that cross-attention never used.
    ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
    tied=(
        ("shared.weight", "encoder.embed_tokens.weight"),
        ("shared.weight", "decoder.embed_tokens.weight"),
        ("shared.weight", "lm_head.weight"),
    ),
    network=T5,
    by_tensors=share_head,
)
