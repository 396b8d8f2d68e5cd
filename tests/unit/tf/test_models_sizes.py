"""The plan-only configs have the published numbers of weights."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tensorflow as tf
from model_folder import load, params_of

LENGTH = 4  # weights do not depend on it, but for learned positions, which the params say
PUBLISHED = {
    # HuggingFace's BertForPreTraining and RobertaForMaskedLM of the published sizes
    ("bert", "params_base"): 110_106_428,
    ("bert", "params_large"): 336_226_108,
    ("roberta", "params_base"): 124_697_433,
    ("roberta", "params_large"): 355_412_057,
    ("gpt2", "params_small"): 124_439_808,
    ("gpt2", "params_medium"): 354_823_168,
    ("gpt2", "params_large"): 774_030_080,
    ("gpt2", "params_xl"): 1_557_611_200,
    ("gptj", "params_6b"): 6_050_882_784,  # GPTJForCausalLM
    ("t5", "params_small"): 60_506_624,
    ("t5", "params_base"): 222_903_552,
    ("t5", "params_3b"): 2_851_598_336,
    ("t5", "params_11b"): 11_307_321_344,
}
ROUGHLY = {  # billions, as the papers' tables say
    ("gpt3", "params_1p3b"): 1.3,
    ("gpt3", "params_2p7b"): 2.7,
    ("gpt3", "params_6p7b"): 6.7,
    ("gpt3", "params_13b"): 13.0,
    ("gpt3", "params_175b"): 175.0,
    ("transformer", "params_base"): 0.065,
    ("transformer", "params_big"): 0.213,
}


def count_weights(model: str, config: str) -> int:
    """Builds the network with two layers, and counts the second as often as the config says."""
    params = params_of(model, config)
    keys = [key for key in params["model"] if key.endswith("num_hidden_layers")]
    depths = {key: params["model"][key] for key in keys}
    params["model"] |= dict.fromkeys(keys, 2)
    ids = tf.zeros([1, LENGTH], tf.int32)
    names = {
        "bert": ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids"),
        "roberta": ("input_ids", "input_mask", "masked_lm_positions", "masked_lm_ids"),
    }
    pair = ("encoder_input_ids", "encoder_mask", "decoder_input_ids", "decoder_mask")
    features = dict.fromkeys(
        names.get(model, pair if model in ("t5", "transformer") else ("input_ids",)), ids
    )
    load(model, "model").model_fn(features, None, "infer", params)
    total = 0
    for variable in tf.compat.v1.trainable_variables():
        size: Any = variable.shape.num_elements()
        second = re.match(r"(encoder|decoder)_1/", variable.name)
        depth = depths.get("num_hidden_layers") or (second and depths[f"{second[1]}_num_hidden_layers"])
        total += size * (depth - 1 if second else 1)
    return total


@pytest.mark.parametrize(("model", "config"), [*PUBLISHED, *ROUGHLY])
def test_published_sizes(model: str, config: str) -> None:
    with tf.Graph().as_default():
        count = count_weights(model, config)
    if (model, config) in PUBLISHED:
        assert count == PUBLISHED[model, config]
    else:
        assert count / 1e9 == pytest.approx(ROUGHLY[model, config], rel=0.04)
