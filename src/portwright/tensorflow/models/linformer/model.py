"""Linformer: BERT's encoder, whose attention looks at mixtures of keys and values instead of at each of them."""

from __future__ import annotations

from typing import Any

from portwright.tensorflow.models_common.bert import Bert, masked_lm_spec

SHARE_STYLES = {  # the model zoo's names: ours
    "linformer": "no-share",
    "linformer-shared-heads": "share-headwise",
    "linformer-shared-kv": "share-kv",
}


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    return masked_lm_spec(make_network(params["model"]), features, labels, mode, params)


def make_network(model: dict[str, Any]) -> Bert:
    mixtures = {
        "kv_len": model["max_position_embeddings"],
        "reduced_kv_len_dim": model["projected_dims"],
        "param_share_style": SHARE_STYLES[model["attention_style"]],
    }
    return Bert(model, attention_module="linformer_attention", extra_attention_params=mixtures)
