"""Checkpoints of the model zoo's PyTorch models, release 1.6 (checkpoint_N.mdl): which tensor is which of ours.

Its BERT was HuggingFace's own class, with its names; its GPT-2 had layers of the zoo's. Later releases write HDF5. There
1/sqrt(head size) is rounded to float16, so that logits agree with ours to rounding only where that is exact (heads of 16, 64, 256).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from portwright.errors import UserError
from portwright.huggingface.gpt import GPT2, all_params
from portwright.huggingface.mapping import Entry, Family, Params
from portwright.huggingface.registry import families_of
from portwright.huggingface.weights import Weights
from portwright.runtime.checkpoint import read_legacy

_PARTS = {  # of a decoder layer; our name: the zoo's
    "self_attn.out_proj": "self_attn.proj_output_dense_layer",
    "linear1": "ffn.ffn.0.linear_layer",
    "linear2": "ffn.ffn.1.linear_layer",
    "norm1": "norm1",
    "norm3": "norm3",
}
_BIAS_KEYS = {  # keys that switch a part's biases off
    "self_attn.out_proj": "use_ffn_bias_in_attention",
    "linear1": "use_ffn_bias",
    "linear2": "use_ffn_bias",
}
_IMPLIED = {  # keys of the zoo, with the only value that our network has
    "position_embedding_type": "learned",
    "use_position_embedding": True,
}
_OF_A_RUN = (
    "allow_multireplica",
    "compute_eval_metrics",
    "enable_vts",
)  # keys of a training run, which do not change the network


def adapt_section(given: Mapping[str, Any]) -> dict[str, Any]:
    """The zoo's model section in our keys; a key with an unsupported value is kept, to be refused by name."""
    return {
        key: value
        for key, value in given.items()
        if key not in _OF_A_RUN and (key not in _IMPLIED or value != _IMPLIED[key])
    }


def zoo_family(name: str) -> tuple[str, Family]:
    """Our folder and the family for a model of the zoo."""
    for folder, family in families_of(name):
        if family is GPT2:
            return folder, _GPT2
        if family.model_type == "bert":  # the zoo's RoBERTa is a BertForMaskedLM with BERT's positions
            return folder, family
    raise UserError(
        f"--from zoo does not know '{name}'.",
        "It knows gpt2, and bert with its heads; what the zoo calls RoBERTa is its bert with disable_nsp.",
    )


def open_zoo_file(path: Path) -> Weights:
    """Opens the weights of a .mdl file, without running code from it."""
    if not path.is_file():
        raise UserError(f"'{path}' is not a file.", "Give a checkpoint_N.mdl of the model zoo.")
    return Weights.of(read_legacy(path)[0])


def _gpt2_entries(params: Params) -> list[Entry]:
    whole = all_params(params)
    count, ours, theirs = whole["num_hidden_layers"], "decoder.layers.{i}.", "transformer_decoder.layers.{i}."
    made = [
        Entry("embeddings.word_embeddings.weight", "embedding_layer.word_embeddings.weight"),
        Entry("embeddings.position_embeddings.weight", "embedding_layer.position_embeddings.weight"),
    ]
    for kind in ("weight", "bias"):
        three = tuple(f"{theirs}self_attn.proj_{each}_dense_layer.{kind}" for each in "qkv")
        if kind == "weight" or whole["use_projection_bias_in_attention"] is not False:
            made.append(Entry(f"{ours}self_attn.in_proj_{kind}", three, count=count))
        made += [
            Entry(f"{ours}{own}.{kind}", f"{theirs}{other}.{kind}", count=count)
            for own, other in _PARTS.items()
            if kind == "weight" or whole.get(_BIAS_KEYS.get(own, "")) is not False
        ]
        made.append(Entry(f"decoder.norm.{kind}", f"transformer_decoder.norm.{kind}"))
    if not whole["share_embedding_weights"]:
        made.append(Entry("head.weight", "lm_head.weight"))
    if whole["use_bias_in_output"]:
        own = "head_bias" if whole["share_embedding_weights"] else "head.bias"
        made.append(Entry(own, "lm_head.bias"))
    return made


_GPT2 = replace(
    GPT2,
    name="the model zoo's gpt2",
    entries=_gpt2_entries,
    ignored=(),
    tied=(
        ("embedding_layer.word_embeddings.weight", "lm_head.weight"),
        ("transformer_decoder.norm.weight", "ln_f.weight"),
        ("transformer_decoder.norm.bias", "ln_f.bias"),
    ),
    prefix="",
)
