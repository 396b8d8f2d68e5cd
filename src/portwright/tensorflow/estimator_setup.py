"""Checks and completes an Estimator's arguments, and sets the checkpoint that its weights start from."""

from __future__ import annotations

import os
import tempfile
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.training import device_setter

from portwright.errors import UnsupportedError
from portwright.tensorflow.arguments import BadType, BadValue, argument_names
from portwright.tensorflow.run_config import RunConfig, default_session_config

v1 = tf.compat.v1

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
    """Ignores a strategy of one replica, which changes no result; refuses one of several, which would run as one."""
    num_replicas = getattr(strategy, "num_replicas_in_sync", 1)
    if isinstance(strategy, _OF_SEVERAL_WORKERS):
        # Made outside of graph mode, such a strategy starts a TensorFlow server at the address where ours must listen.
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


VocabInfo = v1.train.VocabInfo


class _Settings(NamedTuple):
    ckpt_to_initialize_from: str
    vars_to_warm_start: Any
    var_name_to_vocab_info: dict[str, Any]
    var_name_to_prev_var_name: dict[str, str]


class WarmStartSettings(_Settings):
    """A checkpoint, or its folder, and the variables to read from it.

    `vars_to_warm_start` is a regular expression over trainable variables, a list of them or of names over all
    variables, or None for those of `var_name_to_vocab_info` alone.
    """

    __slots__ = ()

    def __new__(
        cls,
        ckpt_to_initialize_from: Any,
        vars_to_warm_start: Any = ".*",
        var_name_to_vocab_info: dict[str, Any] | None = None,
        var_name_to_prev_var_name: dict[str, str] | None = None,
    ) -> WarmStartSettings:
        if not ckpt_to_initialize_from:
            raise BadValue(
                f"ckpt_to_initialize_from is {ckpt_to_initialize_from!r}.", "Give a checkpoint or its folder."
            )
        return super().__new__(
            cls,
            os.fspath(ckpt_to_initialize_from),
            vars_to_warm_start,
            var_name_to_vocab_info or {},
            var_name_to_prev_var_name or {},
        )


def settings_from(warm_start_from: Any) -> WarmStartSettings | None:
    """Turns `warm_start_from` (settings, a checkpoint, its folder, or a SavedModel) into settings."""
    if warm_start_from is None or isinstance(warm_start_from, WarmStartSettings):
        return warm_start_from
    if not isinstance(warm_start_from, (str, bytes, os.PathLike)):
        raise BadType(
            f"warm_start_from is a {type(warm_start_from).__name__}.", "Give a path or a WarmStartSettings."
        )
    path = tf.compat.as_str_any(os.fspath(warm_start_from))
    if v1.saved_model.contains_saved_model(path):
        path = tf.io.gfile.join(path, v1.saved_model.VARIABLES_DIRECTORY, v1.saved_model.VARIABLES_FILENAME)
    return WarmStartSettings(path)
