"""Defaults and the schema of this model's own params; the names of the network's are those of the public CosmicTagger."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from network_options import NetworkOptions
from pydantic import BaseModel, Field, PositiveInt
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


class ModelParams(NetworkOptions):
    loss_balance_scheme: Literal["none", "light", "even", "focal"] = Field(
        "focal", description="weights of pixels"
    )
    mixed_precision: bool = False


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
