"""The public names of `tf.estimator.experimental`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from portwright.tensorflow import evaluation
from portwright.tensorflow.arguments import BadType, BadValue, call_with
from portwright.tensorflow.canned.networks import Dnn, Linear
from portwright.tensorflow.early_stopping import (
    make_early_stopping_hook,
    make_stop_at_checkpoint_step_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from portwright.tensorflow.evaluation import write_evaluation
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.serving import build_raw_supervised_input_receiver_fn
from portwright.tensorflow.spec import check_hooks

if TYPE_CHECKING:
    from portwright.tensorflow.estimator import Estimator

v1 = tf.compat.v1


class InMemoryEvaluatorHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Evaluates when a training starts, every `every_n_iter` steps, and when it ends; on one machine only."""

    def __init__(
        self,
        estimator: Estimator,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Any = None,
        name: str | None = None,
        every_n_iter: int = 100,
    ) -> None:
        if every_n_iter is None or every_n_iter <= 0:
            raise BadValue(f"every_n_iter is {every_n_iter}.", "Give a positive number.")
        if steps is not None and steps <= 0:
            raise BadValue(f"steps is {steps}.", "Give a positive number, or None for all the data.")
        if estimator.config.num_ps_replicas > 0 or estimator.config.num_worker_replicas > 1:
            raise BadValue(
                f"TF_CONFIG has {estimator.config.num_worker_replicas} workers.",
                "Evaluate in a process of its own: train_and_evaluate does.",
            )
        self._estimator = estimator
        self._input_fn = input_fn
        self._steps = steps
        self._hooks = check_hooks(hooks)
        self._name = name
        self._every_n_iter = every_n_iter
        self._num_iterations = 0

    def begin(self) -> None:
        self._num_iterations = 0
        self._graph = tf.Graph()
        with self._graph.as_default():
            v1.set_random_seed(self._estimator.config.tf_random_seed)
            self._estimator._create_and_assert_global_step(self._graph)
            self._feed = self._estimator._get_feed(self._input_fn, ModeKeys.EVAL)
            config = self._estimator.config
            spec = self._estimator._call_model_fn(
                self._feed.features, self._feed.labels, ModeKeys.EVAL, config
            )
            if spec.scaffold.saver is not None or spec.scaffold.init_fn is not None:
                raise BadValue(
                    "model_fn gives a scaffold with a saver or an init_fn of its own.",
                    "Evaluate from checkpoints: call evaluate or train_and_evaluate.",
                )
            self._update_op, self._values = evaluation._metrics(spec)
            self._spec_hooks = spec.evaluation_hooks
            self._variables = {variable.name: variable for variable in v1.global_variables()}
            self._placeholders = {
                name: v1.placeholder(variable.dtype.base_dtype, variable.shape)
                for name, variable in self._variables.items()
            }
            self._assign = {
                name: v1.assign(variable, self._placeholders[name]).op
                for name, variable in self._variables.items()
            }
            self._scaffold = v1.train.Scaffold(init_fn=self._copy_variables, copy_from_scaffold=spec.scaffold)

    def after_create_session(self, session: Any, coord: Any) -> None:
        trained = {variable.name: variable for variable in v1.global_variables()}
        self._shared = {name: trained[name] for name in self._variables if name in trained}
        self._evaluate(session)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._num_iterations += 1
        if self._num_iterations % self._every_n_iter == 0:
            self._evaluate(run_context.session)

    def end(self, session: Any) -> None:
        if self._num_iterations % self._every_n_iter != 0:  # else the last step was evaluated already
            self._evaluate(session)

    def _copy_variables(self, scaffold: Any, session: Any) -> None:
        feed = {self._placeholders[name]: value for name, value in self._now.items()}
        session.run([self._assign[name] for name in self._now], feed)

    def _evaluate(self, train_session: Any) -> None:
        self._now = train_session.run(self._shared)
        final = v1.train.FinalOpsHook(self._values)
        hooks = [*self._feed.hooks, *self._hooks, *self._spec_hooks, final]
        with self._graph.as_default():
            creator = v1.train.ChiefSessionCreator(
                self._scaffold, config=self._estimator.config.session_config
            )
            with v1.train.MonitoredSession(creator, hooks) as session:
                num_batches = 0
                while not session.should_stop() and num_batches != self._steps:
                    session.run(self._update_op)
                    num_batches += 1
        results = final.final_ops_values
        step = int(results[v1.GraphKeys.GLOBAL_STEP])
        write_evaluation(self._estimator.eval_dir(self._name), results, step, None)


__all__ = [
    "InMemoryEvaluatorHook",
    "build_raw_supervised_input_receiver_fn",
    "call_logit_fn",
    "dnn_logit_fn_builder",
    "linear_logit_fn_builder",
    "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]


def call_logit_fn(logit_fn: Callable[..., Any], features: Any, mode: str, params: Any, config: Any) -> Any:
    """Calls `logit_fn` with the arguments that it takes, and checks that it returns logits."""
    logits = call_with(logit_fn, {"features": features, "mode": mode, "params": params, "config": config})
    if isinstance(logits, dict):
        if wrong := [name for name, value in logits.items() if not tf.is_tensor(value)]:
            raise BadType(
                f"logit_fn gave no tensor under {', '.join(map(str, wrong))}.", "Give tensors by name."
            )
    elif not tf.is_tensor(logits):
        raise BadType(f"logit_fn gave a {type(logits).__name__}.", "Give a tensor or a dict of tensors.")
    return logits


def dnn_logit_fn_builder(
    units: int,
    hidden_units: Sequence[int],
    feature_columns: Any,
    activation_fn: Callable[[Any], Any],
    dropout: float | None,
    input_layer_partitioner: Any,
    batch_norm: bool,
) -> Callable[[Any, str], Any]:
    """A function of features and mode that gives the logits of fully connected layers."""
    if isinstance(units, bool) or not isinstance(units, int):
        raise BadValue(f"units is {units!r}.", "Give a whole number.")
    dnn = Dnn(hidden_units, list(feature_columns), activation_fn, dropout, batch_norm)

    def dnn_logit_fn(features: Any, mode: str) -> Any:
        return dnn.v1_logits(features, mode, units, input_layer_partitioner)

    return dnn_logit_fn


def linear_logit_fn_builder(
    units: int, feature_columns: Any, sparse_combiner: str = "sum"
) -> Callable[[Any], Any]:
    """A function of features that gives the logits of a linear model."""
    linear = Linear(list(feature_columns), sparse_combiner)

    def linear_logit_fn(features: Any) -> Any:
        return linear.logits(features, units).values

    return linear_logit_fn
