"""Defaults and the schema of this model's own params; the names are the model zoo's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import PositiveFloat

from portwright.job.model_params import BertParams
from portwright.job.params import get_params as read_params
from portwright.tensorflow.models_common.input_params import fill_defaults
from portwright.tensorflow.models_common.text_input import MaskedInputParams


class ModelParams(BertParams):
    layer_norm_epsilon: PositiveFloat = 1e-12  # as published


# run() checks these sections against the classes, so that a misspelt key is an error with its line.
PARAMS_SCHEMA = {"train_input": MaskedInputParams, "eval_input": MaskedInputParams, "model": ModelParams}


def get_params(params_file: str | Path) -> dict[str, Any]:
    return set_defaults(read_params(params_file))


def set_defaults(params: dict[str, Any]) -> dict[str, Any]:
    return fill_defaults(params, PARAMS_SCHEMA)
