"""TF_CONFIG for tasks that torchrun or srun started without one: the first is the chief, the others are its workers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from itertools import zip_longest

from portwright.errors import UserError
from portwright.job.launch_env import Launch, read_launch
from portwright.stream.roles import FIRST_TF_PORT, TASK_HOSTS, tf_config

PORT = "PORTWRIGHT_TF_PORT"  # the chief's port; the workers have the next ones

# Each job on a node gets its own block of ports, below those that Linux assigns to outgoing connections.
_NUM_PORTS, _BLOCK = 8000, 16
_NAME = r"[^\[\],\s]*"
_RANGE = r"\d+(?:-\d+)?"
_HOSTS = re.compile(rf"{_NAME}(?:\[{_RANGE}(?:,{_RANGE})*\]{_NAME})*")


def take_place_from_launch(note: Callable[[str], None]) -> None:
    """Sets TF_CONFIG if it is not set and this process is one of several tasks; the first task notes the addresses of all."""
    if os.environ.get("TF_CONFIG"):
        return
    launch = read_launch()
    if launch.world_size < 2:
        return
    environ = {**os.environ, TASK_HOSTS: ",".join(find_hosts(launch, os.environ))}
    config = tf_config(environ, find_first_port(launch.world_size, os.environ))
    os.environ["TF_CONFIG"] = json.dumps(config)
    cluster = config["cluster"]
    if launch.rank == 0:
        note(
            f"{launch.world_size} tasks train together, each on a share of the data: this one is the chief, at "
            f"{cluster['chief'][0]}, and the workers are at {', '.join(cluster['worker'])}."
        )


def find_hosts(launch: Launch, environ: Mapping[str, str]) -> list[str]:
    """The host of every task, in the order of their numbers."""
    if environ.get(TASK_HOSTS):
        return environ[TASK_HOSTS].split(",")
    nodes = environ.get("SLURM_STEP_NODELIST", "")
    if nodes and environ.get("SLURM_STEP_NUM_TASKS") == str(launch.world_size):
        return _hosts_of_step(launch, expand_hosts(nodes), environ)
    local = environ.get("LOCAL_WORLD_SIZE", str(launch.world_size))
    if local != str(launch.world_size):
        raise UserError(
            f"{launch.world_size} tasks run on several hosts, {local} on this one, and nothing says which ones they are.",
            f"Set {TASK_HOSTS} to the host of each task, with commas between them; srun and `portwright submit` do by themselves.",
        )
    return [environ.get("MASTER_ADDR") or "localhost"] * launch.world_size


def _hosts_of_step(launch: Launch, nodes: list[str], environ: Mapping[str, str]) -> list[str]:
    counts = _expand_counts(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    shares = [[node] * count for node, count in zip(nodes, counts, strict=False)]
    is_cyclic = environ.get("SLURM_DISTRIBUTION", "").startswith("cyclic")
    hosts = [host for turn in (zip_longest(*shares) if is_cyclic else shares) for host in turn if host]
    own = environ.get("SLURMD_NODENAME", hosts[launch.rank] if launch.rank < len(hosts) else "")
    if len(hosts) != launch.world_size or len(nodes) != len(counts) or hosts[launch.rank] != own:
        raise UserError(
            f"cannot tell where the {launch.world_size} tasks of this step are: SLURM names the nodes {','.join(nodes)} with "
            f"'{environ.get('SLURM_STEP_TASKS_PER_NODE', '')}' tasks each, and task {launch.rank} is on {own or 'none of them'}.",
            f"Set {TASK_HOSTS} to the host of each task, with commas between them, or start srun with --distribution=block.",
        )
    return hosts


def expand_hosts(text: str) -> list[str]:
    """The host names in one of SLURM's lists, such as node[01-03,7],login."""
    names: list[str] = []
    position = 0
    while position < len(text):
        found = _HOSTS.match(text, position)
        if found is None or not found[0] or (found.end() < len(text) and text[found.end()] != ","):
            raise UserError(
                f"'{text}' is not a list of SLURM's nodes.",
                f"Set {TASK_HOSTS} to the host of each task, with commas between them.",
            )
        names.extend(_expand_ranges(found[0]))
        position = found.end() + 1
    return names


def _expand_ranges(pattern: str) -> list[str]:
    before, bracket, rest = pattern.partition("[")
    if not bracket:
        return [pattern]
    ranges, _, after = rest.partition("]")
    ends = _expand_ranges(after)
    names: list[str] = []
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        for number in range(int(first), int(last or first) + 1):
            names.extend(f"{before}{number:0{len(first)}d}{end}" for end in ends)
    return names


def _expand_counts(text: str) -> list[int]:
    """The numbers in one of SLURM's lists: 2, 2, 2 and 1 for 2(x3),1."""
    counts: list[int] = []
    for each in re.finditer(r"(\d+)(?:\(x(\d+)\))?", text):
        counts.extend([int(each[1])] * int(each[2] or 1))
    return counts


def find_first_port(num_tasks: int, environ: Mapping[str, str]) -> int:
    """The chief's port: that of the environment variable, or the first of this job's block."""
    given = environ.get(PORT, "")
    if given:
        if not given.isdecimal() or not 1024 <= int(given) <= 65536 - num_tasks:
            raise UserError(
                f"the environment variable {PORT} is '{given}'.",
                f"Give the first of {num_tasks} free ports, from 1024 to {65536 - num_tasks}, or unset it.",
            )
        return int(given)
    # Both are the same in all tasks, and different in jobs that share a node.
    number = next((environ[name] for name in ("MASTER_PORT", "SLURM_JOB_ID") if environ.get(name)), "0")
    block = -(-num_tasks // _BLOCK) * _BLOCK
    num_blocks = max(1, _NUM_PORTS // block)
    return FIRST_TF_PORT + (int(number) % num_blocks if number.isdecimal() else 0) * block
