"""The config.json to write: what the params say, over what came with the weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from portwright.errors import PortwrightError
from portwright.huggingface.mapping import Family, Params
from portwright.huggingface.weights import CONFIG_FILE, Weights, read_json

_DTYPE_KEYS = ("dtype", "torch_dtype")  # today's name, and that of releases before 5


def make_config(
    family: Family, folder: str, params: Params, weights: Weights, carried: Path | None
) -> dict[str, Any]:
    """A config.json that transformers reads.

    Where the weights came from HuggingFace and the params are still those of then, it is the same config, keys that are none of
    our business included; what the params say otherwise today is changed in it.
    """
    told = family.config_of(params)
    made = {"model_type": family.model_type, "architectures": [family.classes(folder)[0]], **told}
    original = _original(family, carried)
    if original is not None:
        try:
            before = family.config_of(family.params_of(original))
        except PortwrightError:
            before = None
        if before is not None:
            changed = {key: value for key, value in told.items() if key not in before or before[key] != value}
            removed = before.keys() - told.keys()
            made = {**{key: value for key, value in original.items() if key not in removed}, **changed}
            made.setdefault("model_type", family.model_type)
            if not set(original.get("architectures") or ()) & set(family.classes(folder)):  # a new head
                made["architectures"] = told.get("architectures", [family.classes(folder)[0]])
            return _with_dtype(made, weights, [key for key in _DTYPE_KEYS if key in made])
    return _with_dtype(made, weights, _DTYPE_KEYS[:1])


def _original(family: Family, carried: Path | None) -> dict[str, Any] | None:
    if carried is None:
        return None
    original = read_json(carried / CONFIG_FILE)
    if not isinstance(original, dict) or original.get("model_type") != family.model_type:
        return None
    return original


def _with_dtype(config: Mapping[str, Any], weights: Weights, keys: Sequence[str]) -> dict[str, Any]:
    """Says the type of the weights, in which transformers loads them; a config that never said it need not."""
    sizes: Counter[str] = Counter()
    for spec in weights.specs.values():
        if spec.dtype.is_floating_point:
            sizes[str(spec.dtype).removeprefix("torch.")] += spec.num_bytes
    if not sizes:
        return dict(config)
    dtype = sizes.most_common(1)[0][0]
    return {**config, **dict.fromkeys(keys, dtype)}
