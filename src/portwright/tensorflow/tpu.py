"""TPUEstimator and its settings, for code that was written for a TPU and runs on a CPU or GPU with `use_tpu=False`."""

from __future__ import annotations

import contextlib
import copy
import enum
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.ops import summary_ops_v2

from portwright.errors import UnsupportedError
from portwright.tensorflow import run_config
from portwright.tensorflow.arguments import BadType, BadValue, argument_names
from portwright.tensorflow.estimator import Estimator
from portwright.tensorflow.mode_keys import ModeKeys
from portwright.tensorflow.spec import EstimatorSpec, call_pair, check_hooks

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
_CORES = (1, 2, 4, 8, 16, 32, 64, 128)


class ExportSavedModelApiVersion(enum.Enum):
    """How a model for a TPU is exported; for a CPU both versions give the same."""

    V1 = 1
    V2 = 2


class InputPipelineConfig:
    """How the hosts of a TPU share the input; without a TPU one machine reads all of it."""

    PER_SHARD_V1 = 1
    PER_HOST_V1 = 2
    PER_HOST_V2 = 3
    BROADCAST = 4
    SLICED = 5


class _TPUConfig(NamedTuple):
    iterations_per_loop: int | str = 2
    num_shards: int | None = None
    num_cores_per_replica: int | None = None
    per_host_input_for_training: bool | int = True
    tpu_job_name: str | None = None
    initial_infeed_sleep_secs: int | None = None
    input_partition_dims: Any = None
    eval_training_input_configuration: int = InputPipelineConfig.PER_HOST_V1
    experimental_host_call_every_n_steps: int = 1
    experimental_allow_per_host_v2_parallel_get_next: bool = False
    experimental_feed_hook: Any = None


class TPUConfig(_TPUConfig):
    """Settings of a TPU; they are checked, and have no effect without one."""

    __slots__ = ()
    __signature__ = inspect.signature(_TPUConfig)

    def __new__(cls, *given: Any, **named: Any) -> TPUConfig:
        made = super().__new__(cls, *given, **named)
        if not re.fullmatch(r"[1-9]\d*[smh]?", str(made.iterations_per_loop)):
            raise BadValue(
                f"iterations_per_loop is {made.iterations_per_loop!r}.",
                "Give a positive number, or a time such as 60s or 1h.",
            )
        _check_positive("num_shards", made.num_shards)
        _check_positive("initial_infeed_sleep_secs", made.initial_infeed_sleep_secs or None)
        if made.num_cores_per_replica not in (None, *_CORES):
            raise BadValue(
                f"num_cores_per_replica is {made.num_cores_per_replica}.", f"Give one of {_CORES}."
            )
        per_host = made.per_host_input_for_training
        if isinstance(per_host, bool):
            per_host = InputPipelineConfig.PER_HOST_V1 if per_host else InputPipelineConfig.PER_SHARD_V1
        if made.input_partition_dims is not None:
            if len(made.input_partition_dims) not in (1, 2):
                raise BadValue(
                    f"input_partition_dims is {made.input_partition_dims!r}.", "Give one or two elements."
                )
            if per_host != InputPipelineConfig.PER_HOST_V2 or made.num_cores_per_replica is None:
                raise BadValue(
                    "input_partition_dims was given without what it needs.",
                    "Set per_host_input_for_training=InputPipelineConfig.PER_HOST_V2 and num_cores_per_replica.",
                )
        at_eval = made.eval_training_input_configuration
        if at_eval not in (InputPipelineConfig.PER_HOST_V1, InputPipelineConfig.SLICED):
            raise BadValue(
                f"eval_training_input_configuration is {at_eval}.",
                "Give PER_HOST_V1 or SLICED of InputPipelineConfig.",
            )
        return made._replace(per_host_input_for_training=per_host)


class RunConfig(run_config.RunConfig):
    """A RunConfig with a TPUConfig."""

    def __init__(
        self,
        tpu_config: TPUConfig | None = None,
        evaluation_master: str | None = None,
        master: str | None = None,
        cluster: Any = None,
        **kwargs: Any,
    ) -> None:
        if master is not None and cluster is not None:
            raise BadValue(f"master ({master!r}) and cluster are both set.", "Give one of them.")
        super().__init__(**kwargs)
        self._tpu_config = tpu_config or TPUConfig()
        self._cluster = cluster
        if cluster is not None:
            self._cluster_spec = cluster.cluster_spec()
            master = cluster.master()
        if master is not None:
            self._master = master
        if evaluation_master is not None:
            self._evaluation_master = evaluation_master
        elif not self._evaluation_master and self._task_type != "evaluator":
            self._evaluation_master = self._master

    @property
    def tpu_config(self) -> TPUConfig:
        return self._tpu_config

    @property
    def cluster(self) -> Any:
        return self._cluster

    def replace(self, **kwargs: Any) -> RunConfig:
        tpu_config = kwargs.pop("tpu_config", self._tpu_config)
        changed = super().replace(**kwargs)
        assert isinstance(changed, RunConfig)
        changed._tpu_config = tpu_config
        return changed


def _check_positive(what: str, value: int | None) -> None:
    """Refuses values that are no positive whole number; None is accepted."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value <= 0):
        raise BadValue(f"{what} is {value!r}.", "Give a positive whole number.")


class _Spec(NamedTuple):
    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metrics: Any = None
    export_outputs: Any = None
    scaffold_fn: Callable[[], Any] | None = None
    host_call: Any = None
    training_hooks: Any = None
    evaluation_hooks: Any = None
    prediction_hooks: Any = None


class TPUEstimatorSpec(_Spec):
    """An EstimatorSpec whose metrics and host call are pairs of a function and the tensors that it takes."""

    __slots__ = ()
    __signature__ = inspect.signature(_Spec)

    def __new__(cls, *given: Any, **named: Any) -> TPUEstimatorSpec:
        made = super().__new__(cls, *given, **named)
        _check_call("eval_metrics", made.eval_metrics)
        _check_call("host_call", made.host_call)
        names = ("training_hooks", "evaluation_hooks", "prediction_hooks")
        checked: dict[str, Any] = {name: check_hooks(getattr(made, name), name) for name in names}
        return made._replace(**checked)

    def as_estimator_spec(self) -> EstimatorSpec:
        """The EstimatorSpec for a CPU: the metrics' and host call's functions are called here; the host call's ops run in every step."""
        metrics = None if self.eval_metrics is None else call_pair(*self.eval_metrics)
        hooks = () if self.host_call is None else (_HostCallHook(call_pair(*self.host_call)),)
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
    """An Estimator that gives `params["batch_size"]` of the mode to model_fn and input_fn.

    It must be given `use_tpu=False`: there is no TPU here.
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
            _check_positive(f"the batch size of mode '{mode}'", size)
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
        with self._adding({"use_tpu": False}):  # the server of the model chooses the batch size
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
    """Passes all calls to the given optimizer: there is one shard, and no sum over shards."""

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
    """Runs the ops that a host call returned in every step, and opens and flushes its summary writers."""

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


def _check_call(what: str, given: Any) -> None:
    if given is None:
        return
    cure = "Give (function, [tensors]) or (function, {name: tensor})."
    if not isinstance(given, (tuple, list)) or len(given) != 2 or not callable(given[0]):
        raise BadValue(f"{what} is {given!r}.", cure)
    if not isinstance(given[1], (tuple, list, Mapping)):
        raise BadValue(f"The tensors of {what} are {given[1]!r}.", cure)
