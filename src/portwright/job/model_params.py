"""The keys of the model section of the reference models, with the model zoo's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from portwright.errors import UserError
from portwright.job.problems import check_model, raise_problems


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


class PaddingParams(BaseModel):
    freeze_padding_embedding: bool = Field(
        False,
        description="the embedding of padding has no gradient, as in HuggingFace's (an IPU refuses that); only scores at padding would give it one",
    )


class BertPretrainParams(BertParams, PaddingParams):
    layer_norm_epsilon: PositiveFloat = 1e-12  # as published
    share_embedding_weights: bool = Field(True, description="the output layer is the embedding")
    mlm_nonlinearity: str | None = Field(
        None, description="of the head for masked tokens; left out: encoder_nonlinearity"
    )
    mlm_loss_scaling: Literal["num_masked", "batch_size", "precomputed_num_masked"] = Field(
        "num_masked",
        description="what the sum of the masked tokens' losses is divided by: them, the batch, or what a batch's own mlm_loss_scale says",
    )
    mlm_loss_weight: PositiveFloat = Field(1.0, description="factor of the masked tokens' loss")


class RobertaParams(BertPretrainParams):
    layer_norm_epsilon: PositiveFloat = 1e-5
    num_segments: PositiveInt = Field(
        1, description="RoBERTa has a table of one segment, all of whose ids are 0"
    )
    disable_nsp: Literal[True] = True
    positions_after_padding: bool = Field(
        True, description="positions count from pad_token_id + 1, padding has pad_token_id"
    )
    max_position_embeddings: PositiveInt = Field(
        65, description="pad_token_id + 1 more than a sample has tokens"
    )


class LinformerParams(BertPretrainParams):
    layer_norm_epsilon: PositiveFloat = 1e-5
    disable_nsp: bool = True
    use_segment_embedding: bool = False
    projected_dims: PositiveInt = Field(16, description="keys and values that a sequence is projected to")
    attention_style: Literal[
        "linformer", "linformer-shared-heads", "linformer-shared-kv", "linformer-shared-layers"
    ] = Field(
        "linformer-shared-heads",
        description="projections are of each head, of a layer's keys and values apart, of a layer, or one for all layers",
    )


class BertHeadParams(BertEncoderParams, PaddingParams):
    layer_norm_epsilon: PositiveFloat = 1e-12
    task_dropout: NonNegativeFloat | None = Field(
        None, description="dropout before the head; left out: dropout_rate", lt=1
    )


class BertClassifierParams(BertHeadParams):
    num_labels: PositiveInt = Field(2, description="classes, or numbers of a regression")
    problem_type: (
        Literal["single_label_classification", "multi_label_classification", "regression"] | None
    ) = Field(None, description="left out: a regression with one label, else one class of num_labels")
    task_dropout_before_pooler: bool = Field(
        False, description="drop out before the pooler too, as RoBERTa does"
    )
    label_names: list[str] | None = Field(None, description="what the labels are called, in their order")


class BertTokenClassifierParams(BertHeadParams):
    num_classes: PositiveInt = Field(2, description="classes of a token", ge=2)
    label_names: list[str] | None = Field(None, description="what the classes are called, in their order")


class BertQaParams(BertHeadParams):
    max_answer_length: PositiveInt = Field(30, description="tokens of the longest answer that is predicted")


class BertSummarizationParams(BertHeadParams):
    use_cls_bias: bool = Field(True, description="the score of a sentence has a bias")
    loss_weight: PositiveFloat | None = Field(
        None,
        description="factor of the sentences' summed losses divided by the batch (the model zoo's); left out: their mean",
    )
    compute_rouge: bool = Field(
        False, description="also ROUGE in evaluation; it is counted on the host, which takes a while"
    )


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
