"""Text, masked batch by batch, or your own records that are masked already."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright.tensorflow.models_common.text_input import masked_lm_dataset


def train_input_fn(params: dict[str, Any], input_context: Any = None) -> tf.data.Dataset:
    return masked_lm_dataset(params, "train_input", input_context)


def eval_input_fn(params: dict[str, Any], input_context: Any = None) -> tf.data.Dataset:
    return masked_lm_dataset(params, "eval_input", input_context)
