"""The first batch of a training, kept until its loss is seen: a NaN in the data is bad input, and nothing was trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from portwright.tensorflow.run_model import WatchedModel, name_tensors


class FirstBatch(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Reads the batch of the first step beside its loss."""

    def __init__(self, model: WatchedModel) -> None:
        self._model = model
        self._tensors: dict[str, Any] = {}
        self._is_asked = False
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}

    @property
    def num_samples(self) -> int | None:
        """Samples of the first batch; None where it does not say."""
        sizes = {array.shape[0] for array in self.arrays.values() if array.ndim}
        return sizes.pop() if len(sizes) == 1 else None

    def begin(self) -> None:
        named = {
            **name_tensors(self._model.features, "features"),
            **name_tensors(self._model.labels, "labels"),
        }
        self._tensors = {name: tensor for name, tensor in named.items() if isinstance(tensor, tf.Tensor)}

    def wants(self, step: int) -> bool:
        return not self._is_asked

    def before_run(self, run_context: Any) -> Any:
        if self._is_asked or not self._tensors:
            return None
        self._is_asked = True
        return tf.compat.v1.train.SessionRunArgs(self._tensors)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results is not None:
            self.arrays = {name: np.asarray(value) for name, value in run_values.results.items()}

    def find_non_finite(self) -> str | None:
        """What of the first batch is not finite, in words; None where all of it is."""
        for name, array in self.arrays.items():
            if array.dtype.kind != "f" or np.isfinite(array).all():
                continue
            bad = np.argwhere(~np.isfinite(array))
            first = bad[0].tolist()
            return (
                f"{name} holds {len(bad)} non-finite value(s), the first at {first} "
                f"(sample {first[0] if first else 0})"
            )
        return None
