"""Defaults and the schema of this model's own params; the names are the model zoo's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt

from portwright.job.model_params import BertParams
from portwright.job.params import get_params as read_params
from portwright.tensorflow.models_common.input_params import fill_defaults
from portwright.tensorflow.models_common.text_input import MaskedInputParams


class ModelParams(BertParams):
    disable_nsp: bool = True
    use_segment_embedding: bool = False
    projected_dims: PositiveInt = Field(16, description="keys and values that a sequence is projected to")
    attention_style: Literal["linformer", "linformer-shared-heads", "linformer-shared-kv"] = Field(
        "linformer-shared-heads",
        description="projections: keys and values each their own (linformer and shared-heads), or one for both (shared-kv)",
    )


# run() checks these sections against the classes, so that a misspelt key is an error with its line.
PARAMS_SCHEMA = {"train_input": MaskedInputParams, "eval_input": MaskedInputParams, "model": ModelParams}


def get_params(params_file: str | Path) -> dict[str, Any]:
    return set_defaults(read_params(params_file))


def set_defaults(params: dict[str, Any]) -> dict[str, Any]:
    return fill_defaults(params, PARAMS_SCHEMA)
