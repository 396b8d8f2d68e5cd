"""Starting the real tf.estimator, which lives in an environment of its own."""

from __future__ import annotations

import os


def environment(**more: str) -> dict[str, str]:
    """TensorFlow 2.15 has its Keras within, and TF_USE_LEGACY_KERAS, which our tests set, sends it looking elsewhere."""
    kept = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    return {**kept, **more}
