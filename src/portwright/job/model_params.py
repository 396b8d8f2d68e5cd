"""The keys of the model section that families of models share, with the model zoo's names."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, PositiveFloat, PositiveInt


class PrecisionParams(BaseModel):
    mixed_precision: bool = Field(False, description="compute in half precision, keep weights in float32")
    fp16_type: Literal["float16", "bfloat16", "cbfloat16"] | None = Field(
        None, description="which half precision; left out: bfloat16 on a CPU, else float16"
    )


class TransformerParams(PrecisionParams):
    vocab_size: PositiveInt = Field(1024, description="tokens that the model knows")
    hidden_size: PositiveInt = Field(64, description="width of the model")
    num_hidden_layers: PositiveInt = Field(2, description="layers")
    num_heads: PositiveInt = Field(4, description="attention heads; they divide the width")
    filter_size: PositiveInt = Field(256, description="width of the feed-forward networks")
    dropout_rate: float = Field(0.1, ge=0, lt=1)
    attention_dropout_rate: float = Field(0.1, ge=0, lt=1)
    layer_norm_epsilon: PositiveFloat = 1e-5
    max_position_embeddings: PositiveInt = Field(64, description="positions that the model knows")
    initializer_range: PositiveFloat = Field(0.02, description="standard deviation of the first weights")


class BertEncoderParams(TransformerParams):
    encoder_nonlinearity: str = "gelu"
    use_segment_embedding: bool = Field(
        True, description="the two parts of a pair have embeddings of their own"
    )
    num_segments: PositiveInt = 2
    pad_token_id: int = Field(0, ge=0)
    positions_after_padding: bool = Field(
        False, description="RoBERTa's positions: they count from pad_token_id + 1, padding has pad_token_id"
    )


class BertParams(BertEncoderParams):
    disable_nsp: bool = Field(False, description="masked tokens alone, without the next sentence")
    mlm_loss_weight: PositiveFloat = 1.0


class GptParams(TransformerParams):
    nonlinearity: str = "gelu_new"
    embedding_dropout_rate: float | None = Field(None, description="left out: dropout_rate", ge=0, lt=1)
    share_embedding_weights: bool = Field(True, description="the output layer is the embedding")
    use_bias_in_output: bool = False
    loss_scaling: Literal["num_tokens", "batch_size"] = Field(
        "num_tokens", description="what the sum of the tokens' losses is divided by"
    )
    loss_weight: PositiveFloat = Field(1.0, description="factor of the loss")


class GptDecoderParams(GptParams):
    """What PyTorch's networks take beyond TensorFlow's."""

    initializer_range: PositiveFloat | None = Field(  # type: ignore[assignment]
        0.02, description="standard deviation of the first weights; null: as GPT-J's own code drew them"
    )
    rotary_dim: PositiveInt | None = Field(
        None,
        description="of a head, how many dimensions are turned by their position; even. With it the layers are GPT-J's",
    )
    attention_type: Literal["scaled_dot_product", "dot_product"] = "scaled_dot_product"
    use_projection_bias_in_attention: bool | None = Field(
        None, description="biases of queries, keys and values; left out: all but GPT-J have them"
    )
    use_ffn_bias_in_attention: bool | None = Field(
        None, description="bias of attention's output; left out: all but GPT-J have it"
    )
    use_ffn_bias: bool = Field(True, description="biases of the feed-forward networks")
    attention_sliding_window_length: PositiveInt | None = Field(
        None, description="tokens that a banded layer sees, the newest counted in; left out: all are dense"
    )
    sliding_window_every_other_decoder_layer: bool = Field(
        False,
        description="with a window: dense and banded layers by turns, as in GPT-3, the first dense; else all are banded",
    )
    bos_token_id: int | None = Field(None, ge=0, description="the token that texts begin with")
    eos_token_id: int | list[int] | None = Field(None, description="the tokens that end a generated text")
    pad_token_id: int | None = Field(None, ge=0, description="the token that fills up short texts")
