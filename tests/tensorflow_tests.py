"""A plugin for the tests in unit/tf: each starts with an empty graph, and warnings of TensorFlow's own code are not ours to mend.

Not a conftest.py there: end-to-end tests import names from the one at the top, and there can be one module of that name.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

import portwright.tensorflow  # noqa: F401 - before TensorFlow, so that it comes with its legacy Keras

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
_FOLDER = "unit/tf/"


def _is_ours(path: Path) -> bool:
    return _FOLDER in path.as_posix()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """An extra: where it is missing, nothing there can run."""
    is_missing = importlib.util.find_spec("tensorflow") is None
    return True if is_missing and _is_ours(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _is_ours(item.path):
            for module in ("tensorflow", "tf_keras", "keras", "google", "numpy"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore:::{module}"))


@pytest.fixture(autouse=True)
def _empty_graph(request: pytest.FixtureRequest) -> None:
    if not _is_ours(request.path):
        return
    import tensorflow as tf

    tf.compat.v1.reset_default_graph()
    tf.keras.backend.clear_session()
