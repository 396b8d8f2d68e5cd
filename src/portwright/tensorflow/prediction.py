"""Prediction: batches through the model, handed out example by example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from portwright.errors import suggest
from portwright.tensorflow.bad_input import BadValue
from portwright.tensorflow.input_feed import ends_by_itself
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.restore_errors import check_shapes, explaining_restore

if TYPE_CHECKING:
    from portwright.tensorflow.estimator import Estimator


def predict(
    estimator: Estimator,
    input_fn: Any,
    predict_keys: Any,
    hooks: list[Any],
    checkpoint_path: str | None,
    yield_single_examples: bool,
) -> Iterator[Any]:
    """Yields what the model predicts, one example (or one batch) at a time."""
    with tf.Graph().as_default() as graph:
        tf.compat.v1.set_random_seed(estimator.config.tf_random_seed)
        estimator._create_and_assert_global_step(graph)
        feed = estimator._get_feed(input_fn, ModeKeys.PREDICT)
        if not ends_by_itself(feed.features):
            tf.compat.v1.logging.warning(
                "The features come from no dataset and no queue, so prediction will never end by itself."
            )
        spec = estimator._call_model_fn(feed.features, None, ModeKeys.PREDICT, estimator.config)
        estimator._maybe_warm_start(checkpoint_path)
        predictions = _chosen(spec.predictions, predict_keys)
        creator = tf.compat.v1.train.ChiefSessionCreator(
            checkpoint_filename_with_path=checkpoint_path,
            master=estimator.config.master,
            scaffold=spec.scaffold,
            config=estimator.config.session_config,
        )
        all_hooks = [*feed.hooks, *hooks, *spec.prediction_hooks]
        check_shapes(checkpoint_path, spec.scaffold)
        with explaining_restore(checkpoint_path):
            monitored = tf.compat.v1.train.MonitoredSession(session_creator=creator, hooks=all_hooks)
        with monitored as session:
            while not session.should_stop():
                batch = session.run(predictions)
                yield from _examples(batch) if yield_single_examples else (batch,)


def _chosen(predictions: Any, keys: Any) -> Any:
    if not keys:
        return predictions
    if not isinstance(predictions, dict):
        raise BadValue(
            f"predict_keys is {keys!r}, but the model predicts one tensor.",
            "Leave predict_keys out, or return a dict of predictions.",
        )
    wanted = [keys] if isinstance(keys, str) else list(keys)
    chosen = {key: value for key, value in predictions.items() if key in wanted}
    if not chosen:
        raise BadValue(f"None of predict_keys {wanted} is predicted.", suggest(str(wanted[0]), predictions))
    return chosen


def _examples(batch: Any) -> Iterator[Any]:
    if not isinstance(batch, Mapping):
        yield from batch
        return
    lengths = {key: len(value) if getattr(value, "shape", ()) else -1 for key, value in batch.items()}
    if len(set(lengths.values())) > 1 or -1 in lengths.values():
        shown = ", ".join(
            f"{key} is one value" if size < 0 else f"{key} has {size}" for key, size in lengths.items()
        )
        raise BadValue(
            f"A batch of predictions cannot be split into examples: {shown}.",
            "Call predict with yield_single_examples=False.",
        )
    for index in range(next(iter(lengths.values()))):
        yield {key: value[index] for key, value in batch.items()}
