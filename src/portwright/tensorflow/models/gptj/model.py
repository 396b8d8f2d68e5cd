"""GPT-J: attention and feed-forward side by side, and positions that turn queries and keys."""

from __future__ import annotations

from typing import Any

from portwright.tensorflow.models_common.gpt import Gpt, language_model_spec


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    return language_model_spec(Gpt(params["model"]), features, labels, mode, params)
