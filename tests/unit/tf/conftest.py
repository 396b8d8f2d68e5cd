"""Every test starts with an empty graph; warnings of TensorFlow's own code are not ours to mend."""

from __future__ import annotations

import importlib.util
import os

import pytest

from portwright.tensorflow import prepare

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

if importlib.util.find_spec("tensorflow") is None:
    collect_ignore_glob = ["*"]  # an extra: where it is missing, nothing here can run
else:
    prepare()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "unit/tf" in item.path.as_posix():
            for module in ("tensorflow", "tf_keras", "keras", "google", "numpy"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore:::{module}"))


@pytest.fixture(autouse=True)
def _empty_graph() -> None:
    import tensorflow as tf

    tf.compat.v1.reset_default_graph()
    tf.keras.backend.clear_session()
