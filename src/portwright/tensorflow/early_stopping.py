"""Hooks that stop a training early: by a metric of its evaluations, or once a checkpoint of a step exists."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from portwright.tensorflow.arguments import BadType, BadValue

if TYPE_CHECKING:
    from portwright.tensorflow.estimator import Estimator

v1 = tf.compat.v1

_Better = Callable[[float, float], bool]


def make_early_stopping_hook(
    estimator: Estimator,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Makes a hook that stops every worker once `should_stop_fn()` is true on the chief."""
    from portwright.tensorflow.estimator import Estimator

    if not isinstance(estimator, Estimator):
        raise BadType(f"estimator is a {type(estimator).__name__}.", "Give an Estimator.")
    if not callable(should_stop_fn):
        raise BadType(f"should_stop_fn is {should_stop_fn!r}.", "Give a function without arguments.")
    if run_every_secs is not None and run_every_steps is not None:
        raise BadValue(
            f"run_every_secs ({run_every_secs}) and run_every_steps ({run_every_steps}) are both set.",
            "Set one of them to None.",
        )
    if run_every_secs is None and run_every_steps is None:
        raise BadValue("run_every_secs and run_every_steps are both None.", "Set one of them.")
    if estimator.config.is_chief:
        return _ChiefStopHook(should_stop_fn, run_every_secs, run_every_steps)
    return _WorkerStopHook()


def stop_if_higher_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Stops once a metric is above `threshold`."""
    should_stop = partial(_crossed, operator.gt, threshold)
    return _stop_if(should_stop, estimator, metric_name, eval_dir, min_steps, run_every_secs, run_every_steps)


def stop_if_lower_hook(
    estimator: Estimator,
    metric_name: str,
    threshold: float,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Stops once a metric is below `threshold`."""
    should_stop = partial(_crossed, operator.lt, threshold)
    return _stop_if(should_stop, estimator, metric_name, eval_dir, min_steps, run_every_secs, run_every_steps)


def stop_if_no_increase_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_increase: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Stops once a metric has not risen above its best value for `max_steps_without_increase` steps."""
    should_stop = partial(_stale, operator.gt, max_steps_without_increase)
    return _stop_if(should_stop, estimator, metric_name, eval_dir, min_steps, run_every_secs, run_every_steps)


def stop_if_no_decrease_hook(
    estimator: Estimator,
    metric_name: str,
    max_steps_without_decrease: int,
    eval_dir: str | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Stops once a metric has not fallen below its lowest value for `max_steps_without_decrease` steps."""
    should_stop = partial(_stale, operator.lt, max_steps_without_decrease)
    return _stop_if(should_stop, estimator, metric_name, eval_dir, min_steps, run_every_secs, run_every_steps)


def make_stop_at_checkpoint_step_hook(
    estimator: Estimator, last_step: int, wait_after_file_check_secs: float = 30
) -> Any:
    """Makes a hook that stops at `last_step`; a worker that reaches it first waits until the chief has saved that step."""
    if estimator.config.is_chief:
        return v1.train.StopAtStepHook(last_step=last_step)
    return _AwaitCheckpointHook(estimator.model_dir, last_step, wait_after_file_check_secs)


def read_eval_metrics(eval_dir: str) -> dict[int, dict[str, float]]:
    """Gives the metrics of each evaluated step, in order, from the event files in `eval_dir`."""
    found: dict[int, dict[str, float]] = {}
    for step, values in read_scalars(tf.io.gfile.join(eval_dir, "events.out.tfevents.*")):
        found.setdefault(step, {}).update(values)
    return dict(sorted(found.items()))


def read_scalars(pattern: str) -> Iterator[tuple[int, dict[str, float]]]:
    """The step and the numbers of each event in all files that match; of a damaged file, those before the damage."""
    for path in sorted(tf.io.gfile.glob(pattern)):
        try:
            for event in v1.train.summary_iterator(path):
                values = {v.tag: v.simple_value for v in event.summary.value if v.HasField("simple_value")}
                if values:
                    yield event.step, values
        except tf.errors.DataLossError as error:  # a process was killed while it wrote this event
            v1.logging.warning("The rest of %s cannot be read: %s", path, error)


def _values(eval_dir: str, metric_name: str, min_steps: int) -> Iterator[tuple[int, float]]:
    for step, metrics in read_eval_metrics(eval_dir).items():
        if step >= min_steps:
            if metric_name not in metrics:
                raise BadValue(
                    f"The evaluation of step {step} in {eval_dir} has no metric '{metric_name}'.",
                    f"It has: {', '.join(sorted(metrics))}.",
                )
            yield step, metrics[metric_name]


def _stop_if(
    should_stop: Callable[[str, Iterator[tuple[int, float]]], bool],
    estimator: Estimator,
    name: str,
    eval_dir: str | None,
    min_steps: int,
    every_secs: float | None,
    every_steps: int | None,
) -> Any:
    """A hook that stops once `should_stop` is true of a metric's name and its values by step."""
    folder = eval_dir if eval_dir is not None else estimator.eval_dir()
    return make_early_stopping_hook(
        estimator, lambda: should_stop(name, _values(folder, name, min_steps)), every_secs, every_steps
    )


def _crossed(better: _Better, threshold: float, name: str, values: Iterator[tuple[int, float]]) -> bool:
    for step, value in values:
        if better(value, threshold):
            v1.logging.info("Stopping: '%s' was %s at step %d, beyond %s", name, value, step, threshold)
            return True
    return False


def _stale(better: _Better, max_steps: int, name: str, values: Iterator[tuple[int, float]]) -> bool:
    best: tuple[int, float] | None = None
    for step, value in values:
        if best is None or better(value, best[1]):
            best = (step, value)
        if step - best[0] >= max_steps:
            v1.logging.info("Stopping: '%s' is no better at step %d than at step %d", name, step, best[0])
            return True
    return False


def _stop_flag() -> Any:
    """The flag that the chief sets and the workers read; a variable, so that other processes see it."""
    with v1.variable_scope("signal_early_stopping", reuse=v1.AUTO_REUSE):
        return v1.get_variable(
            "STOP",
            shape=[],
            dtype=tf.bool,
            initializer=v1.constant_initializer(False),
            collections=[v1.GraphKeys.GLOBAL_VARIABLES],
            trainable=False,
        )


class _ChiefStopHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    def __init__(
        self, should_stop: Callable[[], bool], every_secs: float | None, every_steps: int | None
    ) -> None:
        self._should_stop = should_stop
        self._timer = v1.train.SecondOrStepTimer(every_secs=every_secs, every_steps=every_steps)

    def begin(self) -> None:
        self._step = v1.train.get_global_step()
        self._raise_flag = v1.assign(_stop_flag(), True)

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(self._step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        # The value is read before or after this step is counted, so that the step is at most the value plus one.
        if not self._timer.should_trigger_for_step(run_values.results + 1):
            return
        step = run_context.session.run(self._step)
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            if self._should_stop():
                run_context.session.run(self._raise_flag)
                run_context.request_stop()


class _WorkerStopHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    def begin(self) -> None:
        self._flag = _stop_flag()

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(self._flag)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results:
            v1.logging.info("Stopping: the chief asked for it")
            run_context.request_stop()


class _AwaitCheckpointHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    def __init__(self, model_dir: str, last_step: int, wait_seconds: float) -> None:
        if last_step is None:
            raise BadValue("last_step is None.", "Give the step to stop at.")
        self._model_dir = model_dir
        self._last_step = last_step
        self._wait_seconds = wait_seconds

    def begin(self) -> None:
        self._step = v1.train.get_or_create_global_step()

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(self._step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results + 1 < self._last_step:  # the value was read before this step was counted
            return
        latest = tf.train.latest_checkpoint(self._model_dir)
        saved = int(tf.train.load_variable(latest, v1.GraphKeys.GLOBAL_STEP)) if latest else 0
        if saved >= self._last_step:
            run_context.request_stop()
        else:
            time.sleep(self._wait_seconds)
