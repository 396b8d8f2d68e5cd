"""What an evaluation writes for TensorBoard, as tf.estimator wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]


def write_evaluation(folder: str, results: Mapping[str, Any], step: int, checkpoint_path: str | None) -> None:
    """Writes the metrics of an evaluation, and which checkpoint they are of, into `folder`."""
    writer = tf.compat.v1.summary.FileWriterCache.get(folder)
    summary = tf.compat.v1.Summary()
    for name, value in results.items():
        if value is not None and name != "global_step":
            _add(summary, name, value)
    writer.add_summary(summary, step)
    shown = ", ".join(
        f"{name} = {value}" for name, value in sorted(results.items()) if not isinstance(value, bytes)
    )
    tf.compat.v1.logging.info("Saving dict for global step %d: %s", step, shown)
    if checkpoint_path:
        of_checkpoint = tf.compat.v1.Summary()
        of_checkpoint.value.add(
            tag="checkpoint_path", tensor=tf.make_tensor_proto(checkpoint_path, dtype=tf.string)
        )
        writer.add_summary(of_checkpoint, step)
    writer.flush()


def _add(summary: Any, name: str, value: Any) -> None:
    if isinstance(value, (bool, np.bool_, float, np.floating, int, np.integer)):
        summary.value.add(tag=name, simple_value=float(value))
    elif isinstance(value, bytes):
        try:
            parts = tf.compat.v1.Summary.FromString(value)
        except DecodeError:
            tf.compat.v1.logging.warning("The metric %s is bytes that are no Summary: not written.", name)
            return
        for index, part in enumerate(parts.value):
            part.tag = f"{name}/{index}"
        summary.value.extend(parts.value)
    elif isinstance(value, np.ndarray):
        summary.value.add(tag=name, node_name=name, tensor=tf.make_tensor_proto(value))
    else:
        tf.compat.v1.logging.warning(
            "The metric %s is a %s: TensorBoard has no place for it.", name, type(value).__name__
        )
