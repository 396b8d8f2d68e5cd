"""Defaults and the schema of this model's own params; the names are those of the model zoo's demo."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, PositiveInt

from portwright.job.input_params import fill_defaults
from portwright.job.params import get_params as read_params


class InputParams(BaseModel):
    num_samples: PositiveInt = Field(2000, description="slices of the alphabet in an epoch")
    seq_length: PositiveInt = Field(10, description="letters of a slice; one more follows, to be predicted")
    batch_size: PositiveInt = Field(32, description="samples of a step, over all processes")
    shuffle: bool = Field(False, description="a new order each epoch")
    num_workers: int = Field(0, ge=0, description="processes that load data")


class ModelParams(BaseModel):
    variant: Literal["pytorch", "layers", "literal"] = Field(
        "layers",
        description="pytorch (torch.nn), layers (the same on the layers API), literal (seed 003's form, another model)",
    )
    vocab_size: PositiveInt = Field(26, description="letters of the alphabet")
    embedding_size: PositiveInt = Field(64, description="width of the model")
    num_heads: PositiveInt = Field(2, description="attention heads; they divide the width")
    hidden_size: PositiveInt = Field(64, description="width of the feed-forward networks")
    num_hidden_layers: PositiveInt = Field(2, description="encoder layers")
    dropout: float = Field(0.0, ge=0, lt=1)
    seq_len: PositiveInt = Field(10, description="positions that the model knows")
    nonlinearity: Literal["relu", "gelu"] = Field(
        "gelu", description="activation of the feed-forward networks"
    )
    mixed_precision: bool = False


# run() checks these sections against the classes, so that a misspelt key is an error with its line.
PARAMS_SCHEMA = {"train_input": InputParams, "eval_input": InputParams, "model": ModelParams}


def get_params(params_file: str | Path) -> dict[str, Any]:
    return set_defaults(read_params(params_file))


def set_defaults(params: dict[str, Any]) -> dict[str, Any]:
    fill_defaults(params, PARAMS_SCHEMA)
    params.setdefault("runconfig", {}).setdefault("seed", 1)
    return params
