"""Defaults and the schema of this model's own params; the names are the model zoo's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from portwright.job.model_params import PrecisionParams, T5NetworkParams
from portwright.job.params import get_params as read_params
from portwright.tensorflow.models_common.input_params import TextInputParams, fill_defaults


class InputParams(TextInputParams):
    max_sequence_length: None = Field(None, description="not used: source and target have a length each")
    src_max_sequence_length: PositiveInt = Field(64, description="tokens of an input")
    tgt_max_sequence_length: PositiveInt = Field(24, description="tokens of a target")
    extra_ids: PositiveInt = Field(
        20, description="sentinels, the last tokens of the vocabulary (train_input decides)"
    )
    corruptions: PositiveInt = Field(
        4, description="samples of a piece of text, each with other spans taken out"
    )


class ModelParams(T5NetworkParams, PrecisionParams):
    loss_scaling: Literal["num_tokens", "batch_size"] = "num_tokens"
    loss_weight: PositiveFloat = 1.0
    label_smoothing: float = Field(0.0, ge=0, lt=1)


# run() checks these sections against the classes, so that a misspelt key is an error with its line.
PARAMS_SCHEMA = {"train_input": InputParams, "eval_input": InputParams, "model": ModelParams}


def get_params(params_file: str | Path) -> dict[str, Any]:
    return set_defaults(read_params(params_file))


def set_defaults(params: dict[str, Any]) -> dict[str, Any]:
    return fill_defaults(params, PARAMS_SCHEMA)
