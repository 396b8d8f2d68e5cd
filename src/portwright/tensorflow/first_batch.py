"""Checks the first batch of a training, and the batch whose loss is not finite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.training import training_util

from portwright.tensorflow.estimator import Estimator
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.optimizers import LEARNING_RATE
from portwright.tensorflow.run_model import WatchedModel, name_tensors

v1 = tf.compat.v1
_MAX_REREAD = 5000  # batches


class FirstBatch(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Fetches the first batch that the model is given, and warns of values in it that are not finite."""

    def __init__(self, model: WatchedModel, warn: Callable[[str], None]) -> None:
        self._model, self._warn = model, warn
        self._tensors: dict[str, Any] = {}
        self._is_asked = False
        self.is_seen = False  # whether there was a batch at all
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}

    @property
    def num_samples(self) -> int | None:
        """The number of samples in the first batch; None where its tensors differ in length."""
        sizes = {array.shape[0] for array in self.arrays.values() if array.ndim}
        return sizes.pop() if len(sizes) == 1 else None

    def begin(self) -> None:
        self._tensors = name_batch(self._model.features, self._model.labels)

    def wants(self, step: int) -> bool:
        return not self._is_asked

    def before_run(self, run_context: Any) -> Any:
        is_first, self._is_asked = not self._is_asked, True
        return v1.train.SessionRunArgs(self._tensors) if is_first and self._tensors else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.is_seen = True
        if run_values.results is not None:
            self.arrays = {name: np.asarray(value) for name, value in run_values.results.items()}
            bad = find_non_finite(self.arrays)
            if bad is not None:  # a relu turns NaN into 0, so that the loss may stay finite
                self._warn(f"in the first batch {bad}.")


class LearningRate(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Fetches the learning rate at the steps that are logged, if make_train_op made the train op."""

    def __init__(self, is_logged: Callable[[int], bool]) -> None:
        self._is_logged = is_logged
        self._rate: Any = None
        self._is_wanted = False
        self.value: float | None = None

    def begin(self) -> None:
        rates = v1.get_collection(LEARNING_RATE)
        self._rate = rates[0] if len(rates) == 1 else None

    def wants(self, step: int) -> bool:
        self._is_wanted = self._rate is not None and self._is_logged(step)
        return self._is_wanted

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(self._rate) if self._is_wanted else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.value = None if run_values.results is None else float(run_values.results)


def reread_batch(estimator: Estimator, input_fn: Any, number: int) -> dict[str, np.ndarray[Any, Any]]:
    """Draws again, with the same graph and seed, the batch of step `number` of a training from scratch; {} for a late step."""
    if number > _MAX_REREAD:
        return {}
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(estimator.config.tf_random_seed)
        estimator._create_and_assert_global_step(graph)
        training_util._get_or_create_global_step_read(graph)
        feed = estimator._get_feed(input_fn, ModeKeys.TRAIN)
        tensors = name_batch(feed.features, feed.labels)
        creator = v1.train.ChiefSessionCreator(config=estimator.config.session_config)
        with v1.train.MonitoredSession(creator, hooks=feed.hooks) as session:
            for _ in range(number):
                values = session.run(tensors)
    return {name: np.asarray(value) for name, value in values.items()}


def name_batch(features: Any, labels: Any) -> dict[str, Any]:
    """The dense tensors of a batch by their paths."""
    named = {**name_tensors(features, "features"), **name_tensors(labels, "labels")}
    return {name: tensor for name, tensor in named.items() if isinstance(tensor, tf.Tensor)}


def find_non_finite(arrays: Mapping[str, np.ndarray[Any, Any]]) -> str | None:
    """A sentence on the first array with values that are not finite; None where all values are."""
    for name, array in arrays.items():
        if array.dtype.kind != "f" or np.isfinite(array).all():
            continue
        bad = np.argwhere(~np.isfinite(array))
        first = bad[0].tolist()
        return f"{name} holds {len(bad)} non-finite value(s), the first at {first} (sample {first[0] if first else 0})"
    return None
