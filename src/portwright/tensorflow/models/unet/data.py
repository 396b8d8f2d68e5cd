"""Textures with a defect to be found: your own records, or generated ones."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from portwright import UserError
from portwright.images.textures import make_textures
from portwright.tensorflow.models_common.pipeline import dataset_of_arrays, dataset_of_records

Features = dict[str, tf.Tensor]


def train_input_fn(params: dict[str, Any], input_context: Any = None) -> tf.data.Dataset:
    return make_dataset(params, "train_input", input_context)


def eval_input_fn(params: dict[str, Any], input_context: Any = None) -> tf.data.Dataset:
    return make_dataset(params, "eval_input", input_context)


def make_dataset(params: dict[str, Any], section: str, input_context: Any) -> tf.data.Dataset:
    """Batches of ({image}, mask): images as batch, height, width, channels; a class number for each pixel."""
    options = params[section]
    training = section == "train_input"
    shape = options["image_shape"]
    factor = 2 ** (len(params["model"]["encoder_filters"]) - 1)
    if shape[0] % factor or shape[1] % factor:
        raise UserError(
            f"{section}.image_shape is {shape}, and the model halves it {len(params['model']['encoder_filters']) - 1} times.",
            f"Take a height and a width that {factor} divides.",
        )
    seed = params.get("runconfig", {}).get("seed") or 1

    def finish(batch: Features, number: tf.Tensor) -> tuple[Features, tf.Tensor]:
        image, mask = batch["image"], tf.cast(batch["mask"], tf.int32)[..., 0]
        if training and options["augment_data"]:
            image, mask = flip(image, mask, seed, number)
        return {"image": image}, mask

    if options["data_dir"] is not None:
        spec = {
            "image": tf.io.FixedLenFeature(shape, tf.float32),
            "mask": tf.io.FixedLenFeature([*shape[:2], 1], tf.float32),
        }
        return dataset_of_records(options, training, spec, finish, input_context)
    if section == "eval_input" and params["train_input"]["data_dir"] is not None:
        raise UserError(
            "eval_input has no data_dir, and train_input has one.", "Name the folder for evaluation too."
        )
    arrays = make_textures(
        options["num_samples"], shape, params["model"]["num_classes"], seed + (not training)
    )
    return dataset_of_arrays(arrays, options, training, finish, input_context)


def flip(image: tf.Tensor, mask: tf.Tensor, seed: int, number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Flips each sample left to right with probability one half."""
    draw = tf.stack([tf.constant(seed, tf.int64), tf.cast(number, tf.int64)])
    turned = tf.random.stateless_uniform([image.shape[0]], draw) < 0.5
    image = tf.where(turned[:, None, None, None], tf.reverse(image, [2]), image)
    return image, tf.where(turned[:, None, None], tf.reverse(mask, [2]), mask)
