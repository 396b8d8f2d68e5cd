"""Defaults and the schema of this model's own params; the names are the model zoo's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt

from portwright.job.model_params import PrecisionParams
from portwright.job.params import get_params as read_params
from portwright.tensorflow.models_common.input_params import InputParams, fill_defaults


class ImageInputParams(InputParams):
    image_shape: list[PositiveInt] = Field(
        [32, 32, 1], description="height, width, channels", min_length=3, max_length=3
    )
    augment_data: bool = Field(True, description="turn images over at random, in training")
    num_samples: PositiveInt = Field(512, description="of generated images")


class ModelParams(PrecisionParams):
    num_classes: int = Field(
        2, ge=2, description="with the background; two are told apart by one output, more by one each"
    )
    encoder_filters: list[PositiveInt] = Field(
        [8, 16, 32], description="channels of each depth, the bottleneck last"
    )
    decoder_filters: list[PositiveInt] = Field([16, 8], description="one fewer than encoder_filters")
    initial_conv_filters: PositiveInt | None = None
    convs_per_block: list[Literal["3x3_conv", "1x1_conv"]] = Field(["3x3_conv", "3x3_conv"], min_length=1)
    skip_connect: bool = True
    batch_norm: bool = Field(False, description="after each convolution")
    enable_bias: bool = True
    nonlinearity: str = "relu"
    initializer: str = "glorot_uniform"
    loss: Literal["bce", "bce_dice"] = Field(
        "bce", description="cross-entropy of pixels, or that and one minus Dice"
    )


# run() checks these sections against the classes, so that a misspelt key is an error with its line.
PARAMS_SCHEMA = {"train_input": ImageInputParams, "eval_input": ImageInputParams, "model": ModelParams}


def get_params(params_file: str | Path) -> dict[str, Any]:
    return set_defaults(read_params(params_file))


def set_defaults(params: dict[str, Any]) -> dict[str, Any]:
    return fill_defaults(params, PARAMS_SCHEMA)
