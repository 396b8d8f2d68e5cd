"""GPT-2 (and GPT-3 where all layers are dense) and GPT-J, as `GPT2LMHeadModel` and `GPTJForCausalLM` store them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portwright.errors import UserError, suggest
from portwright.huggingface.mapping import Entry, Family
from portwright.job.model_params import GptDecoderParams
from portwright.networks.gpt import Gpt

# transformers has several names for some functions; the first one is written.
_ACTIVATIONS = {
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_fast",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "relu": "relu",
    "relu2": "squared_relu",
    "relu6": "relu6",
    "leaky_relu": "leaky_relu",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
    "mish": "mish",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "linear": "linear",
}
_THEIR_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}

_SAME = {  # ours -> theirs
    "vocab_size": "vocab_size",
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "dropout_rate": "resid_pdrop",
    "embedding_dropout_rate": "embd_pdrop",
    "attention_dropout_rate": "attn_pdrop",
    "layer_norm_epsilon": "layer_norm_epsilon",
    "initializer_range": "initializer_range",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "pad_token_id": "pad_token_id",
}
_GPT2_DEFAULTS = {  # of GPT2Config
    "vocab_size": 50257,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
    "pad_token_id": None,
}
_GPTJ_DEFAULTS = _GPT2_DEFAULTS | {  # of GPTJConfig
    "vocab_size": 50400,
    "n_embd": 4096,
    "n_layer": 28,
    "n_head": 16,
    "n_positions": 2048,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
_THEIR_OTHER_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
}


def all_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """The model section with every default filled in."""
    defaults = {name: field.get_default() for name, field in GptDecoderParams.model_fields.items()}
    return {**defaults, **params}


def _shared_params(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `model:` that both families have; `defaults` are for keys that an older config.json leaves out."""

    def read(name: str) -> Any:
        other = _THEIR_OTHER_NAMES.get(name)
        return config.get(name, config.get(other, defaults[name]) if other else defaults[name])

    activation = config.get("activation_function", "gelu_new")
    if activation not in _ACTIVATIONS:
        raise UserError(
            f"config.json has activation_function {activation!r}.", suggest(str(activation), _ACTIVATIONS)
        )
    params = {ours: read(theirs) for ours, theirs in _SAME.items()}
    inner = config.get("n_inner")
    params["filter_size"] = 4 * params["hidden_size"] if inner is None else inner
    params["nonlinearity"] = _ACTIVATIONS[activation]
    return params


def _shared_config(params: Mapping[str, Any]) -> dict[str, Any]:
    """The part of config.json that both families have."""
    activation = params["nonlinearity"]
    if activation not in _THEIR_ACTIVATIONS:
        raise UserError(
            f"model.nonlinearity is {activation!r}, which transformers has not in such a model.",
            suggest(str(activation), _THEIR_ACTIVATIONS),
        )
    config = {theirs: params[ours] for ours, theirs in _SAME.items()}
    if params["embedding_dropout_rate"] is None:
        config["embd_pdrop"] = params["dropout_rate"]
    if params["initializer_range"] is None:  # HuggingFace's key must be a number
        config["initializer_range"] = 0.02
    is_usual = params["filter_size"] == 4 * params["hidden_size"]
    config["n_inner"] = None if is_usual else params["filter_size"]
    config["activation_function"] = _THEIR_ACTIVATIONS[activation]
    config["tie_word_embeddings"] = params["share_embedding_weights"]
    return config


def _refuse(params: Mapping[str, Any], family: str, **wanted: Any) -> None:
    """Refuses a model section that differs from what the family's class fixes."""
    for name, value in wanted.items():
        if params[name] != value:
            raise UserError(
                f"model.{name} is {params[name]!r}, and {family} of transformers has {value!r} there.",
                "Such a model cannot be written for transformers.",
            )


_ATTENTION_BIASES = ("use_projection_bias_in_attention", "use_ffn_bias_in_attention")
_NOT_MODELLED = {
    "add_cross_attention": "Our decoder has no encoder to look at.",
    "scale_attn_by_inverse_layer_idx": "Our layers all scale their scores alike.",
    "reorder_and_upcast_attn": "It changes how half precision rounds and nothing else: set it to false to convert the same weights.",
}


def _gpt2_params(config: Mapping[str, Any]) -> dict[str, Any]:
    for name, why in _NOT_MODELLED.items():
        if config.get(name):
            raise UserError(f"config.json has {name}: {config[name]!r}, which is not modelled here.", why)
    is_scaled = config.get("scale_attn_weights", True)
    return {
        **_shared_params(config, _GPT2_DEFAULTS),
        "attention_type": "scaled_dot_product" if is_scaled else "dot_product",
        "share_embedding_weights": config.get("tie_word_embeddings", True) is not False,
        "use_bias_in_output": False,
    }


def _gpt2_config(params: Mapping[str, Any]) -> dict[str, Any]:
    whole = all_params(params)
    fixed = {"rotary_dim": None, "use_ffn_bias": True, "use_bias_in_output": False}
    _refuse(whole, "GPT-2", **fixed, attention_sliding_window_length=None)
    for name in _ATTENTION_BIASES:
        if whole[name] is False:
            _refuse(whole, "GPT-2", **{name: True})
    return {
        **_shared_config(whole),
        "scale_attn_weights": whole["attention_type"] == "scaled_dot_product",
    }


def _gpt2_entries(params: Mapping[str, Any]) -> list[Entry]:
    whole = all_params(params)
    count, layer, block = whole["num_hidden_layers"], "decoder.layers.{i}.", "transformer.h.{i}."
    made = [
        Entry("embeddings.word_embeddings.weight", "transformer.wte.weight"),
        Entry("embeddings.position_embeddings.weight", "transformer.wpe.weight"),
    ]
    products = {
        "self_attn.in_proj_": "attn.c_attn.",
        "self_attn.out_proj.": "attn.c_proj.",
        "linear1.": "mlp.c_fc.",
        "linear2.": "mlp.c_proj.",
    }
    for ours, theirs in products.items():
        # Conv1D stores its matrix as [in, out].
        made += [
            Entry(f"{layer}{ours}weight", f"{block}{theirs}weight", transposed=True, count=count),
            Entry(f"{layer}{ours}bias", f"{block}{theirs}bias", count=count),
        ]
    for part in ("weight", "bias"):
        made += [
            Entry(f"{layer}norm1.{part}", f"{block}ln_1.{part}", count=count),
            Entry(f"{layer}norm3.{part}", f"{block}ln_2.{part}", count=count),
            Entry(f"decoder.norm.{part}", f"transformer.ln_f.{part}"),
        ]
    if not whole["share_embedding_weights"]:
        made.append(Entry("head.weight", "lm_head.weight"))
    return made


def _gptj_params(config: Mapping[str, Any]) -> dict[str, Any]:
    rotary_dim = config.get("rotary_dim", 64)
    if rotary_dim is None:
        raise UserError(
            "config.json has rotary_dim: null, for which transformers turns by the whole model's width.",
            "Give rotary_dim the number of a head's dimensions that turn.",
        )
    return {
        **_shared_params(config, _GPTJ_DEFAULTS),
        "rotary_dim": rotary_dim,
        "share_embedding_weights": bool(config.get("tie_word_embeddings", False)),
        "use_bias_in_output": True,
    }


def _gptj_config(params: Mapping[str, Any]) -> dict[str, Any]:
    whole = all_params(params)
    if whole["rotary_dim"] is None:
        raise UserError("model.rotary_dim is left out.", "A GPT-J has one; write this model as gpt2.")
    fixed = {"use_ffn_bias": True, "use_bias_in_output": True, "attention_type": "scaled_dot_product"}
    _refuse(whole, "GPT-J", **fixed, attention_sliding_window_length=None)
    for name in _ATTENTION_BIASES:
        if whole[name]:
            _refuse(whole, "GPT-J", **{name: False})
    return {**_shared_config(whole), "rotary_dim": whole["rotary_dim"]}


def _gptj_entries(params: Mapping[str, Any]) -> list[Entry]:
    whole = all_params(params)
    count, layer, block = whole["num_hidden_layers"], "decoder.layers.{i}.", "transformer.h.{i}."
    packed = tuple(f"{block}attn.{name}_proj.weight" for name in "qkv")
    made = [
        Entry("embeddings.word_embeddings.weight", "transformer.wte.weight"),
        Entry(f"{layer}self_attn.in_proj_weight", packed, count=count),
        Entry(f"{layer}self_attn.out_proj.weight", f"{block}attn.out_proj.weight", count=count),
    ]
    for part in ("weight", "bias"):
        made += [
            Entry(f"{layer}linear1.{part}", f"{block}mlp.fc_in.{part}", count=count),
            Entry(f"{layer}linear2.{part}", f"{block}mlp.fc_out.{part}", count=count),
            Entry(f"{layer}norm1.{part}", f"{block}ln_1.{part}", count=count),
            Entry(f"decoder.norm.{part}", f"transformer.ln_f.{part}"),
        ]
    if whole["share_embedding_weights"]:
        made.append(Entry("head_bias", "lm_head.bias"))
    else:
        made += [Entry(f"head.{part}", f"lm_head.{part}") for part in ("weight", "bias")]
    return made


_SHARED: dict[str, Any] = {
    "tied": (("transformer.wte.weight", "lm_head.weight"),),
    "prefix": "transformer.",
    "network": Gpt,
}
GPT2 = Family(
    name="gpt2",
    model_type="gpt2",
    # A file of GPT2Model, without a head, has all weights too, since the head is the embedding.
    architectures={"gpt2": ("GPT2LMHeadModel", "GPT2Model"), "gpt3": "GPT2LMHeadModel"},
    entries=_gpt2_entries,
    params_of=_gpt2_params,
    config_of=_gpt2_config,
    ignored=("*.attn.bias", "*.attn.masked_bias"),
    **_SHARED,
)
GPTJ = Family(
    name="gptj",
    model_type="gptj",
    architectures={"gptj": "GPTJForCausalLM"},
    entries=_gptj_entries,
    params_of=_gptj_params,
    config_of=_gptj_config,
    ignored=("*.attn.bias", "*.attn.masked_bias", "*.attn.embed_positions"),
    **_SHARED,
)
FAMILIES = (GPT2, GPTJ)
