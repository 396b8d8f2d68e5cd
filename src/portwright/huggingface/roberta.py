"""RoBERTa: BERT's encoder with positions that begin after padding's, and the same heads under other names."""

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
    head_families,
    ignored_of,
    mlm_entries,
)
from portwright.huggingface.mapping import Entry, Family, Params
from portwright.networks.bert_heads import BertForPreTraining

_DEFAULTS = {**CONFIG_DEFAULTS, "vocab_size": 50265, "pad_token_id": 1}
_HEAD_ACTIVATION = "gelu"  # of their head for masked tokens, whatever hidden_act says


def _params(config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("pad_token_id", 1) is None:
        raise UnsupportedError(
            "config.json has pad_token_id: null, and RoBERTa's positions count from it.",
            "Write the number of the padding token there.",
        )
    return {**encoder_params(config, _DEFAULTS), "positions_after_padding": True}


def _config(params: Params) -> dict[str, Any]:
    # As published; no network reads these ids.
    return {**encoder_config(params, positions_after_padding=True), "bos_token_id": 0, "eos_token_id": 2}


def _masked_config(params: Params) -> dict[str, Any]:
    check_head_activation(params, _HEAD_ACTIVATION)
    is_tied = params.get("share_embedding_weights", True)
    return {**_config(params), "architectures": ["RobertaForMaskedLM"], "tie_word_embeddings": is_tied}


def _masked_entries(params: Params) -> list[Entry]:
    head = mlm_entries(params, "lm_head.dense", "lm_head.layer_norm", "lm_head")
    return [*encoder_entries(params, "roberta"), *head]


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
        ignored=(*ignored_of("roberta", True), "lm_head.bias"),
        tied=(
            ("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
            ("lm_head.bias", "lm_head.decoder.bias"),
        ),
        copies={"lm_head.bias": "lm_head.decoder.bias"},  # unused where the head is not tied
        prefix="roberta.",
        network=BertForPreTraining,
    ),
    # The dense layer that BERT calls its pooler is in the classifier.
    *head_families(
        "roberta",
        "Roberta",
        _params,
        _config,
        pooler="classifier.dense",
        classifier="classifier.out_proj",
        dropout_before_pooler=True,
    ),
)
