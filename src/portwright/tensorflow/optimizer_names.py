"""Translates TensorFlow's names in an `optimizer` section into those that both frameworks share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portwright.job.optimizer import DEFAULT_OPTIMIZER, OPTIMIZERS

# Names that TensorFlow code uses for settings of SGD.
OF_SGD: dict[str, dict[str, Any]] = {
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.9, "use_nesterov": True},
}
_SPELLINGS = {  # the TensorFlow model zoo's keys
    "rmsprop_decay": "alpha",
    "rmsprop_momentum": "momentum",
    "use_bias_correction": "correct_bias",
}


def with_known_names(section: Mapping[str, Any]) -> dict[str, Any]:
    """The section with the names that both frameworks share; unknown names stay, and the check of the section refuses them."""
    values = dict(section)
    kind = values.get("optimizer_type", DEFAULT_OPTIMIZER)
    name = kind.strip().lower() if isinstance(kind, str) else ""
    if name in OF_SGD:
        values = {**OF_SGD[name], **values, "optimizer_type": "SGD"}
        name = "sgd"
    schema = next((schema for known, schema in OPTIMIZERS.items() if known.lower() == name), None)
    for spelling, key in _SPELLINGS.items():
        if schema is not None and spelling in values and key in schema.model_fields:
            values.setdefault(key, values.pop(spelling))
    if values.get("loss_scaling_factor") == "tf_dynamic":
        values["loss_scaling_factor"] = "dynamic"
    return values
