"""The Estimator: a model function trained, evaluated and asked for predictions, with its state in a folder."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from portwright.tensorflow import evaluation, training
from portwright.tensorflow.arguments import BadType, BadValue, argument_names, call_with
from portwright.tensorflow.checkpoints import newest_checkpoint, step_of
from portwright.tensorflow.estimator_setup import (
    check_listeners,
    check_model_fn,
    check_strategy,
    complete_config,
    make_device_fn,
    settings_from,
)
from portwright.tensorflow.input_feed import Feed, make_feed
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.monitor import Monitor, current_monitor, showing_progress, watched
from portwright.tensorflow.processes import Processes
from portwright.tensorflow.run_config import RunConfig, TaskType, path_as_str
from portwright.tensorflow.spec import EstimatorSpec, check_hooks

_MAY_BE_OVERRIDDEN = {
    "model_fn",
    "latest_checkpoint",
    "_create_and_assert_global_step",
    "_create_global_step",
    "_export_all_saved_models",
    "_assert_members_are_not_overridden",
}


class Estimator:
    """Trains and evaluates what `model_fn(features, labels, mode, params, config)` builds.

    `model_fn` may take any of these arguments, but must take features. Each call builds a new graph, and training
    saves its result in `model_dir` as TensorFlow checkpoints.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: Any = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: Any = None,
    ) -> None:
        type(self)._assert_members_are_not_overridden(self)
        self._config = complete_config(config, path_as_str(model_dir))
        tf.compat.v1.logging.info("Using config: %s", vars(self._config))
        self._train_distribution = self._config.train_distribute
        self._eval_distribution = self._config.eval_distribute
        self._model_dir: str = self._config.model_dir
        self._session_config = self._config.session_config
        self._device_fn = self._config.device_fn or make_device_fn(self._config)
        check_model_fn(model_fn, params)
        self._model_fn = model_fn
        self._params = copy.deepcopy(params or {})
        self._warm_start_settings = settings_from(warm_start_from)

    @property
    def model_dir(self) -> str:
        return self._model_dir

    @property
    def config(self) -> RunConfig:
        return copy.deepcopy(self._config)

    @property
    def params(self) -> Any:
        return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> Callable[..., Any]:
        """The model function with this Estimator's params bound to it."""

        def model_fn(features: Any, labels: Any, mode: str, config: RunConfig) -> Any:
            return self._call_model_fn(features, labels, mode, config)

        return model_fn

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Any = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Any = None,
    ) -> Estimator:
        """Trains for `steps` more steps, up to step `max_steps`, or until the data ends."""
        if self._config.task_type in (TaskType.EVALUATOR, TaskType.PS):
            raise BadValue(
                f"This process is task {self._config.task_type!r}, which does not train.",
                "Call train_and_evaluate, which does what TF_CONFIG asks of each process.",
            )
        if steps is not None and max_steps is not None:
            raise BadValue(
                f"Both steps ({steps}) and max_steps ({max_steps}) were given.", "Give one of them."
            )
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is not None and value <= 0:
                raise BadValue(f"{name} must be more than 0; received {value}.")
        check_strategy(self._train_distribution, "train_distribute", self._config.num_worker_replicas)
        all_hooks, listeners = list(check_hooks(hooks)), check_listeners(saving_listeners)
        with watched() as monitor:
            checkpoint = newest_checkpoint(self._model_dir, monitor.note)
            done = 0 if checkpoint is None else step_of(checkpoint)
            processes = training.join_processes(self._config, monitor)
            if processes is not None:
                done = int(processes.hear_chief(str(done)))
            if max_steps is not None and max_steps <= done:
                tf.compat.v1.logging.info("Skipping training since max_steps has already saved.")
                return self
            total = max_steps if steps is None else done + steps
            with showing_progress(monitor, done, total, self._config.is_chief):
                loss = training.train(
                    self, input_fn, all_hooks, steps, max_steps, listeners, checkpoint, monitor, processes
                )
            tf.compat.v1.logging.info("Loss for final step: %s.", loss)
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Any = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Returns the metrics over `steps` batches, or all; without a checkpoint those of a fresh model."""
        if steps is not None and steps <= 0:
            raise BadValue(f"steps must be more than 0; received {steps}.")
        check_strategy(self._eval_distribution, "eval_distribute")
        all_hooks = list(check_hooks(hooks))
        checkpoint = self._choose_checkpoint(checkpoint_path, "evaluate")
        return evaluation.evaluate(self, input_fn, steps, all_hooks, checkpoint, name)

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: Any = None,
        hooks: Any = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yields predictions, until the data ends; without a checkpoint those of a fresh model."""
        all_hooks = list(check_hooks(hooks))
        checkpoint = self._choose_checkpoint(checkpoint_path, "predict")
        yield from evaluation.predict(
            self, input_fn, predict_keys, all_hooks, checkpoint, yield_single_examples
        )

    def eval_dir(self, name: str | None = None) -> str:
        """The folder for the metrics of the evaluation of this name."""
        return os.path.join(self._model_dir, f"eval_{name}" if name else "eval")  # noqa: PTH118 - it may be a URL

    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint in model_dir; None without one."""
        found: str | None = tf.train.latest_checkpoint(self._model_dir)
        return found

    def get_variable_names(self) -> list[str]:
        """Names of the variables in the newest checkpoint."""
        return [name for name, _ in tf.train.list_variables(self._required_checkpoint())]

    def get_variable_value(self, name: str) -> Any:
        """The value of a variable in the newest checkpoint."""
        return tf.train.load_variable(self._required_checkpoint(), name)

    def export_saved_model(
        self,
        export_dir_base: Any,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, Any] | None = None,
        as_text: bool = False,
        checkpoint_path: Any = None,
        experimental_mode: str = ModeKeys.PREDICT,
    ) -> bytes:
        """Writes a SavedModel of one mode, and returns its folder."""
        from portwright.tensorflow.saved_model import export_saved_model

        return export_saved_model(
            self,
            export_dir_base,
            serving_input_receiver_fn,
            assets_extra,
            as_text,
            checkpoint_path,
            experimental_mode,
        )

    def export_savedmodel(
        self,
        export_dir_base: Any,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, Any] | None = None,
        as_text: bool = False,
        checkpoint_path: Any = None,
        strip_default_attrs: bool = False,
    ) -> bytes:
        """The name that TensorFlow 1 had for `export_saved_model`."""
        return self.export_saved_model(
            export_dir_base, serving_input_receiver_fn, assets_extra, as_text, checkpoint_path
        )

    def experimental_export_all_saved_models(
        self,
        export_dir_base: Any,
        input_receiver_fn_map: Mapping[str, Callable[[], Any]],
        assets_extra: Mapping[str, Any] | None = None,
        as_text: bool = False,
        checkpoint_path: Any = None,
    ) -> bytes:
        """Writes a SavedModel with a graph for each mode, and returns its folder."""
        from portwright.tensorflow.saved_model import export_all_saved_models

        return export_all_saved_models(
            self, export_dir_base, input_receiver_fn_map, assets_extra, as_text, checkpoint_path
        )

    # -- methods that subclasses build on ------------------------------------------------------------------------------

    def _create_global_step(self, graph: Any) -> Any:
        return tf.compat.v1.train.create_global_step(graph)

    def _create_and_assert_global_step(self, graph: Any) -> Any:
        step = self._create_global_step(graph)
        if step is not tf.compat.v1.train.get_global_step() or not step.dtype.is_integer:
            raise BadValue(f"The global step must be the graph's, and an integer; received {step!r}.")
        return step

    def _call_input_fn(self, input_fn: Callable[..., Any], mode: str, input_context: Any = None) -> Any:
        offered = {"mode": mode, "params": self.params, "config": self.config}
        if input_context is not None:
            offered["input_context"] = input_context
        if not callable(input_fn):
            raise BadType(f"input_fn must be a function; received {input_fn!r}.", "Give the function itself.")
        with tf.compat.v1.device("/cpu:0"):
            return call_with(input_fn, offered)

    def _get_feed(self, input_fn: Callable[..., Any], mode: str, processes: Processes | None = None) -> Feed:
        if processes is None:
            return make_feed(self._call_input_fn(input_fn, mode))
        shares = getattr(input_fn, "takes_input_context", "input_context" in argument_names(input_fn))
        return make_feed(self._call_input_fn(input_fn, mode, processes.input_context), processes, shares)

    def _call_model_fn(self, features: Any, labels: Any, mode: str, config: RunConfig) -> EstimatorSpec:
        offered: dict[str, Any] = {"mode": mode, "params": self.params, "config": config}
        if "labels" in argument_names(self._model_fn):
            offered["labels"] = labels
        elif labels is not None:
            raise BadValue(
                "input_fn gives labels, but model_fn does not take labels.", "Give it an argument labels."
            )
        tf.compat.v1.logging.info("Calling model_fn.")
        spec = call_with(self._model_fn, {"features": features, **offered})
        tf.compat.v1.logging.info("Done calling model_fn.")
        if not isinstance(spec, EstimatorSpec):
            raise BadValue(f"model_fn must return an EstimatorSpec; it returned {spec!r}.")
        return spec

    def _maybe_warm_start(self, checkpoint_path: str | None) -> None:
        if not checkpoint_path and self._warm_start_settings:
            tf.compat.v1.logging.info("Warm-starting with WarmStartSettings: %s", self._warm_start_settings)
            tf.compat.v1.train.warm_start(*self._warm_start_settings)

    def _choose_checkpoint(self, checkpoint_path: str | None, verb: str) -> str | None:
        monitor = current_monitor() or Monitor()
        chosen = path_as_str(checkpoint_path) or newest_checkpoint(self._model_dir, monitor.note)
        if not chosen:
            tf.compat.v1.logging.info(
                "Could not find trained model in model_dir: %s, running initialization to %s.",
                self._model_dir,
                verb,
            )
        return chosen

    def _required_checkpoint(self) -> str:
        found = self.latest_checkpoint()
        if not found:
            raise BadValue(f"There is no checkpoint in {self._model_dir}.", "Train first.")
        return found

    def _assert_members_are_not_overridden(self) -> None:
        if type(self).__name__ == "TPUEstimator":
            return
        ours = {name for name in dir(Estimator) if not name.startswith("__")} - _MAY_BE_OVERRIDDEN
        overridden = sorted(
            name
            for name in ours & set(type(self).__dict__)
            if getattr(Estimator, name) is not getattr(type(self), name)
        )
        if overridden and type(self) is not Estimator and not getattr(type(self), "_is_portwright", False):
            raise BadValue(
                f"{type(self).__name__} overrides {', '.join(overridden)} of Estimator.",
                "Put what it does into model_fn, or name the methods otherwise.",
            )
