"""Whether a partition can give what a job asks for."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping

from portwright.errors import suggest
from portwright.launch.check_gpus import check_gpus
from portwright.launch.findings import Finding, Run
from portwright.launch.job import Job, Resources
from portwright.launch.partition import Node, Partition, parse_gres, read_nodes

_MEMORY = re.compile(r"(\d+)([KMGT]?)", re.IGNORECASE)
_MEGABYTES = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024 * 1024}


def check_resources(
    job: Job, partitions: Mapping[str, Partition], run: Run
) -> tuple[Partition | None, list[Finding]]:
    """The partition that the job goes to, and what speaks against it; of several, as in RM,EM, one that takes the job is enough."""
    asked = job.resources.partition
    if asked is None:
        default = next((found for found in partitions.values() if found.is_default), None)
        if default is None:
            return None, [
                Finding(
                    "error",
                    "no partition is given, and SLURM has no default.",
                    f"Give --partition. {suggest('', partitions)}",
                )
            ]
        return default, _check_one(job, default, run)
    tried: list[tuple[Partition, list[Finding]]] = []
    unknown = []
    for name in filter(None, asked.split(",")):
        if name in partitions:
            tried.append((partitions[name], _check_one(job, partitions[name], run)))
        else:
            unknown.append(Finding("error", f"SLURM has no partition '{name}'.", suggest(name, partitions)))
    if unknown or not tried:
        return None, unknown or [Finding("error", f"the partition is '{asked}'.", suggest(asked, partitions))]
    return min(tried, key=lambda one: sum(finding.level == "error" for finding in one[1]))


def _check_one(job: Job, partition: Partition, run: Run) -> list[Finding]:
    found = [*_check_open(job, partition, run), *_check_size(job.resources, partition, run)]
    return [*found, *check_gpus(job, partition, run)]


def _check_open(job: Job, partition: Partition, run: Run) -> Iterator[Finding]:
    name, account = partition.name, job.resources.account
    if partition.state != "UP":
        yield Finding(
            "error",
            f"the partition {name} is {partition.state}, so nothing starts there.",
            "Choose another --partition, or wait until the site has opened it ('sinfo -s').",
        )
    if partition.allow_accounts is not None and account not in partition.allow_accounts:
        yield Finding(
            "error",
            f"the partition {name} takes no account {account or '(none is given)'!r}.",
            f"Give one of those that it takes: {', '.join(sorted(partition.allow_accounts))}.",
        )
    if account is not None and account in partition.deny_accounts:
        yield Finding(
            "error", f"the partition {name} refuses the account {account!r}.", "Choose another partition."
        )
    if partition.allow_groups is not None and os.geteuid() != 0:
        groups = set(run(["id", "-Gn"]).out.split())
        if groups and not groups & partition.allow_groups:
            yield Finding(
                "error",
                f"the partition {name} is for the groups {', '.join(sorted(partition.allow_groups))}, and you are in none.",
                "Choose another --partition, or ask the site.",
            )


def _check_size(asked: Resources, partition: Partition, run: Run) -> Iterator[Finding]:
    name = partition.name
    most_nodes = min(partition.max_nodes or math.inf, partition.num_nodes or math.inf)
    if asked.nodes is not None and asked.nodes > most_nodes:
        yield Finding(
            "error",
            f"the partition {name} gives a job at most {most_nodes} node(s), received --nodes {asked.nodes}.",
            "Ask for fewer nodes, or choose another --partition.",
        )
        return
    nodes = read_nodes(name, run)
    if not nodes:
        yield Finding("note", f"the nodes of {name} were not checked here: sinfo does not answer.", "")
        return
    fitting = nodes
    for wanted in parse_gres(asked.gres or ""):
        fitting = [node for node in fitting if node.num_of(wanted) >= wanted.count]
        if not fitting:
            yield Finding("error", *_no_gres(str(wanted), name, nodes))
            return
    if needed := _megabytes(asked.memory):
        with_memory = [node for node in fitting if node.memory_mb >= needed]
        if not with_memory:
            largest = max(node.memory_mb for node in fitting)
            yield Finding(
                "error",
                f"no node of {name} that serves has {asked.memory} of memory; the largest has {largest // 1024}G.",
                "Ask for less with --memory, or choose another --partition.",
            )
            return
        fitting = with_memory
    if asked.nodes is not None and asked.nodes > len(fitting):
        yield Finding(
            "error",
            f"only {len(fitting)} node(s) of {name} have what the job asks for a node, received --nodes {asked.nodes}.",
            "Ask for fewer nodes, or for less a node.",
        )
        return
    yield from _check_cpus(asked, partition, fitting, most_nodes)
    if not any(node.is_usable for node in fitting):
        states = ", ".join(sorted({node.state for node in fitting}))
        yield Finding(
            "warning",
            f"all nodes of {name} that serve are out of service now ({states}).",
            "The job waits until one is back; see 'sinfo -R' for the reason.",
        )


def _no_gres(wanted: str, partition: str, nodes: list[Node]) -> tuple[str, str]:
    has = sorted({str(gres) for node in nodes for gres in node.gres})
    told = f"The partition has a node: {', '.join(has)}." if has else "Its nodes have no devices."
    return (
        f"no node of the partition {partition} has {wanted}.",
        f"{told} Correct --gres, or choose another --partition ('sinfo -o \"%P %G\"').",
    )


def _check_cpus(
    asked: Resources, partition: Partition, nodes: list[Node], most_nodes: float
) -> Iterator[Finding]:
    """Tasks do not span nodes: each node takes as many as have their CPUs on it."""
    per_task = asked.cpus_per_task or 1
    bound = partition.max_cpus_per_node or math.inf
    room = sorted((int(min(node.num_cpus, bound) // per_task) for node in nodes), reverse=True)
    if room[0] == 0:
        largest = max(node.num_cpus for node in nodes)
        yield Finding(
            "error",
            f"no node of {partition.name} that serves has {per_task} CPUs for one task; the largest has {largest}.",
            "Lower --cpus-per-task, or choose another --partition.",
        )
        return
    num_nodes = int(min(asked.nodes or most_nodes, len(room)))
    if sum(room[:num_nodes]) < asked.ntasks:
        yield Finding(
            "error",
            f"{asked.ntasks} tasks of {per_task} CPU(s) do not fit on {num_nodes} node(s) of {partition.name}, "
            f"which take {sum(room[:num_nodes])}.",
            "Lower --ntasks or --cpus-per-task, or ask for more nodes.",
        )


def _megabytes(text: str | None) -> float:
    found = _MEMORY.fullmatch(text or "")
    return int(found[1]) * _MEGABYTES[found[2].upper()] if found else 0
