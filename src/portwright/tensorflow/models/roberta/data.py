"""Text, masked batch by batch, or your own records that are masked already."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright.tensorflow.models_common.masked_lm_input import masked_lm_dataset


def train_input_fn(params: dict[str, Any], input_context: Any = None) -> tf.data.Dataset:
    return make_dataset(params, "train_input", input_context)


def eval_input_fn(params: dict[str, Any], input_context: Any = None) -> tf.data.Dataset:
    return make_dataset(params, "eval_input", input_context)


def make_dataset(params: dict[str, Any], section: str, input_context: Any) -> tf.data.Dataset:
    pairs = not params["model"]["disable_nsp"]
    return masked_lm_dataset(params, section, pairs=pairs, input_context=input_context)
