"""What the configs of GPT-2 and GPT-J have in common, and the `model:` section that says the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portwright.errors import UserError, suggest
from portwright.job.model_params import GptDecoderParams

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


def shared_params(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The part of `model:` that both families have; `defaults` stands for what an older config.json leaves out."""

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


def shared_config(params: Mapping[str, Any]) -> dict[str, Any]:
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
    if params["initializer_range"] is None:  # there a number alone is possible
        config["initializer_range"] = 0.02
    is_usual = params["filter_size"] == 4 * params["hidden_size"]
    config["n_inner"] = None if is_usual else params["filter_size"]
    config["activation_function"] = _THEIR_ACTIVATIONS[activation]
    config["tie_word_embeddings"] = params["share_embedding_weights"]
    return config


def refuse(params: Mapping[str, Any], family: str, wanted: Mapping[str, Any]) -> None:
    """Refuses a model section that differs from what the family's class has fixed."""
    for name, value in wanted.items():
        if params[name] != value:
            raise UserError(
                f"model.{name} is {params[name]!r}, and {family} of transformers has {value!r} there.",
                "Such a model cannot be written for transformers.",
            )
