"""Whether a site's scheduler can give what a job asks for: the account, the partition, its nodes, and a GPU for each task that trains."""

from __future__ import annotations

import getpass
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from portwright.discover import get_target
from portwright.errors import suggest
from portwright.launch.findings import Answer, Finding, Run, note, refusal, warning
from portwright.launch.job import Job, Resources
from portwright.launch.slurm import Gres, Node, Partition, parse_gres, read_nodes

_MEMORY = re.compile(r"(\d+)([KMGT]?)", re.IGNORECASE)
_MEGABYTES = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024 * 1024}


def check_resources(
    job: Job, partitions: Mapping[str, Partition], run: Run
) -> tuple[Partition | None, list[Finding]]:
    """The job's partition and the findings about it; of several, as in RM,EM, one without errors is enough."""
    asked = job.resources.partition
    if asked is None:
        names = [found.name for found in partitions.values() if found.is_default][:1]
        what, cure = (
            "no partition is given, and SLURM has no default.",
            f"Give --partition. {suggest('', partitions)}",
        )
    else:
        names = [name for name in asked.split(",") if name]
        what, cure = f"the partition is '{asked}'.", suggest(asked, partitions)
    if not names:
        return None, [refusal(what, cure)]
    if unknown := [name for name in names if name not in partitions]:
        return None, [refusal(f"SLURM has no partition '{x}'.", suggest(x, partitions)) for x in unknown]
    tried = [(partitions[name], list(_check_one(job, partitions[name], run))) for name in names]
    return min(tried, key=lambda one: sum(finding.level == "error" for finding in one[1]))


def _check_one(job: Job, partition: Partition, run: Run) -> Iterator[Finding]:
    yield from _check_open(job, partition, run)
    yield from _check_size(job.resources, partition, run)
    yield from _check_gpus(job, partition, run)


def _check_open(job: Job, partition: Partition, run: Run) -> Iterator[Finding]:
    name, account = partition.name, job.resources.account
    if partition.state != "UP":
        yield refusal(
            f"the partition {name} is {partition.state}, so nothing starts there.",
            "Choose another --partition, or wait until the site has opened it ('sinfo -s').",
        )
    if partition.allow_accounts is not None and account not in partition.allow_accounts:
        yield refusal(
            f"the partition {name} takes no account {account or '(none is given)'!r}.",
            f"Give one of those that it takes: {', '.join(sorted(partition.allow_accounts))}.",
        )
    if account is not None and account in partition.deny_accounts:
        yield refusal(f"the partition {name} refuses the account {account!r}.", "Choose another partition.")
    if partition.allow_groups is not None and os.geteuid() != 0:
        groups = set(run(["id", "-Gn"]).out.split())
        if groups and not groups & partition.allow_groups:
            yield refusal(
                f"the partition {name} is for the groups {', '.join(sorted(partition.allow_groups))}, and you are in none.",
                "Choose another --partition, or ask the site.",
            )


def _check_size(asked: Resources, partition: Partition, run: Run) -> Iterator[Finding]:
    name = partition.name
    most_nodes = _most_nodes(partition)
    if asked.nodes is not None and asked.nodes > most_nodes:
        yield refusal(
            f"the partition {name} gives a job at most {most_nodes} node(s), received --nodes {asked.nodes}.",
            "Ask for fewer nodes, or choose another --partition.",
        )
        return
    nodes = read_nodes(name, run)
    if not nodes:
        yield note(f"the nodes of {name} were not checked here: sinfo does not answer.")
        return
    fitting = nodes
    for wanted in parse_gres(asked.gres or ""):
        fitting = [node for node in fitting if node.num_of(wanted) >= wanted.count]
        if not fitting:
            has = sorted({str(gres) for node in nodes for gres in node.gres})
            told = f"The partition has a node: {', '.join(has)}." if has else "Its nodes have no devices."
            cure = f"{told} Correct --gres, or choose another --partition ('sinfo -o \"%P %G\"')."
            yield refusal(f"no node of the partition {name} has {wanted}.", cure)
            return
    size = _MEMORY.fullmatch(asked.memory or "")
    needed = int(size[1]) * _MEGABYTES[size[2].upper()] if size else 0
    largest = max(node.memory_mb for node in fitting)
    if needed > largest:
        yield refusal(
            f"no node of {name} that serves has {asked.memory} of memory; the largest has {largest // 1024}G.",
            "Ask for less with --memory, or choose another --partition.",
        )
        return
    fitting = [node for node in fitting if node.memory_mb >= needed]
    if asked.nodes is not None and asked.nodes > len(fitting):
        yield refusal(
            f"only {len(fitting)} node(s) of {name} have what the job asks for a node, received --nodes {asked.nodes}.",
            "Ask for fewer nodes, or for less a node.",
        )
        return
    yield from _check_cpus(asked, partition, fitting, most_nodes)
    if not any(node.is_usable for node in fitting):
        states = ", ".join(sorted({node.state for node in fitting}))
        yield warning(
            f"all nodes of {name} that serve are out of service now ({states}).",
            "The job waits until one is back; see 'sinfo -R' for the reason.",
        )


def _check_cpus(
    asked: Resources, partition: Partition, nodes: list[Node], most_nodes: float
) -> Iterator[Finding]:
    """Checks that the nodes have CPUs for all tasks, each task on one node."""
    per_task = asked.cpus_per_task or 1
    bound = partition.max_cpus_per_node or math.inf
    room = sorted((int(min(node.num_cpus, bound) // per_task) for node in nodes), reverse=True)
    if room[0] == 0:
        largest = max(node.num_cpus for node in nodes)
        yield refusal(
            f"no node of {partition.name} that serves has {per_task} CPUs for one task; the largest has {largest}.",
            "Lower --cpus-per-task, or choose another --partition.",
        )
        return
    num_nodes = int(min(asked.nodes or most_nodes, len(room)))
    if sum(room[:num_nodes]) < asked.ntasks:
        yield refusal(
            f"{asked.ntasks} tasks of {per_task} CPU(s) do not fit on {num_nodes} node(s) of {partition.name}, "
            f"which take {sum(room[:num_nodes])}.",
            "Lower --ntasks or --cpus-per-task, or ask for more nodes.",
        )


# -- the account ---------------------------------------------------------------------------------------------------


def check_account(job: Job, run: Run, *, at_site: bool) -> Iterator[Finding]:
    """Checks that the account is given where it must be, has the site's form, and is one of the user's."""
    rules, account, site = job.site.job, job.resources.account, job.site.name
    groups = run(["id", "-Gn"]).out.split() if rules.account_lower else []
    if account is None:
        if rules.account == "required":
            yours = f" Your groups: {', '.join(groups)}." if groups and at_site else ""
            yield refusal(f"{site} charges an account, and none is given.", f"Give --account PROJECT.{yours}")
    elif rules.account == "none":
        yield warning(f"{site} has no accounts, received '{account}'.", "Leave --account out.")
    elif rules.account_lower and account != account.lower():
        what = f"accounts of {site} are written in small letters, received '{account}'."
        yield refusal(what, f"Give --account {account.lower()}.")
    elif not at_site:
        return
    elif known := _accounts_of_user(run):
        if account.lower() not in {name.lower() for name in known}:
            yield refusal(f"SLURM knows no account '{account}' of yours.", suggest(account, known))
    elif not groups:
        yield note(f"the account '{account}' was not checked here: SLURM's accounting does not answer.")
    elif account not in groups:
        yield warning(
            f"{site} charges groups, and '{account}' is not among yours, nor does SLURM's accounting answer.",
            suggest(account, groups),
        )


def _accounts_of_user(run: Run) -> set[str]:
    answer = Answer(None)
    with suppress(KeyError, OSError):  # a user without a name; the type depends on Python's version
        user = getpass.getuser()
        answer = run(["sacctmgr", "-nP", "show", "assoc", f"user={user}", "format=account"])
    if not answer.is_good or not answer.out.strip():
        answer = run(["sshare", "-nPU", "-o", "Account"])
    if not answer.is_good:
        return set()
    names = (line.split("|")[0].strip() for line in answer.out.splitlines())
    return {name for name in names if name and not name.startswith("-") and name != "Account"}


# -- a GPU for each task: torch drives one a process, that of the task's number on its node -------------------------

_PER_NODE, _IN_ALL, _PER_TASK = "--gpus-per-node", "--gpus", "--gpus-per-task"
_COUNT = re.compile(r"(?:[A-Za-z][^:]*:)?[1-9]\d*")  # 4, v100:4
_GPU_FLAG = re.compile(r"-G|--gpu|--gres|--tres|--ntasks-per-gpu")
_ANY_GPU = Gres("gpu", None, 1)
_TASKS_A_NODE = "--ntasks-per-node"
_NO_REQUESTS = ("--gpu-bind", "--gpu-freq", "--gres-flags")


@dataclass(frozen=True)
class _Tasks:
    """Tasks that train, and the most nodes that they can have."""

    count: int
    num_nodes: float

    @property
    def a_node(self) -> int:
        """Tasks that at least one node gets, however SLURM places them."""
        return math.ceil(self.count / self.num_nodes)


def _check_gpus(job: Job, partition: Partition, run: Run) -> Iterator[Finding]:
    """An error where some task is certain to get no GPU; nothing where that is up to SLURM."""
    count = max((step.ntasks for step in job.steps if step.tasks == "parallel"), default=1)
    if (
        get_target(job.target).torch_device != "cuda"
        or count == 1
        or any(_GPU_FLAG.match(flag) for flag in job.site.launch.srun)
        or (asked := _read_asked(job.resources)) is None
        or count <= min(asked)
    ):
        return
    (per_node, in_all), given = asked, job.resources
    tasks = _Tasks(count, given.nodes or _most_nodes(partition))
    nodes, needs = read_nodes(partition.name, run), "each task needs one of its own."
    if _gives_whole_nodes(given, partition, run):
        most = max((node.num_of(_ANY_GPU) for node in nodes), default=0)
        what = f"{tasks.a_node} tasks train on a node, and nodes of {partition.name} have at most {most} GPU(s): {needs}"
        if 0 < most < tasks.a_node:
            fitting = f"--ntasks {most * int(tasks.num_nodes)}, or --nodes {math.ceil(count / most)}"
            yield refusal(what, f"Give {fitting}.")
    elif tasks.a_node > per_node:
        what = f"{tasks.a_node} tasks train on a node, and the job asks for {per_node} GPU(s) a node: {needs}"
        yield refusal(what, f"Give {', or '.join(_cures(per_node, tasks, given, partition, nodes))}.")
    elif count > in_all:
        what = f"{count} tasks train, and {_IN_ALL}={in_all} asks for {in_all} GPU(s) in all: {needs}"
        yield refusal(what, f"Give --flag={_IN_ALL}={count}, or --ntasks {in_all}.")
    elif _most_on_a_node(given, tasks, nodes) > per_node:
        what = f"SLURM may place more than {per_node} of the {count} tasks on one node, where the job asks for {per_node} GPU(s)."
        num_nodes = given.nodes or math.ceil(count / per_node)
        yield warning(what, f"Give --flag={_TASKS_A_NODE}={math.ceil(count / num_nodes)}.")


def _most_nodes(partition: Partition) -> float:
    return min(partition.max_nodes or math.inf, partition.num_nodes or math.inf)


def _cures(
    per_node: float, tasks: _Tasks, asked: Resources, partition: Partition, nodes: Sequence[Node]
) -> Iterator[str]:
    """Suggests flags that give each task a GPU."""
    if not nodes or max(node.num_of(_ANY_GPU) for node in nodes) >= tasks.a_node:
        yield _asking_for(tasks.a_node, asked)
    if (enough := math.ceil(tasks.count / per_node)) <= _most_nodes(partition):
        yield f"--nodes {enough} --flag={_TASKS_A_NODE}={math.ceil(tasks.count / enough)}"
    yield f"--ntasks {per_node * int(tasks.num_nodes)}"


def _most_on_a_node(asked: Resources, tasks: _Tasks, nodes: Sequence[Node]) -> int:
    """The most tasks that one node may get: SLURM may fill the first and leave one task for each other node."""
    if _TASKS_A_NODE in _flags(asked) or (asked.nodes and asked.ntasks % asked.nodes == 0):
        return tasks.a_node  # the script sets it where it can
    most_cpus = max((node.num_cpus for node in nodes if node.num_of(_ANY_GPU)), default=0)
    return min(tasks.count - (asked.nodes or 1) + 1, most_cpus // (asked.cpus_per_task or 1))


def _asking_for(count: int, asked: Resources) -> str:
    """The flag for so many GPUs a node, in the form that the job uses."""
    if _PER_NODE in _flags(asked):
        return f"--flag={_PER_NODE}={count}"
    all_gres = parse_gres(asked.gres or "")
    if sum(gres.name == "gpu" for gres in all_gres) != 1:
        return f"--gres gpu:{count}"
    more = [Gres("gpu", gres.type, count) if gres.name == "gpu" else gres for gres in all_gres]
    return f"--gres {','.join(map(str, more))}"


def _read_asked(asked: Resources) -> tuple[float, float] | None:
    """The GPUs that flags ask for, by node and in all; infinite without such a flag, None where one is not understood."""
    by_type = {gres.type: gres.count for gres in parse_gres(asked.gres or "") if gres.name == "gpu"}
    counts: dict[str, int] = {}
    for name, value in _flags(asked).items():
        if name in _NO_REQUESTS or not _GPU_FLAG.match(name):
            continue
        parts = value.split(",")
        if name not in (_PER_NODE, _IN_ALL, _PER_TASK) or not all(map(_COUNT.fullmatch, parts)):
            return None
        devices = parse_gres(",".join(f"gpu:{part}" for part in parts))
        counts[name] = sum(device.count for device in devices)
        if name == _PER_NODE:  # the same as --gres
            for device in devices:
                by_type[device.type] = max(device.count, by_type.get(device.type, 0))
    if _PER_TASK in counts:  # each task has its own, on any node
        return None
    return sum(by_type.values()) or math.inf, counts.get(_IN_ALL, math.inf)


def _flags(asked: Resources) -> Mapping[str, str]:
    """Further flags by name; sbatch takes the last of a repeated flag."""
    found = {}
    for flag in asked.flags:
        name, _, value = flag.partition("=")
        if re.match(r"-G.", flag):
            name, value = _IN_ALL, flag[2:]
        found[name] = value
    return found


def _gives_whole_nodes(asked: Resources, partition: Partition, run: Run) -> bool:
    """Whether the job has its nodes alone, and so all their GPUs."""
    if _flags(asked).get("--exclusive") == "":
        return True
    answer = run(["scontrol", "-o", "show", "partition", partition.name])
    return any(
        f"PartitionName={partition.name}" in line.split() and "OverSubscribe=EXCLUSIVE" in line.split()
        for line in answer.out.splitlines()
    )
