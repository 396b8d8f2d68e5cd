"""The task of this process in a cluster, read from the environment variable TF_CONFIG."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from portwright.tensorflow.arguments import BadType, BadValue


class TaskType:
    """Jobs that a process can have in a cluster."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"
    CHIEF = "chief"
    EVALUATOR = "evaluator"


@dataclass(frozen=True)
class Place:
    """What TF_CONFIG says of one process; the defaults are those of a single process, which is chief."""

    task_type: str = TaskType.WORKER
    task_id: int = 0
    global_id_in_cluster: int | None = 0
    master: str = ""
    evaluation_master: str = ""
    is_chief: bool = True
    num_ps_replicas: int = 0
    num_worker_replicas: int = 1
    cluster_spec: Any = field(default_factory=lambda: tf.train.ClusterSpec({}))
    service: Mapping[str, Any] | None = None


def read_tf_config() -> dict[str, Any]:
    """The object in TF_CONFIG; empty without one."""
    text = os.environ.get("TF_CONFIG", "") or "{}"
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadValue(f"TF_CONFIG is not JSON: {error}.", f"Received: {text[:200]!r}.") from error
    if not isinstance(config, dict):
        raise BadType(f"TF_CONFIG must be a JSON object; received {text[:200]!r}.")
    for key in ("cluster", "task"):
        if not isinstance(config.get(key, {}), dict):
            raise BadType(f"{key!r} in TF_CONFIG must be an object; received {config[key]!r}.")
    return config


def place_of(config: Mapping[str, Any]) -> Place:
    """Reads the place of this process from what TF_CONFIG holds."""
    service = config.get("service")
    if service is not None and not isinstance(service, dict):
        raise BadType(f"'service' in TF_CONFIG must be an object; received {service!r}.")
    _check_addresses(config.get("cluster", {}))
    cluster = tf.train.ClusterSpec(config.get("cluster", {}))
    task = config.get("task", {})
    if not cluster:
        return _lone_place(config, task, service)
    chief = TaskType.MASTER if TaskType.MASTER in cluster.jobs else TaskType.CHIEF
    if chief == TaskType.MASTER and TaskType.CHIEF in cluster.jobs:
        raise BadValue("The cluster in TF_CONFIG has both a 'master' and a 'chief'.", "Keep one of them.")
    task_type, task_id = _check_task(cluster, task, chief)
    if task_type == TaskType.EVALUATOR:
        if chief == TaskType.MASTER:
            raise BadValue(
                "A cluster with a 'master' has no 'evaluator'.", "Name the master 'chief' in TF_CONFIG."
            )
        return Place(
            task_type=task_type,
            task_id=task_id,
            global_id_in_cluster=None,  # an evaluator is no member of the training cluster
            evaluation_master=config.get("eval_session_master", ""),
            is_chief=False,
            num_worker_replicas=0,
            service=service,
        )
    jobs = cluster.as_dict()
    return Place(
        task_type=task_type,
        task_id=task_id,
        global_id_in_cluster=_global_id(cluster, task_type, task_id, chief),
        master=_master(cluster, task_type, task_id, config),
        is_chief=task_type == chief,
        num_ps_replicas=len(jobs.get(TaskType.PS, [])),
        num_worker_replicas=len(jobs.get(TaskType.WORKER, [])) + len(jobs.get(chief, [])),
        cluster_spec=cluster,
        service=service,
    )


def _check_addresses(jobs: Mapping[str, Any]) -> None:
    seen: set[str] = set()
    for job, tasks in jobs.items():
        if isinstance(tasks, dict):  # a sparse cluster: a dict from task index to address
            tasks = list(tasks.values())
        for address in tasks if isinstance(tasks, list) else [tasks]:
            is_good = isinstance(tasks, list) and isinstance(address, str)
            if not is_good or not address.rpartition(":")[0] or not address.rpartition(":")[2].isdecimal():
                raise BadValue(
                    f"Job {job!r} in TF_CONFIG's cluster has the address {address!r}.",
                    'Give each job a list of "host:port".',
                )
            if address in seen:
                raise BadValue(
                    f"TF_CONFIG's cluster has the address {address} twice.", "Give each task one of its own."
                )
            seen.add(address)


def _index(value: Any) -> int:
    try:
        index = int(value)
    except (TypeError, ValueError) as error:
        raise BadValue(f"The task index in TF_CONFIG must be a number; received {value!r}.") from error
    if index < 0:
        raise BadValue(f"The task index in TF_CONFIG must not be negative; received {index}.")
    return index


def _lone_place(config: Mapping[str, Any], task: Mapping[str, Any], service: Any) -> Place:
    task_type, task_id = task.get("type", TaskType.WORKER), _index(task.get("index", 0))
    if task_type != TaskType.WORKER or task_id != 0:
        raise BadValue(
            f"TF_CONFIG names task {task_type} {task_id} but no cluster.",
            "Without a cluster the task is worker 0; add 'cluster', or leave 'task' out.",
        )
    return Place(
        master=config.get("session_master", ""),
        evaluation_master=config.get("eval_session_master", ""),
        service=service,
    )


def _check_task(cluster: Any, task: Mapping[str, Any], chief: str) -> tuple[str, int]:
    if len(cluster.as_dict().get(chief, [])) != 1:
        raise BadValue(
            f"The cluster in TF_CONFIG must have exactly one {chief!r}; received {cluster.as_dict()}."
        )
    task_type, task_id = task.get("type"), task.get("index")
    if not task_type or task_id is None:
        raise BadValue(
            f"TF_CONFIG has a cluster, but its task is {dict(task)}.",
            'Set "task": {"type": ..., "index": ...}.',
        )
    task_id = _index(task_id)
    if task_type != TaskType.EVALUATOR:
        if task_type not in cluster.jobs:
            raise BadValue(
                f"TF_CONFIG's task type {task_type!r} is not in its cluster.",
                f"Jobs there: {', '.join(sorted(cluster.jobs))}.",
            )
        num_tasks = cluster.num_tasks(task_type)
        if task_id >= num_tasks:
            raise BadValue(
                f"TF_CONFIG's task index {task_id} is out of range.",
                f"Job {task_type!r} has {num_tasks} tasks.",
            )
    return task_type, task_id


def _master(cluster: Any, task_type: str, task_id: int, config: Mapping[str, Any]) -> str:
    if "session_master" in config:
        return str(config["session_master"])
    if len(cluster.jobs) == 1 and cluster.num_tasks(cluster.jobs[0]) == 1:
        return ""  # a single process needs no server
    return f"grpc://{cluster.job_tasks(task_type)[task_id]}"


def _global_id(cluster: Any, task_type: str, task_id: int, chief: str) -> int:
    """The task's number among all tasks: the chief first, then the other jobs by name, parameter servers last."""
    others = sorted(job for job in cluster.jobs if job not in (chief, TaskType.PS))
    order = [chief, *others, TaskType.PS]
    before = order[: order.index(task_type)]
    return sum(len(cluster.as_dict().get(job, [])) for job in before) + task_id
