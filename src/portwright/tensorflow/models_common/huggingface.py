"""Converts weights of HuggingFace's torch models to Portwright's names.

weights = from_huggingface("bert", torch_model.state_dict())
write_checkpoint(weights, "pretrained/model.ckpt")   # an Estimator warm-starts from it
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from portwright.errors import UserError, suggest

Array = np.ndarray[Any, Any]
# A pattern of HuggingFace's names, and our name. Kernels are transposed from [out, in] to [in, out].
Rule = tuple[str, str]

_ENCODER: tuple[Rule, ...] = (
    (r"embeddings\.(word|position)_embeddings\.weight", r"embeddings/\1_embeddings"),
    (r"embeddings\.token_type_embeddings\.weight", "embeddings/segment_embeddings"),
    (r"embeddings\.LayerNorm\.(\w+)", r"embeddings_norm/\1"),
    (r"encoder\.layer\.(\d+)\.attention\.self\.(\w+)\.(\w+)", r"encoder_\1/self_attn/\2/\3"),
    (r"encoder\.layer\.(\d+)\.attention\.output\.dense\.(\w+)", r"encoder_\1/self_attn/output/\2"),
    (r"encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.(\w+)", r"encoder_\1/norm1/\2"),
    (r"encoder\.layer\.(\d+)\.intermediate\.dense\.(\w+)", r"encoder_\1/linear1/\2"),
    (r"encoder\.layer\.(\d+)\.output\.dense\.(\w+)", r"encoder_\1/linear2/\2"),
    (r"encoder\.layer\.(\d+)\.output\.LayerNorm\.(\w+)", r"encoder_\1/norm2/\2"),
    (r"pooler\.dense\.(\w+)", r"pooler/dense/\1"),
)
_RULES: dict[str, tuple[Rule, ...]] = {
    "bert": (
        *_ENCODER,
        (r"cls\.predictions\.bias", "mlm_output/bias"),
        (r"cls\.predictions\.transform\.dense\.(\w+)", r"mlm_transform/\1"),
        (r"cls\.predictions\.transform\.LayerNorm\.(\w+)", r"mlm_norm/\1"),
        (r"cls\.seq_relationship\.(\w+)", r"nsp_output/\1"),
    ),
    "roberta": (
        *_ENCODER,
        (r"lm_head\.bias", "mlm_output/bias"),
        (r"lm_head\.dense\.(\w+)", r"mlm_transform/\1"),
        (r"lm_head\.layer_norm\.(\w+)", r"mlm_norm/\1"),
    ),
    "gpt2": (
        (r"wte\.weight", "embeddings/word_embeddings"),
        (r"wpe\.weight", "embeddings/position_embeddings"),
        (r"h\.(\d+)\.ln_1\.(\w+)", r"decoder_\1/norm1/\2"),
        (r"h\.(\d+)\.ln_2\.(\w+)", r"decoder_\1/norm3/\2"),
        (r"h\.(\d+)\.attn\.c_attn\.(\w+)", r"decoder_\1/self_attn/query+key+value/\2"),
        (r"h\.(\d+)\.attn\.c_proj\.(\w+)", r"decoder_\1/self_attn/output/\2"),
        (r"h\.(\d+)\.mlp\.c_fc\.(\w+)", r"decoder_\1/linear1/\2"),
        (r"h\.(\d+)\.mlp\.c_proj\.(\w+)", r"decoder_\1/linear2/\2"),
        (r"ln_f\.(\w+)", r"final_norm/\1"),
    ),
    "gptj": (
        (r"wte\.weight", "embeddings/word_embeddings"),
        (r"h\.(\d+)\.ln_1\.(\w+)", r"decoder_\1/norm1/\2"),
        (r"h\.(\d+)\.attn\.q_proj\.(\w+)", r"decoder_\1/self_attn/query/\2"),
        (r"h\.(\d+)\.attn\.k_proj\.(\w+)", r"decoder_\1/self_attn/key/\2"),
        (r"h\.(\d+)\.attn\.v_proj\.(\w+)", r"decoder_\1/self_attn/value/\2"),
        (r"h\.(\d+)\.attn\.out_proj\.(\w+)", r"decoder_\1/self_attn/output/\2"),
        (r"h\.(\d+)\.mlp\.fc_in\.(\w+)", r"decoder_\1/linear1/\2"),
        (r"h\.(\d+)\.mlp\.fc_out\.(\w+)", r"decoder_\1/linear2/\2"),
        (r"ln_f\.(\w+)", r"final_norm/\1"),
        (r"lm_head\.(\w+)", r"output/\1"),
    ),
    "t5": (
        (r"shared\.weight", "embeddings/word_embeddings"),
        (r"lm_head\.(weight)", r"output/\1"),
        (
            r"(\w+)\.block\.0\.layer\.0\.SelfAttention\.relative_attention_bias\.weight",
            r"\1_positions/relative_attention_bias",
        ),
        (r"(\w+)\.block\.(\d+)\.layer\.0\.SelfAttention\.(\w)\.(\w+)", r"\1_\2/self_attn/\3/\4"),
        (r"(\w+)\.block\.(\d+)\.layer\.1\.EncDecAttention\.(\w)\.(\w+)", r"\1_\2/multihead_attn/\3/\4"),
        (r"(\w+)\.block\.(\d+)\.layer\.\d\.DenseReluDense\.wi\.(\w+)", r"\1_\2/linear1/\3"),
        (r"(\w+)\.block\.(\d+)\.layer\.\d\.DenseReluDense\.wi_([01])\.(\w+)", r"\1_\2/linear1/gated\3/\4"),
        (r"(\w+)\.block\.(\d+)\.layer\.\d\.DenseReluDense\.wo\.(\w+)", r"\1_\2/linear2/\3"),
        (r"encoder\.block\.(\d+)\.layer\.0\.layer_norm\.(\w+)", r"encoder_\1/norm1/\2"),
        (r"encoder\.block\.(\d+)\.layer\.1\.layer_norm\.(\w+)", r"encoder_\1/norm2/\2"),
        (r"decoder\.block\.(\d+)\.layer\.0\.layer_norm\.(\w+)", r"decoder_\1/norm1/\2"),
        (r"decoder\.block\.(\d+)\.layer\.1\.layer_norm\.(\w+)", r"decoder_\1/norm2/\2"),
        (r"decoder\.block\.(\d+)\.layer\.2\.layer_norm\.(\w+)", r"decoder_\1/norm3/\2"),
        (r"(\w+)\.final_layer_norm\.(\w+)", r"\1_norm/\2"),
    ),
}
_PREFIX = re.compile(r"^(bert|roberta|transformer)\.")
# HuggingFace's second names of the same weights, and constants of older versions.
_LEFT_OUT = re.compile(
    r"cls\.predictions\.decoder\..*|lm_head\.decoder\..*|.*\.embed_tokens\.weight|.*\.position_ids"
    r"|h\.\d+\.attn\.(masked_)?bias"
)
_T5_PARTS = {"q": "query", "k": "key", "v": "value", "o": "output"}
_IN_OUT = ("gpt2",)  # models whose kernels are [in, out] in HuggingFace too


def from_huggingface(model: str, state_dict: Mapping[str, Any]) -> dict[str, Array]:
    """Our variables by name: float32 arrays of the weights of a state_dict (torch tensors or arrays).

    `model` is bert (BertForPreTraining), roberta (RobertaForMaskedLM), gpt2 (GPT2LMHeadModel), gptj
    (GPTJForCausalLM) or t5 (T5ForConditionalGeneration; T5 1.1 too).
    """
    if model not in _RULES:
        raise UserError(f"There is no table of names for '{model}'.", suggest(model, _RULES))
    theirs = {_PREFIX.sub("", name): value for name, value in state_dict.items()}
    ours: dict[str, Array] = {}
    for name, value in theirs.items():
        if _LEFT_OUT.fullmatch(name) or _is_tied_output(model, name, theirs):
            continue
        for new_name, array in _rename(model, name, _as_array(value)):
            ours[new_name] = array
    return _join_gates(ours)


def write_checkpoint(weights: Mapping[str, Array], path: str | Path) -> None:
    """Writes a TensorFlow checkpoint of these variables, to be named as warm_start_from."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        placeholders = {
            name: tf.compat.v1.placeholder(tf.float32, array.shape) for name, array in weights.items()
        }
        variables = {
            name: tf.compat.v1.get_variable(
                name, initializer=placeholder, use_resource=True, dtype=tf.float32, trainable=False
            )
            for name, placeholder in placeholders.items()
        }
        feeds = {placeholders[name]: array for name, array in weights.items()}
        session.run([variable.initializer for variable in variables.values()], feeds)
        tf.compat.v1.train.Saver(variables).save(session, str(path), write_meta_graph=False)


def _rename(model: str, name: str, array: Array) -> Iterator[tuple[str, Array]]:
    for pattern, replacement in _RULES[model]:
        found = re.fullmatch(pattern, name)
        if found is None:
            continue
        *scope, kind = found.expand(replacement).split("/")
        if scope and scope[-1] in _T5_PARTS and scope[-2].endswith("attn"):
            scope[-1] = _T5_PARTS[scope[-1]]
        is_norm = bool(scope) and "norm" in scope[-1]
        if kind == "weight":
            kind = "gamma" if is_norm else "kernel"
            if not is_norm and model not in _IN_OUT:
                array = array.T
        elif kind == "bias" and is_norm:
            kind = "beta"
        parts = scope[-1].split("+") if scope else [""]
        for part, piece in zip(parts, np.split(array, len(parts), -1), strict=True):
            yield "/".join([*scope[:-1], part, kind]), np.ascontiguousarray(piece)
        return
    raise UserError(
        f"'{name}' is no weight of {model}.", "Give the state_dict of the class that the docstring names."
    )


def _is_tied_output(model: str, name: str, theirs: Mapping[str, Any]) -> bool:
    if name != "lm_head.weight":
        return False
    if model == "gpt2":
        return True
    return model == "t5" and np.array_equal(_as_array(theirs[name]), _as_array(theirs["shared.weight"]))


def _join_gates(weights: dict[str, Array]) -> dict[str, Array]:
    """Joins T5 1.1's separate gate and value kernels into one, the value first."""
    joined = {name: array for name, array in weights.items() if "/gated" not in name}
    for name, gate in weights.items():
        if "/gated0/" in name:
            value = weights[name.replace("/gated0/", "/gated1/")]
            joined[name.replace("/gated0/", "/")] = np.concatenate([value, gate], -1)
    return joined


def _as_array(value: Any) -> Array:
    to_float: Callable[[], Any] | None = getattr(value, "float", None)  # a torch tensor, whatever its type
    if to_float is not None:
        value = to_float().detach().cpu().numpy()
    return np.asarray(value, np.float32)
