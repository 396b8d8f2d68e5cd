"""The model zoo's signatures, as data."""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Any


def signature_of(*names: str, **defaults: Any) -> Signature:
    """Arguments without a default, then those with one."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    needed = [Parameter(name, kind) for name in names]
    return Signature([*needed, *(Parameter(name, kind, default=value) for name, value in defaults.items())])
