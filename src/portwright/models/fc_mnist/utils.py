"""Defaults and the schema of this model's own params."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, PositiveInt

from portwright.job.input_params import fill_defaults
from portwright.job.params import get_params as read_params


class InputParams(BaseModel):
    batch_size: PositiveInt = Field(64, description="samples of a step, over all processes")
    shuffle: bool = Field(False, description="a new order each epoch")
    drop_last: bool = Field(False, description="leave out a short last batch")
    num_workers: int = Field(0, ge=0, description="processes that load data")
    data_dir: str | None = Field(
        None, description="folder with MNIST's IDX files; without it scikit-learn's digits"
    )


class ModelParams(BaseModel):
    input_size: PositiveInt = Field(64, description="pixels of an image: 64 for digits, 784 for MNIST")
    hidden_sizes: list[PositiveInt] = Field([128, 64], description="width of each hidden layer")
    num_classes: PositiveInt = 10
    activation_fn: Literal["relu", "tanh", "elu", "selu", "gelu", "linear"] = "relu"
    dropout: float = Field(0.0, ge=0, lt=1)
    mixed_precision: bool = False


# run() checks these sections against the classes, so that a misspelt key is an error with its line.
PARAMS_SCHEMA = {"train_input": InputParams, "eval_input": InputParams, "model": ModelParams}


def get_params(params_file: str | Path) -> dict[str, Any]:
    return set_defaults(read_params(params_file))


def set_defaults(params: dict[str, Any]) -> dict[str, Any]:
    return fill_defaults(params, PARAMS_SCHEMA)
