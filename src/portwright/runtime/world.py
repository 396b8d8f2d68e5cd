"""Which process of how many this is, and how the processes talk."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from portwright.errors import UserError
from portwright.runtime.rank_watch import OtherProcessFailed, RankWatch, watch_ranks

_TIMEOUT = timedelta(minutes=10)  # of a collective
_PATIENCE_SECONDS = 15.0  # before a process says that it waits for the others to start


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
        return _launch(
            environ, "RANK", "WORLD_SIZE", "LOCAL_RANK", _number(environ, "LOCAL_WORLD_SIZE", 1), "torchrun"
        )
    # SLURM_PROCID is set in a batch script and in an salloc shell too; only a step started by srun has SLURM_STEP_ID,
    # and only there are the other tasks really running.
    if (
        "SLURM_STEP_ID" in environ
        and "SLURM_PROCID" in environ
        and environ.get("SLURM_STEP_NUM_TASKS", "1") != "1"
    ):
        per_node = environ.get("SLURM_STEP_TASKS_PER_NODE", "1").split(",")[0].split("(")[0]
        return _launch(
            environ, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", int(per_node or 1), "SLURM"
        )
    return Launch()


def _launch(
    environ: Mapping[str, str], rank: str, size: str, local: str, local_size: int, source: str
) -> Launch:
    launch = Launch(
        _number(environ, rank), _number(environ, size), _number(environ, local, 0), local_size, source
    )
    if not 0 <= launch.rank < launch.world_size:
        raise UserError(
            f"{rank}={launch.rank} does not fit {size}={launch.world_size}.",
            f"Start the processes with torchrun or srun, or unset {rank} and {size}.",
        )
    return launch


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "" if default is None else str(default))
    try:
        return int(text)
    except ValueError:
        raise UserError(
            f"the environment variable {name} is '{text}', not a number.",
            f"Unset it, or let torchrun or srun set {name}.",
        ) from None


class World:
    """The processes of one run; with one process every method costs nothing."""

    def __init__(
        self,
        launch: Launch,
        device_type: str,
        backend: str | None,
        init_method: str | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self.rank = launch.rank
        self.size = launch.world_size
        self.local_rank = launch.local_rank
        self.is_main = launch.rank == 0
        self.backend = backend or ("nccl" if device_type == "cuda" else "gloo")
        self._control: dist.ProcessGroup | None = None
        self._owns_group = False
        self.watch: RankWatch | None = None  # that names a process which is gone; one process alone has none
        if self.size == 1:
            return
        if launch.source == "SLURM" and init_method is None:
            _export_slurm_rendezvous(launch)
        note = note or (lambda line: None)
        if not dist.is_initialized():
            where = init_method or f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            waiting = f"waiting for all of {self.size} processes to come to {where}."
            patience = threading.Timer(_PATIENCE_SECONDS, note, (waiting,))
            patience.daemon = True
            patience.start()
            try:
                dist.init_process_group(
                    self.backend,
                    init_method=init_method,
                    store=None if init_method else _store_of_restart(self.size),
                    rank=self.rank,
                    world_size=self.size,
                    timeout=_TIMEOUT,
                )
            except (ValueError, RuntimeError) as error:
                raise UserError(
                    f"the {self.size} processes could not meet ({self.backend}, {launch.source}): {error}".splitlines()[
                        0
                    ],
                    "Check MASTER_ADDR and MASTER_PORT, and that every process was started.",
                ) from error
            finally:
                patience.cancel()
            self._owns_group = True
        # Small host values travel in a group of their own: they must not queue behind gradients on the device.
        self._control = dist.new_group(backend="gloo")
        master = urlsplit(init_method or "").hostname or os.environ.get("MASTER_ADDR")
        # A broken connection is an exception in gloo's main thread. NCCL hangs, or ends the process without a word.
        grace_seconds = 3.0 if self.backend == "gloo" else 0.5
        self.watch = watch_ranks(self.rank, self.gather, master, note, grace_seconds=grace_seconds)

    def reduce_sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over all processes of a host tensor, in place."""
        if self.size > 1:
            dist.all_reduce(values, dist.ReduceOp.SUM, group=self._control)
        return values

    def reduce_max(self, values: torch.Tensor) -> torch.Tensor:
        if self.size > 1:
            dist.all_reduce(values, dist.ReduceOp.MAX, group=self._control)
        return values

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank, on every process."""
        if self.size == 1:
            return [value]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, value, group=self._control)
        return gathered

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier(group=self._control)

    def agree_on_failure(self, action: Callable[[], Any]) -> Any:
        """Runs an action on every process; if it fails on one, all stop with that error instead of waiting for ever."""
        if self.size == 1:
            return action()
        result: Any = None
        failure: Exception | None = None
        try:
            result = action()
        except Exception as error:
            failure = error
            # The others may be in a collective of the action, and then never come to the exchange below.
            if self.watch is not None:
                self.watch.tell_failure(error)
        told = None if failure is None else (str(failure) or type(failure).__name__)
        try:
            problems = self.gather(told)
        except RuntimeError:
            if failure is None:
                raise
            raise failure from None
        for rank, problem in enumerate(problems):
            if failure is not None:
                raise failure
            if problem is not None:
                raise OtherProcessFailed(f"process {rank} failed: {problem}")
        return result

    def close(self) -> None:
        failed = None if self.watch is None else self.watch.exit_status
        if self._owns_group and dist.is_initialized() and failed is None:
            dist.destroy_process_group()
        elif failed is not None and self.backend != "gloo":
            # NCCL waits for processes that are gone when its group is taken down, be it at the interpreter's end.
            atexit.register(_leave, failed)
        if self.watch is not None:
            self.watch.close()


def _store_of_restart(size: int) -> Any:
    """torchrun's own store, with names of this attempt: gloo would find the addresses of processes that are gone.

    None where torch's way will do.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0" or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(host, port, size, is_master=False, timeout=_TIMEOUT)
    return PrefixStore(f"portwright/attempt_{attempt}", store)


def _leave(status: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _export_slurm_rendezvous(launch: Launch) -> None:
    if "MASTER_ADDR" not in os.environ:
        os.environ["MASTER_ADDR"] = _first_slurm_host()
    if "MASTER_PORT" not in os.environ:
        # The same on every task and different for jobs that share a node.
        os.environ["MASTER_PORT"] = str(20000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 20000)
    os.environ.setdefault("RANK", str(launch.rank))
    os.environ.setdefault("WORLD_SIZE", str(launch.world_size))
    os.environ.setdefault("LOCAL_RANK", str(launch.local_rank))


def _first_slurm_host() -> str:
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
