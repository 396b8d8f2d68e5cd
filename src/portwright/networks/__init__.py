"""The networks behind the reference models, as plain modules on portwright.layers; they load on first use.

Given labels, a network's forward gives the loss, since code that compiles or shards a model sees only calls of forward.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {
    "Gpt": "portwright.networks.gpt",
    "Bert": "portwright.networks.bert",
    "T5": "portwright.networks.t5",
    "Seq2Seq": "portwright.networks.seq2seq",
    "UNet": "portwright.networks.unet",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
