"""Estimator-style training on today's TensorFlow.

Importing this package loads nothing; each name is loaded when it is first used, and TensorFlow with it. TensorFlow is loaded with its legacy
Keras, since the layers of Keras 3 neither keep their names from graph to graph nor hand out BatchNorm's updates.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

from portwright.errors import UserError

_PLACES: dict[str, str] = {  # public name: module of this package
    "CSEstimatorSpec": "spec",
    "CSRunConfig": "run_config",
    "CerebrasEstimator": "cerebras_estimator",
    "Estimator": "estimator",
    "EstimatorSpec": "spec",
    "ModeKeys": "mode_keys",
    "RunConfig": "run_config",
    "run": "run",
}

__all__ = sorted(_PLACES)


_MODULES = ("layers", "tpu")  # whose names are reached through them, since the package has others of the same name

if "tensorflow" not in sys.modules:  # `import portwright.tensorflow` before `import tensorflow` is enough
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        prepare()
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module '{__name__}' has no '{name}'")
    prepare()
    found = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})


def prepare() -> None:
    """Makes sure that TensorFlow is there and comes, or came, with the legacy Keras; imports nothing."""
    if "tensorflow" in sys.modules:
        if os.environ.get("TF_USE_LEGACY_KERAS") not in ("1", "true", "True"):
            raise UserError(
                "TensorFlow was imported before portwright.tensorflow, and with Keras 3.",
                "Import portwright.tensorflow first, or set TF_USE_LEGACY_KERAS=1.",
            )
        return
    missing = [package for package in ("tensorflow", "tf_keras") if importlib.util.find_spec(package) is None]
    if missing:
        raise UserError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed.",
            "pip install 'portwright[tensorflow]'",
        )
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # its start-up notes; warnings and errors stay
