"""Defaults and the schema of this model's own params; the names are the model zoo's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, PositiveInt, model_validator

from portwright.job.input_params import fill_defaults
from portwright.job.model_params import PrecisionParams
from portwright.job.params import get_params as read_params


class InputParams(BaseModel):
    batch_size: PositiveInt = Field(16, description="images of a step, over all processes")
    shuffle: bool = Field(False, description="a new order each epoch")
    drop_last: bool = Field(True, description="leave out a short last batch")
    num_workers: int = Field(0, ge=0, description="processes that decode images")
    data_dir: str | None = Field(
        None,
        description="folder with images/ and masks/ (same names; PNG, JPEG, TIFF, NPY), or with *.h5; without it images are generated",
    )
    image_shape: list[PositiveInt] = Field(
        [32, 32, 1], description="height, width, channels", min_length=3, max_length=3
    )
    fit: Literal["resize", "crop"] = Field(
        "resize",
        description="how a file's image gets that size; crops are anywhere in training, else in the middle",
    )
    normalize_data_method: Literal["zero_centered", "zero_one", "standard_score", "none"] = Field(
        "zero_centered",
        description="pixels from -1 to 1, from 0 to 1, of mean 0 and variance 1, or as they are",
    )
    augment_data: bool = Field(True, description="turn images over at random, in training")
    mask_threshold: int | None = Field(
        None, description="of two classes: pixels of a mask above it are the second"
    )
    mask_palette: list[list[int]] | None = Field(
        None,
        description="the colour of each class, [red, green, blue]; left out: a mask's pixels are class numbers",
    )
    missing_masks: Literal["error", "background", "skip"] = Field(
        "error", description="what an image without a mask is"
    )
    cache_megabytes: int = Field(512, ge=0, description="decoded images that each process keeps")
    num_samples: PositiveInt = Field(512, description="of generated images")

    @model_validator(mode="after")
    def _has_whole_colours(self) -> InputParams:
        for colour in self.mask_palette or ():
            if len(colour) != 3 or not all(0 <= part <= 255 for part in colour):
                raise ValueError(f"mask_palette has {colour}; a colour is [red, green, blue] of 0 to 255")
        return self


class ModelParams(PrecisionParams):
    num_classes: int = Field(2, ge=2, le=255, description="with the background")
    input_channels: PositiveInt = Field(1, description="of an image")
    encoder_filters: list[PositiveInt] = Field(
        [8, 16, 32], description="channels of each depth, the bottleneck last"
    )
    decoder_filters: list[PositiveInt] = Field([16, 8], description="one fewer than encoder_filters")
    initial_conv_filters: PositiveInt | None = Field(
        None, description="of a convolution before the first depth"
    )
    convs_per_block: list[Literal["3x3_conv", "1x1_conv"]] = Field(["3x3_conv", "3x3_conv"], min_length=1)
    skip_connect: bool = Field(True, description="hand each depth's result over to the way up")
    residual_blocks: bool = Field(False, description="add what comes into a block to its result")
    downscale_method: Literal["max_pool", "strided_conv"] = "max_pool"
    upscale_method: Literal["transposed_conv", "bilinear"] = "transposed_conv"
    padding: Literal["same", "valid"] = Field(
        "same", description="valid, as in the paper: masks are compared in the middle of the image alone"
    )
    batch_norm: bool = Field(False, description="after each convolution")
    enable_bias: bool = Field(True, description="left out before a batch norm")
    nonlinearity: str = "relu"
    dropout_rate: float = Field(0.0, ge=0, lt=1, description="at the end of the way down")
    initializer: str | dict[str, Any] = "glorot_uniform"
    bias_initializer: str | dict[str, Any] = "zeros"
    loss: Literal["bce", "ssce", "dice", "bce_dice", "ssce_dice"] | None = Field(
        None,
        description="bce: one output for two classes; ssce: an output a class; and one minus Dice; left out: bce for two classes, else ssce",
    )
    ignore_index: int | None = Field(None, ge=0, le=255, description="value of mask pixels that do not count")

    @model_validator(mode="after")
    def _suits_its_classes(self) -> ModelParams:
        if self.loss is not None and self.loss.startswith("bce") and self.num_classes != 2:
            raise ValueError(
                f"loss {self.loss} is for two classes, not {self.num_classes}; take ssce or ssce_dice"
            )
        if self.ignore_index is not None and self.ignore_index < self.num_classes:
            raise ValueError(
                f"ignore_index {self.ignore_index} is a class; take one from {self.num_classes} to 255"
            )
        return self


# run() checks these sections against the classes, so that a misspelt key is an error with its line.
PARAMS_SCHEMA: dict[str, type[BaseModel]] = {
    "train_input": InputParams,
    "eval_input": InputParams,
    "model": ModelParams,
}


def get_params(params_file: str | Path) -> dict[str, Any]:
    return set_defaults(read_params(params_file))


def set_defaults(params: dict[str, Any]) -> dict[str, Any]:
    fill_defaults(params, PARAMS_SCHEMA)
    model = params["model"]
    if model["loss"] is None:
        model["loss"] = "bce" if model["num_classes"] == 2 else "ssce"
    params.setdefault("runconfig", {}).setdefault("seed", 1)
    return params
