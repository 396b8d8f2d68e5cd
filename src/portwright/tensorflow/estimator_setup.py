"""What an Estimator is made of, checked and completed."""

from __future__ import annotations

import tempfile
from typing import Any

import tensorflow as tf
from tensorflow.python.training import device_setter

from portwright.errors import UnsupportedError
from portwright.tensorflow.argument_names import argument_names
from portwright.tensorflow.bad_input import BadType, BadValue
from portwright.tensorflow.run_config import RunConfig, default_session_config

_OF_SEVERAL_WORKERS = (
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.compat.v1.distribute.experimental.MultiWorkerMirroredStrategy,
)
_MODEL_FN_ARGUMENTS = {"features", "labels", "mode", "params", "self", "config"}


def complete_config(config: RunConfig | None, model_dir: str | None) -> RunConfig:
    config = RunConfig() if config is None else config
    if not isinstance(config, RunConfig):
        raise BadValue(f"config must be a RunConfig; received {config!r}.")
    if config.session_config is None:
        config = config.replace(session_config=default_session_config())
    if model_dir is not None and config.model_dir is not None and config.model_dir != model_dir:
        raise BadValue(
            f"model_dir is {model_dir!r} in the constructor and {config.model_dir!r} in RunConfig.",
            "Give one of them, or the same twice.",
        )
    if model_dir:
        return config.replace(model_dir=model_dir)
    if config.model_dir is None:
        made = tempfile.mkdtemp()
        tf.compat.v1.logging.warning("Using temporary folder as model directory: %s", made)
        return config.replace(model_dir=made)
    return config


def check_model_fn(model_fn: Any, params: Any) -> None:
    if model_fn is None:
        raise BadValue("model_fn is None.", "Give Estimator a model function.")
    names = set(argument_names(model_fn))
    if "features" not in names:
        raise BadValue(f"model_fn ({model_fn}) has no argument features.", "Give it one.")
    if params is not None and "params" not in names:
        raise BadValue(
            f"params were given, but model_fn ({model_fn}) has no argument params.",
            f"Give it one. Received: params={params}.",
        )
    if params is None and "params" in names:
        tf.compat.v1.logging.warning("model_fn (%s) takes params, but Estimator was given none.", model_fn)
    if unknown := sorted(names - _MODEL_FN_ARGUMENTS):
        raise BadValue(
            f"model_fn ({model_fn}) has arguments that an Estimator cannot give: {', '.join(unknown)}.",
            "It may have features, labels, mode, params, config; bind others with functools.partial.",
        )


def check_strategy(strategy: Any, name: str, num_workers: int = 1) -> None:
    """One replica computes what no strategy would; several are not run in silence as one."""
    num_replicas = getattr(strategy, "num_replicas_in_sync", 1)
    if isinstance(strategy, _OF_SEVERAL_WORKERS):
        # Made outside of graph mode it brings up a server of TensorFlow's own, at the address where ours would listen.
        if num_workers > 1 and tf.compat.v1.executing_eagerly_outside_functions():
            raise UnsupportedError(
                f"RunConfig's {name} is a MultiWorkerMirroredStrategy, which takes this process's address for itself.",
                "Leave it out: the processes of TF_CONFIG train together without one. Or call tf.compat.v1.disable_eager_execution() first.",
            )
        num_replicas //= max(1, num_workers)
    if num_replicas > 1:
        raise UnsupportedError(
            f"RunConfig's {name} is a {type(strategy).__name__} of {num_replicas} replicas.",
            "Leave it out to train on one device in each process; processes of TF_CONFIG train together.",
        )


def check_listeners(listeners: Any) -> list[Any]:
    found = list(listeners or ())
    for listener in found:
        if not isinstance(listener, tf.compat.v1.train.CheckpointSaverListener):
            raise BadType(
                f"saving_listeners must hold CheckpointSaverListener objects; received {listener!r}."
            )
    return found


def make_device_fn(config: RunConfig) -> Any:
    if config.num_ps_replicas == 0:
        return None
    job = f"/job:{config.task_type}/task:{config.task_id}" if config.task_type else "/job:worker"
    return tf.compat.v1.train.replica_device_setter(
        ps_tasks=config.num_ps_replicas,
        worker_device=job,
        merge_devices=True,
        ps_ops=list(device_setter.STANDARD_PS_OPS),
        cluster=config.cluster_spec,
    )


def make_warm_start_settings(warm_start_from: Any) -> Any:
    if warm_start_from is None:
        return None
    from portwright.tensorflow.warm_start import settings_from

    return settings_from(warm_start_from)
