"""What cerebras.tf held beside its estimator: on a CPU and a GPU these did nothing, or what TensorFlow does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf


@contextmanager
def cs1_enable_summaries() -> Iterator[None]:
    """Summaries are on as ever."""
    yield


@contextmanager
def cs1_disable_summaries() -> Iterator[None]:
    """Was for the wafer's summaries, which slow it down; those of the host stay on."""
    yield


def summary_layer(x: Any) -> Any:
    """Marked a tensor for the wafer's summaries; the tensor itself."""
    return x


def summarize_tensor(x: Any, is_gradient_tensor: bool = False, op_name_if_grad: str | None = None) -> None:
    """Wrote a summary on the wafer; nothing here."""


def boundary_cast(x: Any, name: str | None = None, back_cast: bool = True) -> Any:
    """Changed the type between the wafer's kernels; the tensor itself."""
    return x


def GetWeights(checkpoint: str) -> Iterator[tuple[str, Any]]:
    """Names and values of a checkpoint."""
    reader = tf.train.load_checkpoint(checkpoint)
    for name in sorted(reader.get_variable_to_shape_map()):
        yield name, reader.get_tensor(name)
