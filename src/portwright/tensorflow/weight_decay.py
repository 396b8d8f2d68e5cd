"""Which variables are decayed, by their names: biases and norms are not, nor what the user names."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

log = logging.getLogger(__name__)

_BIAS = re.compile(r"(^|_)bias(es)?(_|\d|$)|^b$", re.IGNORECASE)
_COPY = re.compile(r"/replica(_\d+)?$")
_OF_NORM = ("beta", "gamma", "moving_mean", "moving_variance")
_NORM_SCOPE = re.compile(r"norm|(^|_)(ln|bn)(_|\d|$)", re.IGNORECASE)
_NO_NORM = re.compile(r"(weight|spectral)_?norm|normal(_|$)", re.IGNORECASE)


def name_of(variable: Any) -> str:
    """The name under which a checkpoint holds a variable, also a copy of one on a further device."""
    return _COPY.sub("", str(variable.name).partition(":")[0])


def is_decayed(name: str, rank: int | None, patterns: Sequence[str] | None) -> bool:
    """Whether weight decay touches a variable.

    Biases and the weights of norms are left alone, and names that contain one of the patterns; with no patterns at
    all, an empty list, everything is decayed.
    """
    if patterns is not None and not patterns:
        return True
    *scopes, own = name.split("/")
    if _BIAS.search(own) or own in _OF_NORM:
        return False
    scope = scopes[-1] if scopes else own
    if (rank is None or rank <= 1) and _NORM_SCOPE.search(scope) and not _NO_NORM.search(scope):
        return False
    return not any(pattern in name for pattern in patterns or ())


def decay_rates(variables: Sequence[Any], rate: float, patterns: Sequence[str] | None) -> dict[str, float]:
    """The decay of each variable, by its name; a pattern that matches none is told."""
    names = {name_of(variable): variable.shape.rank for variable in variables}
    if not rate:
        return dict.fromkeys(names, 0.0)
    for pattern in patterns or ():
        if not any(pattern in name for name in names):
            log.warning("exclude_from_weight_decay: '%s' is in no variable's name.", pattern)
    return {name: rate if is_decayed(name, rank, patterns) else 0.0 for name, rank in names.items()}
