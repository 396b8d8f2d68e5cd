"""The keys of the model section of T5 and of the Transformer of 2017, with the model zoo's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, PositiveFloat, PositiveInt

from portwright.errors import UserError
from portwright.job.model_params import PrecisionParams
from portwright.job.problems import check_model, raise_problems


class Seq2SeqLossParams(PrecisionParams):
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of the target given to all tokens; in training"
    )
    loss_scaling: Literal["num_tokens", "batch_size"] = Field(
        "num_tokens", description="what the sum of the tokens' losses is divided by"
    )
    loss_weight: PositiveFloat = Field(1.0, description="factor of the loss")
    pad_token_id: int = Field(0, ge=0)
    eos_token_id: int = Field(1, ge=0, description="ends a generated sequence")
    decoder_start_token_id: int = Field(0, ge=0, description="begins a generated sequence")
    max_generated_tokens: PositiveInt = Field(64, description="the most that --mode predict generates")
    eval_exact_match: bool = Field(
        False,
        description="evaluation generates too, and tells the share of targets that are met token for token",
    )


class T5NetworkParams(BaseModel):
    """What T5 has in both frameworks."""

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
    feed_forward_nonlinearity: str = Field(
        "relu", description="relu (T5), geglu_new (T5 1.1) or another of the layers'"
    )
    share_embedding_weights: bool = Field(
        True, description="the output layer is the embedding (T5; not T5 1.1)"
    )
    initializer_factor: PositiveFloat = 1.0


class T5Params(T5NetworkParams, Seq2SeqLossParams):
    scale_decoder_outputs: bool | None = Field(
        None, description="by d_model ** -0.5, before the output layer; left out: where it is the embedding"
    )


class Seq2SeqParams(Seq2SeqLossParams):
    src_vocab_size: PositiveInt = Field(64, description="tokens of the source that the model knows")
    tgt_vocab_size: PositiveInt = Field(64, description="tokens of the target that the model knows")
    share_encoder_decoder_embedding: bool = Field(True, description="one embedding for source and target")
    share_embedding_weights: bool = Field(True, description="the output layer is the embedding of the target")
    hidden_size: PositiveInt = Field(64, description="width of the model")
    encoder_num_hidden_layers: PositiveInt = 2
    decoder_num_hidden_layers: PositiveInt = 2
    num_heads: PositiveInt = Field(4, description="attention heads; they divide the width")
    filter_size: PositiveInt = Field(256, description="width of the feed-forward networks")
    encoder_nonlinearity: str = "relu"
    decoder_nonlinearity: str = "relu"
    dropout_rate: float = Field(
        0.1, ge=0, lt=1, description="of embeddings and of what is added to the residual path"
    )
    attention_dropout_rate: float = Field(
        0.0, ge=0, lt=1, description="of attention weights; the paper has none"
    )
    relu_dropout_rate: float = Field(
        0.0, ge=0, lt=1, description="inside of the feed-forward networks; the paper has none"
    )
    layer_norm_epsilon: PositiveFloat = 1e-5
    use_projection_bias_in_attention: bool = Field(
        False, description="of the projections to and from the heads"
    )
    use_ffn_bias: bool = Field(True, description="of the feed-forward networks")
    position_embedding_type: Literal["fixed", "learned"] = Field("fixed", description="fixed: sinusoids")
    max_position_embeddings: PositiveInt = Field(
        64, description="positions that the model knows, on either side"
    )
    label_smoothing: float = Field(
        0.1, ge=0, lt=1, description="share of the target given to all tokens; in training"
    )
    # The tokenizer that is trained on the spot has these.
    pad_token_id: int = Field(0, ge=0)
    eos_token_id: int = Field(3, ge=0, description="ends a generated sequence")
    decoder_start_token_id: int = Field(2, ge=0, description="begins a generated sequence")


ParamsT = TypeVar("ParamsT", bound=Seq2SeqLossParams)


def read_model_section(kind: type[ParamsT], params: Mapping[str, Any]) -> ParamsT:
    """The section as an object, with defaults for what it leaves out; keys that others read are passed over."""
    own = {name: value for name, value in params.items() if name in kind.model_fields}
    options, problems = check_model(kind, own, ("model",))
    raise_problems(problems)
    assert options is not None  # else there were problems
    size: int = getattr(options, "vocab_size" if kind is T5Params else "tgt_vocab_size")
    for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
        if getattr(options, name) >= size:
            raise UserError(
                f"model.{name} is {getattr(options, name)} in a vocabulary of {size}.",
                "Give a token of the target's vocabulary.",
            )
    return options
