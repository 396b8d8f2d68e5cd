"""Port deep-learning training to AI accelerators, prove the port equal, and run it.

The public names load on first use, so that `import portwright` stays light: torch is imported only by what
needs it.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

_PUBLIC = {
    "run": "portwright.runtime.run",
    "PyTorchBaseModel": "portwright.runtime.base_model",
    "get_params": "portwright.job.params",
    "UserError": "portwright.errors",
    "UnsupportedError": "portwright.errors",
}
__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'portwright' has no attribute {name!r}; it has {', '.join(_PUBLIC)}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
