"""Defaults and the schema of this model's own params; the names are the model zoo's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from portwright.job.model_params import PrecisionParams
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


class ModelParams(PrecisionParams):
    vocab_size: PositiveInt = Field(1024, description="tokens that the model knows, sentinels among them")
    d_model: PositiveInt = Field(64, description="width of the model")
    d_kv: PositiveInt = Field(16, description="width of a head; heads need not add up to d_model")
    d_ff: PositiveInt = Field(256, description="width of the feed-forward networks")
    num_heads: PositiveInt = 4
    encoder_num_hidden_layers: PositiveInt = 2
    decoder_num_hidden_layers: PositiveInt = 2
    relative_attention_num_buckets: PositiveInt = 32
    relative_attention_max_distance: PositiveInt = 128
    dropout_rate: float = Field(0.1, ge=0, lt=1)
    layer_norm_epsilon: PositiveFloat = 1e-6
    feed_forward_nonlinearity: str = Field("relu", description="relu (T5) or geglu_new (T5 1.1)")
    share_embedding_weights: bool = Field(
        True, description="the output layer is the embedding (T5; not T5 1.1)"
    )
    initializer_factor: PositiveFloat = 1.0
    loss_scaling: Literal["num_tokens", "batch_size"] = "num_tokens"
    loss_weight: PositiveFloat = 1.0
    label_smoothing: float = Field(0.0, ge=0, lt=1)


# run() checks these sections against the classes, so that a misspelt key is an error with its line.
PARAMS_SCHEMA = {"train_input": InputParams, "eval_input": InputParams, "model": ModelParams}


def get_params(params_file: str | Path) -> dict[str, Any]:
    return set_defaults(read_params(params_file))


def set_defaults(params: dict[str, Any]) -> dict[str, Any]:
    return fill_defaults(params, PARAMS_SCHEMA)
