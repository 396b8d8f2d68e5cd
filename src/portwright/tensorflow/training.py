"""Training: the graph of a step, its session with everything that saves and logs, and the loop."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.training import training_util

from portwright.errors import NonFiniteError
from portwright.tensorflow import train_loop
from portwright.tensorflow.arguments import BadValue
from portwright.tensorflow.checkpoints import (
    check_shapes,
    clean_unfinished,
    explaining_restore,
    forget_damaged,
    make_folder,
    saved_steps,
    step_of,
)
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.monitor import Monitor
from portwright.tensorflow.position import CountSteps, KeepPosition, Position, StartPosition
from portwright.tensorflow.processes import Processes, find_processes
from portwright.tensorflow.resume_point import ResumePoint, can_keep_points, prune_points, read_point
from portwright.tensorflow.start_together import Agreement, Beginning, StartTogether, as_the_chief
from portwright.tensorflow.stream_source import make_streamed_feed
from portwright.tensorflow.train_hooks import (
    CountRate,
    LogLoss,
    SaveCheckpoints,
    SaveSummaries,
    may_stop,
    sees_steps,
)
from portwright.tensorflow.train_loop import Step, run_steps

if TYPE_CHECKING:
    from portwright.tensorflow.estimator import Estimator

v1 = tf.compat.v1


def train(
    estimator: Estimator,
    input_fn: Any,
    hooks: list[Any],
    steps: int | None,
    max_steps: int | None,
    listeners: list[Any],
    checkpoint: str | None,
    monitor: Monitor,
    processes: Processes | None,
) -> Any:
    """Trains on from `checkpoint`, and returns the last loss; None when no step was made."""
    config = estimator.config
    point, states = _find_point(estimator, checkpoint, monitor)
    own_seed = secrets.randbelow(2**31 - 1) + 1 if point is None else point.own_seed
    if processes is not None:
        begun = as_the_chief(processes, Beginning(checkpoint, point, states, own_seed))
        checkpoint, point, states, own_seed = begun.checkpoint, begun.point, begun.states, begun.own_seed
    with contextlib.ExitStack() as building:
        graph = building.enter_context(tf.Graph().as_default())
        building.enter_context(graph.device(estimator._device_fn))
        if processes is not None:
            building.enter_context(graph.device(processes.device))
        v1.set_random_seed(config.tf_random_seed)
        estimator._create_and_assert_global_step(graph)
        training_util._get_or_create_global_step_read(graph)
        if monitor.source is None:
            feed = estimator._get_feed(input_fn, ModeKeys.TRAIN, processes)
        else:
            feed = make_streamed_feed(estimator, input_fn, monitor.source)
        with train_loop.recording_layers() as layers, contextlib.ExitStack() as differentiating:
            if processes is not None:
                differentiating.enter_context(processes.averaging())
            spec = estimator._call_model_fn(feed.features, feed.labels, ModeKeys.TRAIN, config)
        agreement = None if processes is None else Agreement(processes, spec.loss)
        if agreement is not None:
            spec = spec._replace(loss=agreement.loss)
        if checkpoint is None:
            estimator._maybe_warm_start(None)
        train_op = _with_updates(spec.train_op, layers, monitor)
        if processes is not None:
            train_op = train_loop.with_shared_statistics(train_op, processes)
        _add_loss_summary(spec.loss)
        position = Position(train_op, spec.loss, estimator.model_dir, own_seed, monitor, point)
        with tf.control_dependencies([train_op]):
            number = tf.identity(v1.train.get_global_step().read_value())
        step = Step(train_op, spec.loss, number, position.random.sizes, agreement)
        start = StartPosition(position, states)
        together = [] if processes is None else [StartTogether(processes)]
        worker_hooks = [*feed.hooks, *together, start, *hooks]
        if processes is not None and agreement is not None:
            others = [*hooks, *spec.training_hooks, *spec.training_chief_hooks]
            agreement.has_votes = bool(processes.total(int(bool(listeners) or any(map(may_stop, others)))))
        return _run(
            estimator,
            spec,
            step,
            position,
            worker_hooks,
            steps,
            max_steps,
            listeners,
            monitor,
            checkpoint,
            processes,
        )


def _run(
    estimator: Estimator,
    spec: Any,
    step: Step,
    position: Position,
    hooks: list[Any],
    steps: int | None,
    max_steps: int | None,
    listeners: list[Any],
    monitor: Monitor,
    checkpoint: str | None,
    processes: Processes | None,
) -> Any:
    config = estimator.config
    if config.log_step_count_steps is not None:
        hooks.append(LogLoss(spec.loss, v1.train.get_global_step(), config.log_step_count_steps))
    hooks.extend(spec.training_hooks)
    if config.is_chief:
        check_shapes(checkpoint, spec.scaffold)
    _add_saver(spec.scaffold, config)
    savers = _savers(
        estimator, spec, [*hooks, *spec.training_chief_hooks], [KeepPosition(position), *listeners]
    )
    chief_hooks = [*savers, *spec.training_chief_hooks, *_summary_hooks(estimator, spec)]
    count = CountSteps(position, spec.loss)
    if config.is_chief:
        chief_hooks.insert(0, count)
    else:
        hooks.insert(0, count)
    watched = [hook for hook in [*(chief_hooks if config.is_chief else ()), *hooks] if sees_steps(hook)]
    with contextlib.ExitStack() as stack:
        if processes is not None:
            stack.enter_context(_ending_together(processes))
        with explaining_restore(checkpoint):
            session = stack.enter_context(
                v1.train.MonitoredTrainingSession(
                    master=config.master if processes is None else processes.target,
                    # Each process initialises its own variables, as a chief does.
                    is_chief=config.is_chief or processes is not None,
                    # StartTogether copies the chief's restored variables to the others.
                    checkpoint_dir=estimator.model_dir if config.is_chief else None,
                    scaffold=spec.scaffold,
                    hooks=hooks,
                    chief_only_hooks=chief_hooks if config.is_chief else [],
                    save_checkpoint_secs=0,  # Portwright's own hooks do these three
                    save_summaries_steps=0,
                    log_step_count_steps=0,
                    config=config.session_config
                    if processes is None
                    else processes.session_config(config.session_config),
                    max_wait_secs=config.session_creation_timeout_secs,
                    save_graph_def=config.checkpoint_save_graph_def,
                )
            )
        first = int(session._tf_sess().run(v1.train.get_global_step()))
        last = first + steps if steps is not None else max_steps
        if processes is None:
            run_steps(session, step, position, watched, first, last, monitor)
        else:
            with processes.watching(session._tf_sess):
                run_steps(session, step, position, watched, first, last, monitor)
                step.agreement.end_together(session._tf_sess())
    monitor.ended = position.ended
    if not position.num_runs:
        v1.logging.warning("No training step was made: the input may be empty.")
    return position.last_loss


@contextlib.contextmanager
def _ending_together(processes: Processes) -> Iterator[None]:
    """Waits at the end until every process has left the block: the chief has saved, and no process needs this one any more."""
    try:
        yield
    except NonFiniteError:  # the loss is the mean over all processes: all of them raise this
        processes.meet()
        raise
    processes.meet()


def join_processes(config: Any, monitor: Monitor) -> Processes | None:
    """Waits for the processes that TF_CONFIG names for training, and returns them; None for a single process."""
    processes = find_processes(config)
    if processes is not None:
        signals = monitor.signals
        processes.wait_for_peers(
            monitor.note,
            lambda: signals is not None and signals.requested,
            config.session_creation_timeout_secs,
        )
    return processes


def _find_point(
    estimator: Estimator, checkpoint: str | None, monitor: Monitor
) -> tuple[ResumePoint | None, list[bytes]]:
    """The resume point of `checkpoint` and its states, if the training that saved it was interrupted."""
    folder = estimator.model_dir
    if estimator.config.is_chief:
        make_folder(folder)
        forget_damaged(folder, checkpoint)
        clean_unfinished(folder)
    if checkpoint is None or not can_keep_points(folder):
        return None, []
    if estimator.config.is_chief:
        prune_points(folder, saved_steps(folder))
    found = read_point(folder, step_of(checkpoint), monitor.note)
    if found is None:
        return None, []
    point, states = found
    if point.ended == "data" or (point.ended and not monitor.continues_input):
        return None, []
    return point, states


def _with_updates(train_op: Any, layers: list[Any], monitor: Monitor) -> Any:
    missing = train_loop.missing_updates(layers, train_op)
    if not missing:
        return train_op
    monitor.note(
        f"train_op leaves {len(missing)} updates of Keras layers out (such as BatchNorm's moving mean): they are run with it."
    )
    return tf.group(train_op, *missing)


def _add_loss_summary(loss: Any) -> None:
    if not any(summary.op.name == "loss" for summary in v1.get_collection(v1.GraphKeys.SUMMARIES)):
        v1.summary.scalar("loss", loss)
    v1.add_to_collection(v1.GraphKeys.LOSSES, loss)


def _add_saver(scaffold: Any, config: Any) -> None:
    if scaffold.saver or v1.get_collection(v1.GraphKeys.SAVERS):
        return
    saver = v1.train.Saver(
        sharded=True,
        max_to_keep=config.keep_checkpoint_max,
        keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
        defer_build=True,
        save_relative_paths=True,
    )
    v1.add_to_collection(v1.GraphKeys.SAVERS, saver)


def _savers(estimator: Estimator, spec: Any, given: list[Any], listeners: list[Any]) -> list[Any]:
    """The hook that saves checkpoints, unless one was given; whichever saves gets the listeners."""
    config = estimator.config
    found = [hook for hook in given if isinstance(hook, v1.train.CheckpointSaverHook)]
    ours = []
    if not found and (config.save_checkpoints_secs or config.save_checkpoints_steps):
        ours = [
            SaveCheckpoints(
                estimator.model_dir,
                save_secs=config.save_checkpoints_secs,
                save_steps=config.save_checkpoints_steps,
                scaffold=spec.scaffold,
                save_graph_def=config.checkpoint_save_graph_def,
            )
        ]
    saver = next(iter([*found, *ours]), None)
    if saver is None:
        if len(listeners) > 1:
            raise BadValue(
                "saving_listeners were given, but nothing saves checkpoints.",
                "Set save_checkpoints_steps or save_checkpoints_secs in RunConfig.",
            )
        return ours
    # A hook that was used in an earlier training still has that training's listener.
    others = [listener for listener in saver._listeners if not isinstance(listener, KeepPosition)]
    new = [listener for listener in listeners[1:] if listener not in others]
    # KeepPosition comes last, so that the input's position is saved after the other listeners have run.
    saver._listeners[:] = [*others, *new, listeners[0]]
    return ours


def _summary_hooks(estimator: Estimator, spec: Any) -> list[Any]:
    config = estimator.config
    made: list[Any] = []
    if config.log_step_count_steps:
        made.append(CountRate(output_dir=estimator.model_dir, every_n_steps=config.log_step_count_steps))
    if config.save_summary_steps:
        made.append(
            SaveSummaries(
                scaffold=spec.scaffold, save_steps=config.save_summary_steps, output_dir=estimator.model_dir
            )
        )
    return made
