"""Defaults and the schema of this model's own params; the names of the network's are those of the public CosmicTagger."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, PositiveInt, field_validator
from rate_schedule import published_schedule

from portwright.job.input_params import fill_defaults
from portwright.job.params import get_params as read_params


class InputParams(BaseModel):
    batch_size: PositiveInt = Field(2, description="events of a step, over all processes")
    num_samples: PositiveInt = Field(
        43075, description="events of an epoch; a file that has fewer gives what it has"
    )
    file: str | None = Field(None, description="larcv3's HDF5 file; without it events are drawn on the spot")
    downsample: int = Field(1, ge=0, le=8, description="times that 1280 x 2048 pixels are halved")
    image_producer: str = Field("sbndwire", description="whose sparse2d images of the file are the charge")
    label_producer: str = Field(
        "sbnd_cosmicseg", description="whose sparse2d images of the file are the labels"
    )
    shuffle: bool = Field(False, description="a new order each epoch")
    drop_last: bool = Field(True, description="leave out a short last batch")
    num_workers: int = Field(0, ge=0, description="processes that load data")


class ModelParams(BaseModel):
    conv_mode: Literal["conv_2D", "conv_3D"] = Field("conv_2D", description="UResNet2D or UResNet3D")
    n_initial_filters: PositiveInt = Field(16, description="filters at full resolution")
    depth: int = Field(6, ge=0, description="times that the resolution is halved on the way down")
    growth_rate: Literal["additive", "multiplicative"] = Field(
        "additive", description="n_initial_filters more a level, or twice as many"
    )
    blocks_per_layer: int = Field(
        2, ge=0, description="blocks of a level, on the way down and again on the way up"
    )
    blocks_final: int = Field(5, ge=0, description="blocks at full resolution before the last convolution")
    blocks_deepest_layer: int = Field(5, ge=0, description="blocks of the deepest level")
    bottleneck_deepest: PositiveInt = Field(256, description="filters of the deepest level")
    filter_size_deepest: PositiveInt = Field(5, description="kernel of the deepest level; odd")
    block_concat: bool = Field(False, description="keep the planes apart in the deepest level of UResNet2D")
    residual: bool = Field(
        True, description="blocks of two convolutions and a residual, or of one convolution"
    )
    bias: bool = Field(True, description="biases in convolutions")
    normalization: Literal["batch", "none"] = Field("batch", description="norm after each convolution")
    downsampling: Literal["max_pooling", "convolutional"] = "max_pooling"
    upsampling: Literal["interpolation", "convolutional"] = "interpolation"
    connections: Literal["concat", "sum", "none"] = Field(
        "concat", description="skips between equal resolutions"
    )
    loss_balance_scheme: Literal["none", "light", "even", "focal"] = Field(
        "focal", description="weights of pixels"
    )
    mixed_precision: bool = False

    @field_validator("filter_size_deepest")
    @classmethod
    def _is_odd(cls, size: int) -> int:
        if size % 2 == 0:
            raise ValueError("an even kernel has no middle; take an odd one")
        return size


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
    params.setdefault("runconfig", {}).setdefault("seed", 1)
    optimizer, train = params.setdefault("optimizer", {}), params["train_input"]
    optimizer.setdefault("optimizer_type", "Adam")
    if "learning_rate" not in optimizer and "lr" not in optimizer:
        optimizer["learning_rate"] = published_schedule(train["num_samples"] / train["batch_size"])
    return params
