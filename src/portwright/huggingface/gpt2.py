"""GPT-2, and GPT-3 where all its layers are dense, as `GPT2LMHeadModel` holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from portwright.errors import UserError
from portwright.huggingface.gpt_config import all_params, refuse, shared_config, shared_params
from portwright.huggingface.mapping import Entry, Family

_DEFAULTS = {  # of GPT2Config
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
_NOT_MODELLED = {
    "add_cross_attention": "Our decoder has no encoder to look at.",
    "scale_attn_by_inverse_layer_idx": "Our layers all scale their scores alike.",
    "reorder_and_upcast_attn": "It changes how half precision rounds and nothing else: set it to false to convert the same weights.",
}
_FIXED = {
    "rotary_dim": None,
    "use_ffn_bias": True,
    "use_bias_in_output": False,
    "attention_sliding_window_length": None,
}


def params_of(config: Mapping[str, Any]) -> dict[str, Any]:
    for name, why in _NOT_MODELLED.items():
        if config.get(name):
            raise UserError(f"config.json has {name}: {config[name]!r}, which is not modelled here.", why)
    is_scaled = config.get("scale_attn_weights", True)
    return {
        **shared_params(config, _DEFAULTS),
        "attention_type": "scaled_dot_product" if is_scaled else "dot_product",
        "share_embedding_weights": config.get("tie_word_embeddings", True) is not False,
        "use_bias_in_output": False,
    }


def config_of(params: Mapping[str, Any]) -> dict[str, Any]:
    whole = all_params(params)
    refuse(whole, "GPT-2", _FIXED)
    for name in ("use_projection_bias_in_attention", "use_ffn_bias_in_attention"):
        if whole[name] is False:
            refuse(whole, "GPT-2", {name: True})
    return {
        **shared_config(whole),
        "scale_attn_weights": whole["attention_type"] == "scaled_dot_product",
    }


def entries(params: Mapping[str, Any]) -> list[Entry]:
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
        # Conv1D keeps its matrix as [in, out].
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


def _network(params: Mapping[str, Any]) -> nn.Module:
    from portwright.networks.gpt import Gpt

    return Gpt(params)


FAMILY = Family(
    name="gpt2",
    model_type="gpt2",
    # A file of the bare GPT2Model has all weights too, since the head is the embedding.
    architectures={"gpt2": ("GPT2LMHeadModel", "GPT2Model"), "gpt3": "GPT2LMHeadModel"},
    entries=entries,
    params_of=params_of,
    config_of=config_of,
    ignored=("*.attn.bias", "*.attn.masked_bias"),
    tied=(("transformer.wte.weight", "lm_head.weight"),),
    prefix="transformer.",
    network=_network,
)
