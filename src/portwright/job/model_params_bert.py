"""The model sections of BERT, RoBERTa, Linformer and of the heads of fine-tuning, with the model zoo's names."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from portwright.job.model_params import BertEncoderParams, BertParams


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
