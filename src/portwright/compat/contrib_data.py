"""The part of tf.contrib.data that is not in tf.data.experimental."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def batch_and_drop_remainder(batch_size: int) -> Callable[[Any], Any]:
    """Batches of one size."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)
