"""The options of an optimizer's group as plain numbers and words."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_NOT_PLAIN = object()


def plain_options(group: dict[str, Any]) -> dict[str, Any]:
    """All but the parameters; what is no number, word or row of numbers is left out."""
    options = {
        key: _plain_option(value) for key, value in group.items() if key not in ("params", "param_names")
    }
    return {key: value for key, value in options.items() if value is not _NOT_PLAIN}


def _plain_option(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 else _NOT_PLAIN
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.integer | np.floating):
        return float(value)
    if isinstance(value, list | tuple):
        items = [_plain_option(item) for item in value]
        if all(isinstance(item, int | float) and not isinstance(item, bool) for item in items):
            return tuple(float(item) for item in items)
    return _NOT_PLAIN
