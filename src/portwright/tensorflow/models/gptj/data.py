"""Running text, or your own records, for a model that predicts the next token."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright.tensorflow.models_common.text_input import language_model_dataset


def train_input_fn(params: dict[str, Any], input_context: Any = None) -> tf.data.Dataset:
    return language_model_dataset(params, "train_input", input_context)


def eval_input_fn(params: dict[str, Any], input_context: Any = None) -> tf.data.Dataset:
    return language_model_dataset(params, "eval_input", input_context)
