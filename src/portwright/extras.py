"""What the base installation leaves out, and the extra of pip that brings it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from portwright.errors import UserError

_TRAINING = ("grpc", "h5py", "numpy", "safetensors", "sklearn", "tensorboard", "tokenizers", "torch")
_EXTRAS = {
    **dict.fromkeys(_TRAINING, "torch"),
    **dict.fromkeys(("tensorflow", "tf_keras"), "tensorflow"),
    "pyarrow": "arrow",
    "transformers": "huggingface",
}


def explain(error: ModuleNotFoundError, needed_by: str) -> UserError | None:
    """What to install for `needed_by`; None where no extra brings the missing module."""
    return None if error.name not in _EXTRAS else missing(error.name, needed_by)


def missing(package: str, needed_by: str) -> UserError:
    return UserError(
        f"{needed_by} needs {package}, which is not installed.",
        f"pip install 'portwright[{_EXTRAS[package]}]'",
    )


def import_transformers(needed_by: str) -> Any:
    try:
        return import_module("transformers")
    except ModuleNotFoundError as error:
        raise explain(error, needed_by) or error from None


def why_no_framework() -> str | None:
    """Why nothing can be trained in this installation; None where torch or TensorFlow is there."""
    if find_spec("torch") is None and find_spec("tensorflow") is None:
        return str(missing("torch", "training"))
    return None
