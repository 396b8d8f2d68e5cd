"""Port deep-learning training to AI accelerators, prove the port equal, and run it.

The public names load on first use, so that `import portwright` stays light: torch is imported only by what
needs it. `port` and `verify` are packages that can be called: see portwright.callable_package.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import Any

__version__ = "0.10.0"

_PUBLIC = {
    "check": "portwright.port.api",
    "plan": "portwright.planning.api",
    "run": "portwright.runtime.run",
    "PyTorchBaseModel": "portwright.base_model",
    "get_params": "portwright.job.params",
    "UserError": "portwright.errors",
    "UnsupportedError": "portwright.errors",
}
_CALLABLE_PACKAGES = {"port": "portwright.port", "verify": "portwright.verify"}
__all__ = [*_PUBLIC, *_CALLABLE_PACKAGES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _CALLABLE_PACKAGES:
        return importlib.import_module(_CALLABLE_PACKAGES[name])
    if name not in _PUBLIC:
        raise AttributeError(f"module 'portwright' has no attribute {name!r}; it has {', '.join(__all__)}")
    if name == "run" and find_spec("torch") is None:  # a run.py is told in one line
        from portwright.extras import missing

        lacking = missing("torch", "run()")
        print(f"error: {lacking}", file=sys.stderr)
        raise SystemExit(int(lacking.status))
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
