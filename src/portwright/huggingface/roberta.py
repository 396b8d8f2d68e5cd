"""RoBERTa: BERT's encoder with positions that count from padding's, and the same heads under other names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portwright.errors import UnsupportedError
from portwright.huggingface.bert import (
    CONFIG_DEFAULTS,
    check_head_activation,
    encoder_config,
    encoder_entries,
    encoder_params,
    label_config,
    label_params,
    mlm_entries,
    problem_params,
    same_layer,
)
from portwright.huggingface.mapping import Entry, Family, Params
from portwright.networks.bert_heads import (
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)

_DEFAULTS = {**CONFIG_DEFAULTS, "vocab_size": 50265, "pad_token_id": 1}
_HEAD_ACTIVATION = "gelu"  # of their head for masked tokens, whatever hidden_act says


def _params(config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("pad_token_id", 1) is None:
        raise UnsupportedError(
            "config.json has pad_token_id: null, and RoBERTa's positions count from it.",
            "Write the number of the padding token there.",
        )
    return {**encoder_params(config, _DEFAULTS), "positions_after_padding": True}


def _config(params: Params, architecture: str) -> dict[str, Any]:
    # Beginning and end are published so; no network reads them.
    encoder = encoder_config(params, positions_after_padding=True)
    return {**encoder, "bos_token_id": 0, "eos_token_id": 2, "architectures": [architecture]}


def _masked_config(params: Params) -> dict[str, Any]:
    check_head_activation(params, _HEAD_ACTIVATION)
    is_tied = params.get("share_embedding_weights", True)
    return {**_config(params, "RobertaForMaskedLM"), "tie_word_embeddings": is_tied}


def _masked_entries(params: Params) -> list[Entry]:
    head = mlm_entries(params, "lm_head.dense", "lm_head.layer_norm", "lm_head")
    return [*encoder_entries(params, "roberta"), *head]


def _classifier_entries(params: Params) -> list[Entry]:
    # Their head has the dense layer that BERT calls its pooler.
    encoder = encoder_entries(params, "roberta", pooler="classifier.dense")
    return [*encoder, *same_layer("classifier", "classifier.out_proj")]


_IGNORED = ("roberta.embeddings.position_ids", "roberta.embeddings.token_type_ids", "roberta.pooler.dense.*")

FAMILIES = (
    Family(
        name="roberta",
        model_type="roberta",
        architectures={"roberta": "RobertaForMaskedLM"},
        entries=_masked_entries,
        params_of=lambda config: {
            **_params(config),
            "share_embedding_weights": config.get("tie_word_embeddings", True),
            "disable_nsp": True,
            "mlm_nonlinearity": _HEAD_ACTIVATION,
        },
        config_of=_masked_config,
        ignored=(*_IGNORED, "lm_head.bias"),
        tied=(
            ("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
            ("lm_head.bias", "lm_head.decoder.bias"),
        ),
        copies={"lm_head.bias": "lm_head.decoder.bias"},  # dead where the head is not tied
        prefix="roberta.",
        network=BertForPreTraining,
    ),
    Family(
        name="roberta_classifier",
        model_type="roberta",
        architectures={"bert_classifier": "RobertaForSequenceClassification"},
        entries=_classifier_entries,
        params_of=lambda config: {
            **_params(config),
            **label_params(config, "num_labels"),
            **problem_params(config),
            "task_dropout_before_pooler": True,
        },
        config_of=lambda params: {
            **_config(params, "RobertaForSequenceClassification"),
            **label_config(params, "num_labels"),
            "problem_type": params.get("problem_type"),
        },
        ignored=_IGNORED,
        prefix="roberta.",
        network=BertForSequenceClassification,
    ),
    Family(
        name="roberta_token_classifier",
        model_type="roberta",
        architectures={"bert_token_classifier": "RobertaForTokenClassification"},
        entries=lambda params: [
            *encoder_entries(params, "roberta"),
            *same_layer("classifier", "classifier"),
        ],
        params_of=lambda config: {**_params(config), **label_params(config, "num_classes")},
        config_of=lambda params: {
            **_config(params, "RobertaForTokenClassification"),
            **label_config(params, "num_classes"),
        },
        ignored=_IGNORED,
        prefix="roberta.",
        network=BertForTokenClassification,
    ),
    Family(
        name="roberta_qa",
        model_type="roberta",
        architectures={"bert_qa": "RobertaForQuestionAnswering"},
        entries=lambda params: [
            *encoder_entries(params, "roberta"),
            *same_layer("qa_outputs", "qa_outputs"),
        ],
        params_of=_params,
        config_of=lambda params: _config(params, "RobertaForQuestionAnswering"),
        ignored=_IGNORED,
        prefix="roberta.",
        network=BertForQuestionAnswering,
    ),
)
