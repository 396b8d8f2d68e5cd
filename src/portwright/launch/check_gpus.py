"""Whether each task that trains has a GPU of its own: torch drives one a process, that of the task's number on its node."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from portwright.launch.findings import Finding, Run
from portwright.launch.job import Job, Resources
from portwright.launch.partition import Gres, Node, Partition, parse_gres, read_nodes

_PER_NODE, _IN_ALL, _PER_TASK = "--gpus-per-node", "--gpus", "--gpus-per-task"
_COUNT = re.compile(r"(?:[A-Za-z][^:]*:)?[1-9]\d*")  # 4, v100:4
_OF_GPUS = re.compile(r"-G|--gpu|--gres|--tres|--ntasks-per-gpu")
_ANY_GPU = Gres("gpu", None, 1)
_TASKS_A_NODE = "--ntasks-per-node"
_GIVE_NONE = ("--gpu-bind", "--gpu-freq", "--gres-flags")


@dataclass(frozen=True)
class _Asked:
    """GPUs that a job asks for; infinitely many where it does not say it that way."""

    per_node: float = math.inf
    in_all: float = math.inf


@dataclass(frozen=True)
class _Tasks:
    """Tasks that train, on as many nodes as they can have at most."""

    count: int
    num_nodes: float

    @property
    def a_node(self) -> int:
        """That some node has at least, whichever way SLURM places them."""
        return math.ceil(self.count / self.num_nodes)


def check_gpus(job: Job, partition: Partition, run: Run) -> list[Finding]:
    """An error where tasks without a GPU are certain; nothing where flags leave it to SLURM."""
    count = max((step.ntasks for step in job.steps if step.tasks == "parallel"), default=1)
    if job.target != "GPU" or count == 1 or any(_OF_GPUS.match(flag) for flag in job.site.launch.srun):
        return []
    asked = _read_asked(job.resources)
    if asked is None:
        return []
    tasks = _Tasks(count, job.resources.nodes or _most_nodes(partition))
    if count <= min(asked.per_node, asked.in_all):
        return []
    nodes = read_nodes(partition.name, run)
    if _gives_whole_nodes(job.resources, partition, run):
        most = max((node.num_of(_ANY_GPU) for node in nodes), default=0)
        return [_too_small_nodes(most, tasks, partition)] if 0 < most < tasks.a_node else []
    if tasks.a_node > asked.per_node:
        return [_too_few_a_node(asked.per_node, tasks, job.resources, partition, nodes)]
    if count > asked.in_all:
        return [_too_few_in_all(asked.in_all, tasks)]
    if _most_on_a_node(job.resources, tasks, nodes) > asked.per_node:
        return [_may_be_uneven(asked.per_node, tasks, job.resources)]
    return []


def _most_nodes(partition: Partition) -> float:
    return min(partition.max_nodes or math.inf, partition.num_nodes or math.inf)


def _too_few_a_node(
    per_node: float, tasks: _Tasks, asked: Resources, partition: Partition, nodes: Sequence[Node]
) -> Finding:
    cures = []
    if not nodes or max(node.num_of(_ANY_GPU) for node in nodes) >= tasks.a_node:
        cures.append(_asking_for(tasks.a_node, asked))
    if (enough := math.ceil(tasks.count / per_node)) <= _most_nodes(partition):
        cures.append(f"--nodes {enough} --flag={_TASKS_A_NODE}={math.ceil(tasks.count / enough)}")
    cures.append(f"--ntasks {per_node * int(tasks.num_nodes)}")
    return Finding(
        "error",
        f"{tasks.a_node} tasks train on a node, and the job asks for {per_node} GPU(s) a node: each task needs one of its own.",
        f"Give {', or '.join(cures)}.",
    )


def _too_small_nodes(most: int, tasks: _Tasks, partition: Partition) -> Finding:
    return Finding(
        "error",
        f"{tasks.a_node} tasks train on a node, and nodes of {partition.name} have at most {most} GPU(s): each task needs one of its own.",
        f"Give --ntasks {most * int(tasks.num_nodes)}, or --nodes {math.ceil(tasks.count / most)}.",
    )


def _too_few_in_all(in_all: float, tasks: _Tasks) -> Finding:
    return Finding(
        "error",
        f"{tasks.count} tasks train, and {_IN_ALL}={in_all} asks for {in_all} GPU(s) in all: each task needs one of its own.",
        f"Give --flag={_IN_ALL}={tasks.count}, or --ntasks {in_all}.",
    )


def _most_on_a_node(asked: Resources, tasks: _Tasks, nodes: Sequence[Node]) -> int:
    """Tasks that one node may get: SLURM fills the first, and leaves the others as little as one task each."""
    if _TASKS_A_NODE in _flags(asked) or (asked.nodes and asked.ntasks % asked.nodes == 0):
        return tasks.a_node  # the script says it by itself where it can
    most_cpus = max((node.num_cpus for node in nodes if node.num_of(_ANY_GPU)), default=0)
    return min(tasks.count - (asked.nodes or 1) + 1, most_cpus // (asked.cpus_per_task or 1))


def _may_be_uneven(per_node: float, tasks: _Tasks, asked: Resources) -> Finding:
    num_nodes = asked.nodes or math.ceil(tasks.count / per_node)
    return Finding(
        "warning",
        f"SLURM may place more than {per_node} of the {tasks.count} tasks on one node, where the job asks for {per_node} GPU(s).",
        f"Give --flag={_TASKS_A_NODE}={math.ceil(tasks.count / num_nodes)}.",
    )


def _asking_for(count: int, asked: Resources) -> str:
    """The flag that asks for so many a node, as the job asks now."""
    if _PER_NODE in _flags(asked):
        return f"--flag={_PER_NODE}={count}"
    all_gres = parse_gres(asked.gres or "")
    if sum(gres.name == "gpu" for gres in all_gres) != 1:
        return f"--gres gpu:{count}"
    more = [Gres("gpu", gres.type, count) if gres.name == "gpu" else gres for gres in all_gres]
    return f"--gres {','.join(map(str, more))}"


def _read_asked(asked: Resources) -> _Asked | None:
    """None where a flag says something of GPUs that is not understood here."""
    by_type = {gres.type: gres.count for gres in parse_gres(asked.gres or "") if gres.name == "gpu"}
    counts: dict[str, int] = {}
    for name, value in _flags(asked).items():
        if name in _GIVE_NONE or not _OF_GPUS.match(name):
            continue
        parts = value.split(",")
        if name not in (_PER_NODE, _IN_ALL, _PER_TASK) or not all(map(_COUNT.fullmatch, parts)):
            return None
        devices = parse_gres(",".join(f"gpu:{part}" for part in parts))
        counts[name] = sum(device.count for device in devices)
        if name == _PER_NODE:  # besides --gres, of which it is another form
            for device in devices:
                by_type[device.type] = max(device.count, by_type.get(device.type, 0))
    per_node = sum(by_type.values()) or math.inf
    if _PER_TASK in counts:  # each task has its own, wherever it is
        return None
    return _Asked(per_node, counts.get(_IN_ALL, math.inf))


def _flags(asked: Resources) -> Mapping[str, str]:
    """Further flags by name; of those that come twice sbatch takes the last."""
    found = {}
    for flag in asked.flags:
        name, _, value = flag.partition("=")
        if re.match(r"-G.", flag):
            name, value = _IN_ALL, flag[2:]
        found[name] = value
    return found


def _gives_whole_nodes(asked: Resources, partition: Partition, run: Run) -> bool:
    """A job that has its nodes alone has all their GPUs, whatever it asks for."""
    if _flags(asked).get("--exclusive") == "":
        return True
    answer = run(["scontrol", "-o", "show", "partition", partition.name])
    return any(
        f"PartitionName={partition.name}" in line.split() and "OverSubscribe=EXCLUSIVE" in line.split()
        for line in answer.out.splitlines()
    )
