"""Defaults and the schema of this model's own params; the names are the model zoo's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from portwright.job.model_params import PrecisionParams
from portwright.job.params import get_params as read_params
from portwright.tensorflow.models_common.input_params import InputParams, fill_defaults


class PairInputParams(InputParams):
    data_dir: None = Field(None, description="not used: give the four files below")
    src_data_dir: str | None = Field(
        None, description="a text file with a sentence a line, words apart by blanks"
    )
    tgt_data_dir: str | None = Field(None, description="its translation, line by line")
    src_vocab_file: str | None = Field(None, description="a word a line, <pad> <unk> <s> </s> among them")
    tgt_vocab_file: str | None = None
    src_max_sequence_length: PositiveInt = Field(16, description="longer sentences are left out")
    tgt_max_sequence_length: PositiveInt = 18
    num_samples: PositiveInt = Field(20000, description="of generated pairs")


class ModelParams(PrecisionParams):
    src_vocab_size: PositiveInt = 64
    tgt_vocab_size: PositiveInt = 64
    share_encoder_decoder_embedding: bool = Field(False, description="one embedding for both languages")
    share_embedding_weights: bool = Field(True, description="the output layer is the embedding of the target")
    hidden_size: PositiveInt = Field(64, description="width of the model")
    encoder_num_hidden_layers: PositiveInt = 2
    decoder_num_hidden_layers: PositiveInt = 2
    num_heads: PositiveInt = 4
    filter_size: PositiveInt = 256
    encoder_nonlinearity: str = "relu"
    decoder_nonlinearity: str = "relu"
    dropout_rate: float = Field(0.1, ge=0, lt=1)
    attention_dropout_rate: float = Field(0.1, ge=0, lt=1)
    layer_norm_epsilon: PositiveFloat = 1e-5
    position_embedding_type: Literal["fixed", "learned"] = "fixed"
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    loss_scaling: Literal["num_tokens", "batch_size"] = "num_tokens"
    loss_weight: PositiveFloat = 1.0


# run() checks these sections against the classes, so that a misspelt key is an error with its line.
PARAMS_SCHEMA = {"train_input": PairInputParams, "eval_input": PairInputParams, "model": ModelParams}


def get_params(params_file: str | Path) -> dict[str, Any]:
    return set_defaults(read_params(params_file))


def set_defaults(params: dict[str, Any]) -> dict[str, Any]:
    return fill_defaults(params, PARAMS_SCHEMA)
