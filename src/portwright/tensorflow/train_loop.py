"""Training: the graph's step, run until the data or the steps end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from portwright.tensorflow.bad_input import BadValue
from portwright.tensorflow.mode_keys import ModeKeys

if TYPE_CHECKING:
    from portwright.tensorflow.estimator import Estimator

v1 = tf.compat.v1


def train(estimator: Estimator, input_fn: Any, hooks: list[Any], listeners: list[Any]) -> Any:
    """Trains, and returns the last loss; None when no step was made."""
    config = estimator.config
    with tf.Graph().as_default() as graph, graph.device(estimator._device_fn):
        v1.set_random_seed(config.tf_random_seed)
        estimator._create_and_assert_global_step(graph)
        from tensorflow.python.training import training_util

        training_util._get_or_create_global_step_read(graph)
        feed = estimator._get_feed(input_fn, ModeKeys.TRAIN)
        spec = estimator._call_model_fn(feed.features, feed.labels, ModeKeys.TRAIN, config)
        if not estimator.latest_checkpoint():
            estimator._maybe_warm_start(None)
        return _run(estimator, spec, [*feed.hooks, *hooks], listeners)


def _run(estimator: Estimator, spec: Any, hooks: list[Any], listeners: list[Any]) -> Any:
    config = estimator.config
    if not any(summary.op.name == "loss" for summary in v1.get_collection(v1.GraphKeys.SUMMARIES)):
        v1.summary.scalar("loss", spec.loss)
    v1.add_to_collection(v1.GraphKeys.LOSSES, spec.loss)
    step = v1.train.get_global_step()
    hooks.append(v1.train.NanTensorHook(spec.loss))
    if config.log_step_count_steps is not None:
        hooks.append(
            v1.train.LoggingTensorHook(
                {"loss": spec.loss, "step": step}, every_n_iter=config.log_step_count_steps
            )
        )
    hooks.extend(spec.training_hooks)
    if not (spec.scaffold.saver or v1.get_collection(v1.GraphKeys.SAVERS)):
        saver = v1.train.Saver(
            sharded=True,
            max_to_keep=config.keep_checkpoint_max,
            keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
            defer_build=True,
            save_relative_paths=True,
        )
        v1.add_to_collection(v1.GraphKeys.SAVERS, saver)
    chief_hooks = _saver_hooks(estimator, spec, [*hooks, *spec.training_chief_hooks], listeners)
    with v1.train.MonitoredTrainingSession(
        master=config.master,
        is_chief=config.is_chief,
        checkpoint_dir=estimator.model_dir,
        scaffold=spec.scaffold,
        hooks=hooks,
        chief_only_hooks=[*chief_hooks, *spec.training_chief_hooks],
        save_checkpoint_secs=0,
        save_summaries_steps=config.save_summary_steps,
        config=config.session_config,
        max_wait_secs=config.session_creation_timeout_secs,
        log_step_count_steps=config.log_step_count_steps,
        save_graph_def=config.checkpoint_save_graph_def,
    ) as session:
        loss, num_steps = None, 0
        while not session.should_stop():
            num_steps += 1
            _, loss = session.run([spec.train_op, spec.loss])
    if not num_steps:
        v1.logging.warning("No training step was made: the input may be empty.")
    return loss


def _saver_hooks(estimator: Estimator, spec: Any, given: list[Any], listeners: list[Any]) -> list[Any]:
    config = estimator.config
    found = [hook for hook in given if isinstance(hook, v1.train.CheckpointSaverHook)]
    ours = []
    if not found and (config.save_checkpoints_secs or config.save_checkpoints_steps):
        ours = [
            v1.train.CheckpointSaverHook(
                estimator.model_dir,
                save_secs=config.save_checkpoints_secs,
                save_steps=config.save_checkpoints_steps,
                scaffold=spec.scaffold,
                save_graph_def=config.checkpoint_save_graph_def,
            )
        ]
    savers = [*found, *ours]
    if listeners and not savers:
        raise BadValue(
            "saving_listeners were given, but nothing saves checkpoints.",
            "Set save_checkpoints_steps or save_checkpoints_secs in RunConfig.",
        )
    for listener in listeners:
        if listener not in savers[0]._listeners:
            savers[0]._listeners.append(listener)
    return ours
