"""Trains, and evaluates and exports after each checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from portwright.errors import UnsupportedError
from portwright.tensorflow.arguments import BadType, BadValue
from portwright.tensorflow.exporters import Exporter

if TYPE_CHECKING:
    from portwright.tensorflow.estimator import Estimator

v1 = tf.compat.v1

Metrics = dict[str, Any]


class _TrainSpec(NamedTuple):
    input_fn: Callable[..., Any]
    max_steps: int | None
    hooks: tuple[Any, ...]
    saving_listeners: tuple[Any, ...]


class TrainSpec(_TrainSpec):
    """How train_and_evaluate trains: up to `max_steps`, or without it until the input ends."""

    __slots__ = ()

    def __new__(
        cls, input_fn: Any, max_steps: int | None = None, hooks: Any = None, saving_listeners: Any = None
    ) -> TrainSpec:
        _check_input_fn(input_fn)
        _check_positive("max_steps", max_steps)
        listeners = _instances("saving_listeners", saving_listeners, v1.train.CheckpointSaverListener)
        return super().__new__(
            cls, input_fn, max_steps, _instances("hooks", hooks, v1.train.SessionRunHook), listeners
        )


class _EvalSpec(NamedTuple):
    input_fn: Callable[..., Any]
    steps: int | None
    name: str | None
    hooks: tuple[Any, ...]
    exporters: tuple[Exporter, ...]
    start_delay_secs: float
    throttle_secs: float


class EvalSpec(_EvalSpec):
    """How train_and_evaluate evaluates: at least `throttle_secs` after the last evaluation."""

    __slots__ = ()

    def __new__(
        cls,
        input_fn: Any,
        steps: int | None = 100,
        name: str | None = None,
        hooks: Any = None,
        exporters: Any = None,
        start_delay_secs: float = 120,
        throttle_secs: float = 600,
    ) -> EvalSpec:
        _check_input_fn(input_fn)
        _check_positive("steps", steps)
        if name is not None and not isinstance(name, str):
            raise BadType(f"name is {name!r}.", "Give a string.")
        for what, seconds in (("start_delay_secs", start_delay_secs), ("throttle_secs", throttle_secs)):
            if seconds < 0:
                raise BadValue(f"{what} is {seconds}.", "Give 0 or more.")
        return super().__new__(
            cls,
            input_fn,
            steps,
            name,
            _instances("hooks", hooks, v1.train.SessionRunHook),
            _check_exporters(exporters),
            start_delay_secs,
            throttle_secs,
        )


class Evaluator:
    """Evaluates the newest checkpoint once, and calls the exporters."""

    def __init__(self, estimator: Estimator, eval_spec: EvalSpec, max_steps: int | None) -> None:
        self._estimator = estimator
        self._spec = eval_spec
        self._max_steps = max_steps
        self._done: str | None = None
        self.metrics: Metrics | None = None  # those of the last evaluation
        self.exports: list[Any] | None = None

    def evaluate_newest(self) -> bool:
        """Evaluates the newest checkpoint if it is new; returns whether it was."""
        checkpoint = self._estimator.latest_checkpoint()
        if not checkpoint or checkpoint == self._done:
            return False
        self.metrics = self._estimator.evaluate(
            self._spec.input_fn,
            steps=self._spec.steps,
            hooks=self._spec.hooks,
            checkpoint_path=checkpoint,
            name=self._spec.name,
        )
        step = self.metrics[v1.GraphKeys.GLOBAL_STEP]
        is_final = self._max_steps is not None and step >= self._max_steps
        folder = tf.io.gfile.join(str(self._estimator.model_dir), "export")
        self.exports = [
            exporter.export(
                self._estimator, tf.io.gfile.join(folder, exporter.name), checkpoint, self.metrics, is_final
            )
            for exporter in self._spec.exporters
        ]
        self._done = checkpoint
        return True


class _EvaluateAfterSave(tf.compat.v1.train.CheckpointSaverListener):  # type: ignore[misc]
    def __init__(self, evaluator: Evaluator, throttle_secs: float, first_step: int) -> None:
        self._evaluator = evaluator
        self._throttle_secs = throttle_secs
        self._first_step = first_step

    def begin(self) -> None:
        self._timer = v1.train.SecondOrStepTimer(every_secs=self._throttle_secs)

    def after_save(self, session: Any, global_step_value: int) -> None:
        if global_step_value == self._first_step:  # nothing was trained yet
            return
        if self._timer.should_trigger_for_step(global_step_value):
            self._evaluate(global_step_value)
        else:
            v1.logging.info(
                "Step %d is not evaluated: throttle_secs is %s", global_step_value, self._throttle_secs
            )

    def end(self, session: Any, global_step_value: int) -> None:
        # The last checkpoint is evaluated whatever the throttle says.
        if global_step_value != self._timer.last_triggered_step():
            self._evaluate(global_step_value)

    def _evaluate(self, step: int) -> None:
        self._timer.update_last_triggered_step(step)
        if not self._evaluator.evaluate_newest():
            raise BadValue(
                f"Step {step} was saved, but its checkpoint is not the newest one.",
                "Let nothing else write to this model_dir.",
            )


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[Metrics | None, list[Any] | None] | None:
    """Trains and evaluates as TF_CONFIG says; for a single process, returns the last metrics and exports."""
    from portwright.tensorflow.estimator import Estimator

    for what, value, kind in (
        ("estimator", estimator, Estimator),
        ("train_spec", train_spec, TrainSpec),
        ("eval_spec", eval_spec, EvalSpec),
    ):
        if not isinstance(value, kind):
            raise BadType(
                f"{what} is a {type(value).__name__}.", f"Give a portwright.tensorflow.{kind.__name__}."
            )
    config = estimator.config
    if not config.cluster_spec and config.task_type != "evaluator":
        return train_and_evaluate_locally(estimator, train_spec, eval_spec)
    role = ROLES.get(config.task_type)
    if role is None:
        raise UnsupportedError(
            f"TF_CONFIG gives this process the task '{config.task_type}'.",
            f"train_and_evaluate knows: {', '.join(sorted(ROLES))}; without TF_CONFIG it runs locally.",
        )
    role(estimator, train_spec, eval_spec)
    return None


def train_and_evaluate_locally(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[Metrics | None, list[Any] | None]:
    """Trains in this process and evaluates between its steps."""
    evaluator = Evaluator(estimator, eval_spec, train_spec.max_steps)
    latest = estimator.latest_checkpoint()
    first_step = int(tf.train.load_variable(latest, v1.GraphKeys.GLOBAL_STEP)) if latest else 0
    evaluate = _EvaluateAfterSave(evaluator, eval_spec.throttle_secs, first_step)
    estimator.train(
        train_spec.input_fn,
        hooks=list(train_spec.hooks),
        max_steps=train_spec.max_steps,
        saving_listeners=(*train_spec.saving_listeners, evaluate),
    )
    return evaluator.metrics, evaluator.exports


def evaluate_continuously(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> None:
    """Evaluates each new checkpoint that another process writes, until one of them is at max_steps."""
    if estimator.config.task_id:
        raise BadValue(
            f"This is evaluator {estimator.config.task_id} of its cluster.",
            "Run one evaluator, with index 0.",
        )
    evaluator = Evaluator(estimator, eval_spec, train_spec.max_steps)
    time.sleep(eval_spec.start_delay_secs)
    while True:
        started = time.monotonic()
        is_new = evaluator.evaluate_newest()
        metrics = evaluator.metrics if is_new else None
        if metrics and train_spec.max_steps and metrics[v1.GraphKeys.GLOBAL_STEP] >= train_spec.max_steps:
            return
        # At least one second between two looks for a checkpoint, so that waiting takes no CPU time.
        wait = eval_spec.throttle_secs - (time.monotonic() - started)
        time.sleep(max(wait, 0.0 if is_new else 1.0))


def _train(estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> None:
    del eval_spec  # used by the evaluator, if the cluster has one
    estimator.train(
        train_spec.input_fn,
        hooks=list(train_spec.hooks),
        max_steps=train_spec.max_steps,
        saving_listeners=train_spec.saving_listeners,
    )


# Task type in TF_CONFIG: what its processes do. Only a master evaluates between steps, while the workers wait.
ROLES: dict[str, Callable[[Any, TrainSpec, EvalSpec], Any]] = {
    "chief": _train,
    "worker": _train,
    "master": train_and_evaluate_locally,
    "evaluator": evaluate_continuously,
}


def _check_input_fn(input_fn: Any) -> None:
    if not callable(input_fn):
        raise BadType(
            f"input_fn is {input_fn!r}.", "Give a function that returns a dataset or (features, labels)."
        )


def _check_positive(what: str, value: int | None) -> None:
    if value is not None and value <= 0:
        raise BadValue(f"{what} is {value}.", "Give a positive number, or None.")


def _instances(what: str, given: Any, kind: type) -> tuple[Any, ...]:
    found = tuple(given or ())
    for item in found:
        if not isinstance(item, kind):
            raise BadType(f"{what} holds a {type(item).__name__}.", f"Give {kind.__name__} objects.")
    return found


def _check_exporters(exporters: Any) -> tuple[Exporter, ...]:
    given = (exporters,) if isinstance(exporters, Exporter) else exporters
    found = _instances("exporters", given, Exporter)
    names = [exporter.name for exporter in found]
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) != len(names):
        raise BadValue(f"The exporters are named {names}.", "Give each a name of its own.")
    return found
