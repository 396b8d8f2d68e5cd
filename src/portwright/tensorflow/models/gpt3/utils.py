"""Defaults and the schema of this model's own params; the names are the model zoo's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from portwright.job.model_params import GptParams
from portwright.job.params import get_params as read_params
from portwright.tensorflow.models_common.input_params import TextInputParams, fill_defaults

# run() checks these sections against the classes, so that a misspelt key is an error with its line.
PARAMS_SCHEMA = {"train_input": TextInputParams, "eval_input": TextInputParams, "model": GptParams}


def get_params(params_file: str | Path) -> dict[str, Any]:
    return set_defaults(read_params(params_file))


def set_defaults(params: dict[str, Any]) -> dict[str, Any]:
    return fill_defaults(params, PARAMS_SCHEMA)
