"""RoBERTa: BERT's encoder with masked tokens alone, and positions that count from padding's."""

from __future__ import annotations

from typing import Any

from portwright.tensorflow.models_common.bert import Bert, masked_lm_spec


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    return masked_lm_spec(Bert(params["model"]), features, labels, mode, params)
