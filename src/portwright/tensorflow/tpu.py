"""TPUEstimator and its settings, for code that was written for a TPU and runs on a CPU or GPU with `use_tpu=False`."""

from __future__ import annotations

import contextlib
import copy
import enum
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.ops import summary_ops_v2

from portwright.errors import UnsupportedError
from portwright.tensorflow.argument_names import argument_names
from portwright.tensorflow.bad_input import BadType, BadValue
from portwright.tensorflow.estimator import Estimator
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.spec import EstimatorSpec, check_hooks
from portwright.tensorflow.tpu_config import InputPipelineConfig, RunConfig, TPUConfig, check_positive

v1 = tf.compat.v1

__all__ = [
    "CrossShardOptimizer",
    "ExportSavedModelApiVersion",
    "InputPipelineConfig",
    "RunConfig",
    "TPUConfig",
    "TPUEstimator",
    "TPUEstimatorSpec",
]

_RESERVED = ("batch_size", "context")


class ExportSavedModelApiVersion(enum.Enum):
    """How a model for a TPU is exported; one for a CPU is the same in both."""

    V1 = 1
    V2 = 2


class _Spec(NamedTuple):
    mode: str
    predictions: Any
    loss: Any
    train_op: Any
    eval_metrics: Any
    export_outputs: Any
    scaffold_fn: Callable[[], Any] | None
    host_call: Any
    training_hooks: tuple[Any, ...]
    evaluation_hooks: tuple[Any, ...]
    prediction_hooks: tuple[Any, ...]


class TPUEstimatorSpec(_Spec):
    """An EstimatorSpec whose metrics and host call are pairs of a function and the tensors that it takes."""

    __slots__ = ()

    def __new__(
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metrics: Any = None,
        export_outputs: Any = None,
        scaffold_fn: Callable[[], Any] | None = None,
        host_call: Any = None,
        training_hooks: Any = None,
        evaluation_hooks: Any = None,
        prediction_hooks: Any = None,
    ) -> TPUEstimatorSpec:
        _check_call("eval_metrics", eval_metrics)
        _check_call("host_call", host_call)
        return super().__new__(
            cls,
            mode,
            predictions,
            loss,
            train_op,
            eval_metrics,
            export_outputs,
            scaffold_fn,
            host_call,
            check_hooks(training_hooks, "training_hooks"),
            check_hooks(evaluation_hooks, "evaluation_hooks"),
            check_hooks(prediction_hooks, "prediction_hooks"),
        )

    def as_estimator_spec(self) -> EstimatorSpec:
        """The same for a CPU: the functions are called here, and the host call's ops run with every step."""
        metrics = None if self.eval_metrics is None else _call(self.eval_metrics)
        hooks = () if self.host_call is None else (_HostCallHook(_call(self.host_call)),)
        return EstimatorSpec(
            self.mode,
            self.predictions,
            self.loss,
            self.train_op,
            metrics,
            self.export_outputs,
            training_hooks=(*self.training_hooks, *hooks),
            scaffold=self.scaffold_fn() if self.scaffold_fn else None,
            evaluation_hooks=(*self.evaluation_hooks, *hooks),
            prediction_hooks=(*self.prediction_hooks, *hooks),
        )


class TPUEstimator(Estimator):
    """An Estimator that gives `params["batch_size"]` to model_fn and input_fn, by what is done.

    Without `use_tpu=False` it is refused: there is no TPU here.
    """

    def __init__(
        self,
        model_fn: Any = None,
        model_dir: Any = None,
        config: RunConfig | None = None,
        params: Any = None,
        use_tpu: bool = True,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        batch_axis: Any = None,
        eval_on_tpu: bool = True,
        export_to_tpu: bool = True,
        export_to_cpu: bool = True,
        warm_start_from: Any = None,
        embedding_config_spec: Any = None,
        export_saved_model_api_version: Any = ExportSavedModelApiVersion.V1,
    ) -> None:
        if use_tpu:
            raise UnsupportedError(
                "TPUEstimator was given use_tpu=True, and Portwright has no TPU.", "Give use_tpu=False."
            )
        if embedding_config_spec is not None:
            raise UnsupportedError(
                "TPUEstimator was given an embedding_config_spec, which places tables on a TPU.",
                "Use tf.nn.embedding_lookup or feature columns in model_fn.",
            )
        if not isinstance(config, RunConfig):
            raise BadValue(
                f"config is a {type(config).__name__}.", "Give a RunConfig of portwright.tensorflow.tpu."
            )
        if taken := [key for key in _RESERVED if isinstance(params, Mapping) and key in params]:
            raise BadValue(
                f"params has {', '.join(taken)}, which TPUEstimator sets.",
                "Give train_batch_size and its like instead.",
            )
        self._batch_sizes = {
            ModeKeys.TRAIN: train_batch_size,
            ModeKeys.EVAL: eval_batch_size,
            ModeKeys.PREDICT: predict_batch_size,
        }
        for mode, size in self._batch_sizes.items():
            check_positive(f"the batch size of mode '{mode}'", size)
        if model_fn is not None and "params" not in argument_names(model_fn):
            raise BadValue(
                f"model_fn ({model_fn}) does not take params.",
                "Give it an argument params: it holds batch_size.",
            )
        self._added: dict[str, Any] = {}
        made = None if model_fn is None else _as_estimator_specs(model_fn)
        super().__init__(made, model_dir, config, params or {}, warm_start_from)  # type: ignore[arg-type]

    @property
    def params(self) -> Any:
        """The params that were given; while model_fn or input_fn is called, also the batch size."""
        params: Any = copy.deepcopy(self._params)
        for key, value in self._added.items():
            if hasattr(params, "set_hparam"):
                params.set_hparam(key, value) if key in params else params.add_hparam(key, value)
            else:
                params[key] = value
        return params

    def _call_input_fn(self, input_fn: Callable[..., Any], mode: str, input_context: Any = None) -> Any:
        if "params" not in argument_names(input_fn):
            raise BadValue(
                f"input_fn ({input_fn}) does not take params.",
                "Give it an argument params: it holds batch_size.",
            )
        with self._adding(self._batch_size(mode)):
            return super()._call_input_fn(input_fn, mode, input_context)

    def _call_model_fn(self, features: Any, labels: Any, mode: str, config: Any) -> EstimatorSpec:
        with self._adding({**self._batch_size(mode), "use_tpu": False}):
            return super()._call_model_fn(features, labels, mode, config)

    def _call_model_fn_to_export(self, features: Any, labels: Any, mode: str, config: Any) -> EstimatorSpec:
        with self._adding({"use_tpu": False}):  # whoever serves the model chooses the batch size
            return super()._call_model_fn(features, labels, mode, config)

    def _batch_size(self, mode: str) -> dict[str, Any]:
        size = self._batch_sizes.get(mode)
        return {} if size is None else {"batch_size": size}

    @contextlib.contextmanager
    def _adding(self, added: dict[str, Any]) -> Iterator[None]:
        before, self._added = self._added, added
        try:
            yield
        finally:
            self._added = before


class CrossShardOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """The optimizer itself: with one shard there is nothing to sum up."""

    def __init__(
        self,
        opt: Any,
        reduction: str = "mean",
        name: str = "CrossShardOptimizer",
        group_assignment: Any = None,
    ) -> None:
        if reduction not in ("mean", "weighted_mean", "weighted_sum", "sum"):
            raise BadValue(f"reduction is {reduction!r}.", "Give tf.compat.v1.losses.Reduction.MEAN or SUM.")
        if not isinstance(opt, v1.train.Optimizer):
            raise BadType(f"opt is a {type(opt).__name__}.", "Give an optimizer of tf.compat.v1.train.")
        super().__init__(False, name)
        self._opt = opt

    def compute_gradients(self, loss: Any, var_list: Any = None, **kwargs: Any) -> Any:
        return self._opt.compute_gradients(loss, var_list=var_list, **kwargs)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        return self._opt.apply_gradients(grads_and_vars, global_step, name)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._opt.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._opt.get_slot_names(*args, **kwargs)

    def variables(self) -> Any:
        return self._opt.variables()


class _HostCallHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Runs what a host call returned with every step, and the summary writers that it made."""

    def __init__(self, tensors: Any) -> None:
        self._tensors = tensors

    def begin(self) -> None:
        self._start = summary_ops_v2.summary_writer_initializer_op()
        self._flush = [summary_ops_v2.legacy_raw_flush(writer=op.inputs[0]) for op in self._start]

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._start)

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(self._tensors)

    def end(self, session: Any) -> None:
        session.run(self._flush)


def _as_estimator_specs(model_fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(model_fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        spec = model_fn(*args, **kwargs)
        return spec.as_estimator_spec() if isinstance(spec, TPUEstimatorSpec) else spec

    return wrapped


def _call(pair: Any) -> Any:
    function, tensors = pair
    return function(**tensors) if isinstance(tensors, Mapping) else function(*tensors)


def _check_call(what: str, given: Any) -> None:
    if given is None:
        return
    cure = "Give (function, [tensors]) or (function, {name: tensor})."
    if not isinstance(given, (tuple, list)) or len(given) != 2 or not callable(given[0]):
        raise BadValue(f"{what} is {given!r}.", cure)
    if not isinstance(given[1], (tuple, list, Mapping)):
        raise BadValue(f"The tensors of {what} are {given[1]!r}.", cure)
