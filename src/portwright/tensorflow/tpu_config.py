"""Settings of a TPU, for code that was written for one."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from portwright.tensorflow import run_config
from portwright.tensorflow.bad_input import BadValue

_CORES = (1, 2, 4, 8, 16, 32, 64, 128)


class InputPipelineConfig:
    """How the hosts of a TPU share the input; one machine reads all of it whatever is chosen."""

    PER_SHARD_V1 = 1
    PER_HOST_V1 = 2
    PER_HOST_V2 = 3
    BROADCAST = 4
    SLICED = 5


class _TPUConfig(NamedTuple):
    iterations_per_loop: int | str
    num_shards: int | None
    num_cores_per_replica: int | None
    per_host_input_for_training: int
    tpu_job_name: str | None
    initial_infeed_sleep_secs: int | None
    input_partition_dims: Any
    eval_training_input_configuration: int
    experimental_host_call_every_n_steps: int
    experimental_allow_per_host_v2_parallel_get_next: bool
    experimental_feed_hook: Any


class TPUConfig(_TPUConfig):
    """Settings of a TPU; they are checked, and have no effect elsewhere."""

    __slots__ = ()

    def __new__(
        cls,
        iterations_per_loop: int | str = 2,
        num_shards: int | None = None,
        num_cores_per_replica: int | None = None,
        per_host_input_for_training: bool | int = True,
        tpu_job_name: str | None = None,
        initial_infeed_sleep_secs: int | None = None,
        input_partition_dims: Any = None,
        eval_training_input_configuration: int = InputPipelineConfig.PER_HOST_V1,
        experimental_host_call_every_n_steps: int = 1,
        experimental_allow_per_host_v2_parallel_get_next: bool = False,
        experimental_feed_hook: Any = None,
    ) -> TPUConfig:
        if not re.fullmatch(r"[1-9]\d*[smh]?", str(iterations_per_loop)):
            raise BadValue(
                f"iterations_per_loop is {iterations_per_loop!r}.",
                "Give a positive number, or a time such as 60s or 1h.",
            )
        check_positive("num_shards", num_shards)
        check_positive("initial_infeed_sleep_secs", initial_infeed_sleep_secs or None)
        if num_cores_per_replica is not None and num_cores_per_replica not in _CORES:
            raise BadValue(f"num_cores_per_replica is {num_cores_per_replica}.", f"Give one of {_CORES}.")
        if isinstance(per_host_input_for_training, bool):
            per_host = (
                InputPipelineConfig.PER_HOST_V1
                if per_host_input_for_training
                else InputPipelineConfig.PER_SHARD_V1
            )
        else:
            per_host = per_host_input_for_training
        if input_partition_dims is not None:
            if len(input_partition_dims) not in (1, 2):
                raise BadValue(
                    f"input_partition_dims is {input_partition_dims!r}.", "Give one or two elements."
                )
            if per_host != InputPipelineConfig.PER_HOST_V2 or num_cores_per_replica is None:
                raise BadValue(
                    "input_partition_dims was given without what it needs.",
                    "Set per_host_input_for_training=InputPipelineConfig.PER_HOST_V2 and num_cores_per_replica.",
                )
        if eval_training_input_configuration not in (
            InputPipelineConfig.PER_HOST_V1,
            InputPipelineConfig.SLICED,
        ):
            raise BadValue(
                f"eval_training_input_configuration is {eval_training_input_configuration}.",
                "Give PER_HOST_V1 or SLICED of InputPipelineConfig.",
            )
        return super().__new__(
            cls,
            iterations_per_loop,
            num_shards,
            num_cores_per_replica,
            per_host,
            tpu_job_name,
            initial_infeed_sleep_secs,
            input_partition_dims,
            eval_training_input_configuration,
            experimental_host_call_every_n_steps,
            experimental_allow_per_host_v2_parallel_get_next,
            experimental_feed_hook,
        )


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


def check_positive(what: str, value: int | None) -> None:
    """Refuses what is no positive whole number; None is none."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value <= 0):
        raise BadValue(f"{what} is {value!r}.", "Give a positive whole number.")
