"""Evaluates during a training without a checkpoint: the variables' values are handed from one session to the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from portwright.tensorflow import evaluation
from portwright.tensorflow.bad_input import BadValue
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.spec import check_hooks
from portwright.tensorflow.summaries import write_evaluation

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
        if self._num_iterations % self._every_n_iter != 0:  # else it was just evaluated
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
