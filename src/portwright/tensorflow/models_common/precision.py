"""What a model computes in, by its params."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf


def policy_of(model_params: Mapping[str, Any]) -> Any:
    """Keras's policy for `mixed_precision` and `fp16_type`: float32, mixed_float16 or mixed_bfloat16."""
    if not model_params["mixed_precision"]:
        return tf.keras.mixed_precision.Policy("float32")
    kind = model_params.get("fp16_type")
    if kind is None:
        kind = "float16" if tf.config.list_physical_devices("GPU") else "bfloat16"
    return tf.keras.mixed_precision.Policy(f"mixed_{'bfloat16' if kind == 'cbfloat16' else kind}")
