"""How an Estimator runs: seeds, what is saved when, and the task of this process in a cluster."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.core.protobuf import rewriter_config_pb2

from portwright.tensorflow.arguments import BadValue, argument_names
from portwright.tensorflow.cluster import Place, TaskType, place_of, read_tf_config

__all__ = ["CSRunConfig", "RunConfig", "TaskType", "default_session_config"]

_DEFAULT: Any = object()  # tells "not given" from None, which means "never"

_REPLACEABLE = (
    "model_dir",
    "tf_random_seed",
    "save_summary_steps",
    "save_checkpoints_steps",
    "save_checkpoints_secs",
    "session_config",
    "keep_checkpoint_max",
    "keep_checkpoint_every_n_hours",
    "log_step_count_steps",
    "train_distribute",
    "device_fn",
    "protocol",
    "eval_distribute",
    "experimental_distribute",
    "experimental_max_worker_delay_secs",
    "session_creation_timeout_secs",
    "checkpoint_save_graph_def",
)


class RunConfig:
    """Settings of a run; the ones about a cluster come from TF_CONFIG."""

    _session_config: Any
    _save_checkpoints_steps: int | None
    _save_checkpoints_secs: float | None

    def __init__(
        self,
        model_dir: Any = None,
        tf_random_seed: int | None = None,
        save_summary_steps: int | None = 100,
        save_checkpoints_steps: int | None = _DEFAULT,
        save_checkpoints_secs: float | None = _DEFAULT,
        session_config: Any = None,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000,
        log_step_count_steps: int | None = 100,
        train_distribute: Any = None,
        device_fn: Any = None,
        protocol: str | None = None,
        eval_distribute: Any = None,
        experimental_distribute: Any = None,
        experimental_max_worker_delay_secs: int | None = None,
        session_creation_timeout_secs: int = 7200,
        checkpoint_save_graph_def: bool = True,
    ) -> None:
        given = dict(locals())
        steps, secs = given["save_checkpoints_steps"], given["save_checkpoints_secs"]
        if steps is _DEFAULT and secs is _DEFAULT:
            steps, secs = None, 600
        elif secs is _DEFAULT:
            secs = None
        elif steps is _DEFAULT:
            steps = None
        _check_saving(steps, secs)
        given.update(save_checkpoints_steps=steps, save_checkpoints_secs=secs)
        config = read_tf_config()
        given["model_dir"] = _choose_model_dir(path_as_str(model_dir), config)
        for name in _REPLACEABLE:
            setattr(self, f"_{name}", given[name])
        _check(self)
        self._take_place(place_of(config))

    def _take_place(self, place: Place) -> None:
        for field in fields(place):
            setattr(self, f"_{field.name}", getattr(place, field.name))
        if self._session_config is None and self._cluster_spec:
            self._session_config = _session_config_in_cluster(self._task_type, self._task_id)

    def replace(self, **kwargs: Any) -> RunConfig:
        """A copy with these settings changed; those about the cluster cannot be."""
        unknown = sorted(set(kwargs) - set(_REPLACEABLE))
        if unknown:
            raise BadValue(
                f"RunConfig.replace cannot replace {', '.join(unknown)}.",
                f"It can replace: {', '.join(_REPLACEABLE)}.",
            )
        changed = copy.deepcopy(self)
        for name, value in kwargs.items():
            setattr(changed, f"_{name}", value)
        if {"save_checkpoints_steps", "save_checkpoints_secs"} <= kwargs.keys():
            _check_saving(changed._save_checkpoints_steps, changed._save_checkpoints_secs)
        elif kwargs.get("save_checkpoints_steps") is not None:
            changed._save_checkpoints_secs = None
        elif kwargs.get("save_checkpoints_secs") is not None:
            changed._save_checkpoints_steps = None
        _check(changed)
        return changed

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


# Every setting is kept under its name with an underscore, as code that reads vars(config) expects.
for _name in (*_REPLACEABLE, *(field.name for field in fields(Place))):
    setattr(RunConfig, _name, property(attrgetter(f"_{_name}")))


class CSRunConfig(RunConfig):
    """A RunConfig with settings for Cerebras's system: its address, configuration and compiler options."""

    def __init__(
        self,
        cs_ip: str | None = None,
        system_name: str | None = None,
        cs_config: Any = None,
        stack_params: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._cs_ip = cs_ip
        self._system_name = system_name
        self._cs_config = cs_config
        self._stack_params = dict(stack_params or {})


def default_session_config() -> Any:
    """The session's settings where a user gives none: one round of graph optimisation, soft placement."""
    return tf.compat.v1.ConfigProto(allow_soft_placement=True, graph_options=_graph_options())


def path_as_str(path: Any) -> Any:
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def _graph_options() -> Any:
    rewrites = rewriter_config_pb2.RewriterConfig(
        meta_optimizer_iterations=rewriter_config_pb2.RewriterConfig.ONE
    )
    return tf.compat.v1.GraphOptions(rewrite_options=rewrites)


def _session_config_in_cluster(task_type: str, task_id: int) -> Any:
    """Connects a worker with the parameter servers alone, so that it does not wait for other workers."""
    peers = {
        TaskType.MASTER: ["/job:ps", "/job:master"],
        TaskType.CHIEF: ["/job:ps", "/job:chief"],
        TaskType.WORKER: ["/job:ps", f"/job:worker/task:{task_id}"],
        TaskType.PS: ["/job:ps", "/job:worker", "/job:chief", "/job:master"],
    }
    if task_type not in peers:
        return None
    return tf.compat.v1.ConfigProto(
        allow_soft_placement=True, graph_options=_graph_options(), device_filters=peers[task_type]
    )


def _choose_model_dir(model_dir: str | None, config: Mapping[str, Any]) -> str | None:
    of_environment = config.get("model_dir")
    for where, value in (("RunConfig", model_dir), ("TF_CONFIG", of_environment)):
        if value == "":
            raise BadValue(f"model_dir in {where} is empty.", "Name a folder, or leave it out.")
    if model_dir and of_environment and model_dir != of_environment:
        raise BadValue(
            f"model_dir is {model_dir!r} in RunConfig and {of_environment!r} in TF_CONFIG.",
            "Give one of them, or the same twice.",
        )
    return model_dir or of_environment


def _check_saving(steps: Any, secs: Any) -> None:
    if steps is not None and secs is not None:
        raise BadValue(
            f"Both save_checkpoints_steps ({steps}) and save_checkpoints_secs ({secs}) are set.",
            "Set one of them.",
        )


def _check(config: RunConfig) -> None:
    def require(name: str, holds: Any, what: str) -> None:
        value = getattr(config, name)
        if value is not None and not holds(value):
            raise BadValue(f"{name} must be {what}; received {value!r}.")

    for name in (
        "save_summary_steps",
        "save_checkpoints_steps",
        "save_checkpoints_secs",
        "keep_checkpoint_max",
    ):
        require(name, lambda value: _is_number(value) and value >= 0, "at least 0")
    for name in ("keep_checkpoint_every_n_hours", "log_step_count_steps", "session_creation_timeout_secs"):
        require(name, lambda value: _is_number(value) and value > 0, "more than 0")
    for name in ("tf_random_seed", "experimental_max_worker_delay_secs"):
        require(name, lambda value: isinstance(value, int), "an integer")
    require("model_dir", bool, "the name of a folder")
    require(
        "session_config",
        lambda value: isinstance(value, tf.compat.v1.ConfigProto),
        "a tf.compat.v1.ConfigProto",
    )
    require(
        "device_fn",
        lambda value: callable(value) and argument_names(value) == ("op",),
        "a function of one argument, op",
    )
    require("protocol", lambda value: value in ("grpc", "grpc+verbs"), "grpc or grpc+verbs")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or hasattr(value, "__float__")
