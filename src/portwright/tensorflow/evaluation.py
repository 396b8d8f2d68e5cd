"""Evaluation and prediction: metrics updated batch by batch, then read once and written down; and outputs by sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tensorflow.python.training import evaluation as tf_evaluation

from portwright.errors import suggest
from portwright.job.signals import end_if_asked
from portwright.tensorflow.arguments import BadValue
from portwright.tensorflow.checkpoints import check_shapes, explaining_restore
from portwright.tensorflow.input_feed import ends_by_itself
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.monitor import current_monitor


def write_evaluation(folder: str, results: Mapping[str, Any], step: int, checkpoint_path: str | None) -> None:
    """Writes the metrics of an evaluation, and the path of its checkpoint, into `folder`."""
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


if TYPE_CHECKING:
    from portwright.tensorflow.estimator import Estimator

_GLOBAL_STEP = "global_step"


class OnBatch(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Calls `tell` after every batch of an evaluation with the number of batches so far."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell, self._num_batches = tell, 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._num_batches += 1
        self._tell(self._num_batches)


def evaluate(
    estimator: Estimator,
    input_fn: Any,
    steps: int | None,
    hooks: list[Any],
    checkpoint_path: str | None,
    name: str | None,
) -> dict[str, Any]:
    """Builds the evaluation's graph, runs it over the data, and returns the metrics by name."""
    if steps is not None:
        hooks.append(tf_evaluation._StopAfterNEvalsHook(num_evals=steps))
    if current_monitor() is None:  # in a run, `run()` handles the stop signals
        hooks.append(OnBatch(lambda _: end_if_asked()))
    with tf.Graph().as_default() as graph:
        tf.compat.v1.set_random_seed(estimator.config.tf_random_seed)
        estimator._create_and_assert_global_step(graph)
        feed = estimator._get_feed(input_fn, ModeKeys.EVAL)
        spec = estimator._call_model_fn(feed.features, feed.labels, ModeKeys.EVAL, estimator.config)
        update_op, values = _metrics(spec)
        estimator._maybe_warm_start(checkpoint_path)
        check_shapes(checkpoint_path, spec.scaffold)
        with explaining_restore(checkpoint_path):
            results = tf_evaluation._evaluate_once(
                checkpoint_path=checkpoint_path,
                master=estimator.config.evaluation_master,
                scaffold=_scaffold(spec.scaffold),
                eval_ops=update_op,
                final_ops=values,
                hooks=[*feed.hooks, *hooks, *spec.evaluation_hooks],
                config=estimator.config.session_config,
            )
        write_evaluation(estimator.eval_dir(name), results, int(results[_GLOBAL_STEP]), checkpoint_path)
    return dict(results)


def _metrics(spec: Any) -> tuple[Any, dict[str, Any]]:
    """The op that adds a batch to the metrics, and their values, sorted by name so that equal models give equal graphs."""
    metrics = dict(spec.eval_metric_ops)
    for taken in ("loss", _GLOBAL_STEP):
        if taken in metrics:
            raise BadValue(
                f"A metric is named {taken!r}, which every evaluation reports by itself.",
                "Name it otherwise.",
            )
    metrics["loss"] = tf.compat.v1.metrics.mean(spec.loss)
    values = {name: metrics[name][0] for name in sorted(metrics)}
    update_op = tf.group(*(metrics[name][1] for name in sorted(metrics)))
    values[_GLOBAL_STEP] = tf.compat.v1.train.get_global_step()
    return update_op, values


def _scaffold(scaffold: Any) -> Any:
    """Adds the default local_init_op to the user's, which does not initialise the variables of the metrics."""
    if scaffold.local_init_op is None:
        return scaffold
    tf_evaluation._get_or_create_eval_step()
    return tf.compat.v1.train.Scaffold(
        local_init_op=tf.group(scaffold.local_init_op, tf.compat.v1.train.Scaffold.default_local_init_op()),
        copy_from_scaffold=scaffold,
    )


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
                if current_monitor() is None:
                    end_if_asked()
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
