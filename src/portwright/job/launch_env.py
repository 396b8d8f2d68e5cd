"""What torchrun or SLURM tells a process about the processes started with it; loads no framework."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from portwright.errors import UserError


@dataclass(frozen=True)
class Launch:
    """What torchrun or SLURM says about this process."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    source: str = "single process"


def read_launch(environ: Mapping[str, str] = os.environ) -> Launch:
    """Recognises torchrun's variables first, then those of an srun step."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        names, per_node, source = ("RANK", "WORLD_SIZE", "LOCAL_RANK"), None, "torchrun"
    # SLURM_PROCID is set in a batch script and in an salloc shell too; only a step started by srun has SLURM_STEP_ID,
    # and only there are the other tasks really running.
    elif {"SLURM_STEP_ID", "SLURM_PROCID"} <= environ.keys() and environ.get(
        "SLURM_STEP_NUM_TASKS", "1"
    ) != "1":
        names, source = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"), "SLURM"
        per_node = environ.get("SLURM_STEP_TASKS_PER_NODE", "1").split(",")[0].split("(")[0]
    else:
        return Launch()
    rank, size = _number(environ, names[0]), _number(environ, names[1])
    on_node = _number(environ, "LOCAL_WORLD_SIZE", 1) if per_node is None else int(per_node or 1)
    if not 0 <= rank < size:
        raise UserError(
            f"{names[0]}={rank} does not fit {names[1]}={size}.",
            f"Start the processes with torchrun or srun, or unset {names[0]} and {names[1]}.",
        )
    return Launch(rank, size, _number(environ, names[2], 0), on_node, source)


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "" if default is None else str(default))
    try:
        return int(text)
    except ValueError:
        raise UserError(
            f"the environment variable {name} is '{text}', not a number.",
            f"Unset it, or let torchrun or srun set {name}.",
        ) from None


def export_slurm_rendezvous(launch: Launch) -> None:
    """Sets the variables that torch.distributed needs, where srun started this process."""
    if "MASTER_ADDR" not in os.environ:
        os.environ["MASTER_ADDR"] = first_slurm_host()
    if "MASTER_PORT" not in os.environ:
        # The same on every task and different for jobs that share a node.
        os.environ["MASTER_PORT"] = str(20000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 20000)
    os.environ.setdefault("RANK", str(launch.rank))
    os.environ.setdefault("WORLD_SIZE", str(launch.world_size))
    os.environ.setdefault("LOCAL_RANK", str(launch.local_rank))


def first_slurm_host() -> str:
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", "")
    if nodes and not set("[],") & set(nodes):
        return nodes
    try:
        listed = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True, timeout=30
        )
        return listed.stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        if nodes:
            raise UserError(
                f"scontrol is not here to expand the node list '{nodes}', as inside a container.",
                "Set MASTER_ADDR outside it: MASTER_ADDR=$(scontrol show hostnames | head -n 1).",
            ) from None
        return socket.gethostname()
