"""GPT-J as `GPTJForCausalLM` holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from portwright.errors import UserError
from portwright.huggingface.gpt_config import all_params, refuse, shared_config, shared_params
from portwright.huggingface.mapping import Entry, Family

_DEFAULTS = {  # of GPTJConfig
    "vocab_size": 50400,
    "n_embd": 4096,
    "n_layer": 28,
    "n_head": 16,
    "n_positions": 2048,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
    "pad_token_id": None,
}
_FIXED = {
    "use_ffn_bias": True,
    "use_bias_in_output": True,
    "attention_type": "scaled_dot_product",
    "attention_sliding_window_length": None,
}


def params_of(config: Mapping[str, Any]) -> dict[str, Any]:
    rotary_dim = config.get("rotary_dim", 64)
    if rotary_dim is None:
        raise UserError(
            "config.json has rotary_dim: null, for which transformers turns by the whole model's width.",
            "Give rotary_dim the number of a head's dimensions that turn.",
        )
    return {
        **shared_params(config, _DEFAULTS),
        "rotary_dim": rotary_dim,
        "share_embedding_weights": bool(config.get("tie_word_embeddings", False)),
        "use_bias_in_output": True,
    }


def config_of(params: Mapping[str, Any]) -> dict[str, Any]:
    whole = all_params(params)
    if whole["rotary_dim"] is None:
        raise UserError("model.rotary_dim is left out.", "A GPT-J has one; write this model as gpt2.")
    refuse(whole, "GPT-J", _FIXED)
    for name in ("use_projection_bias_in_attention", "use_ffn_bias_in_attention"):
        if whole[name]:
            refuse(whole, "GPT-J", {name: False})
    return {**shared_config(whole), "rotary_dim": whole["rotary_dim"]}


def entries(params: Mapping[str, Any]) -> list[Entry]:
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


def _network(params: Mapping[str, Any]) -> nn.Module:
    from portwright.networks.gpt import Gpt

    return Gpt(params)


FAMILY = Family(
    name="gptj",
    model_type="gptj",
    architectures={"gptj": "GPTJForCausalLM"},
    entries=entries,
    params_of=params_of,
    config_of=config_of,
    ignored=("*.attn.bias", "*.attn.masked_bias", "*.attn.embed_positions"),
    tied=(("transformer.wte.weight", "lm_head.weight"),),
    prefix="transformer.",
    network=_network,
)
