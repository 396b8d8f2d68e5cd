"""Evaluation: metrics updated batch by batch, then read once and written down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.training import evaluation as tf_evaluation

from portwright.tensorflow.bad_input import BadValue
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.restore_errors import check_shapes, explaining_restore
from portwright.tensorflow.summaries import write_evaluation

if TYPE_CHECKING:
    from portwright.tensorflow.estimator import Estimator

_GLOBAL_STEP = "global_step"


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
    """The op that takes a batch in, and the values; in the order of their names, so that graphs are equal."""
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
    """A local_init_op of the user's knows nothing of the variables that metrics brought; both are run."""
    if scaffold.local_init_op is None:
        return scaffold
    tf_evaluation._get_or_create_eval_step()
    return tf.compat.v1.train.Scaffold(
        local_init_op=tf.group(scaffold.local_init_op, tf.compat.v1.train.Scaffold.default_local_init_op()),
        copy_from_scaffold=scaffold,
    )
