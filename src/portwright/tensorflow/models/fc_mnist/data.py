"""Handwritten digits: scikit-learn's 8 x 8 set, or MNIST when data_dir has its IDX files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf

from portwright.images.mnist import read_digits, read_mnist


def train_input_fn(params: dict[str, Any], input_context: Any = None) -> tf.data.Dataset:
    return make_dataset(params, "train_input", "train", input_context).repeat().prefetch(tf.data.AUTOTUNE)


def eval_input_fn(params: dict[str, Any], input_context: Any = None) -> tf.data.Dataset:
    return make_dataset(params, "eval_input", "test", input_context).prefetch(tf.data.AUTOTUNE)


def make_dataset(params: dict[str, Any], section: str, split: str, input_context: Any) -> tf.data.Dataset:
    """One pass over the data, as batches of (images, labels)."""
    options = params[section]
    data_dir = options.get("data_dir")
    images, labels = read_digits(split) if data_dir is None else read_mnist(Path(data_dir), split)
    dataset = tf.data.Dataset.from_tensor_slices((images[..., None], labels))
    if input_context is not None and input_context.num_input_pipelines > 1:
        dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    if options["shuffle"]:
        dataset = dataset.shuffle(len(images), seed=params["runconfig"]["seed"])
    return dataset.batch(
        options["batch_size"],
        drop_remainder=options["drop_last"],
        num_parallel_calls=options["num_workers"] or None,
    )
