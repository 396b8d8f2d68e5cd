"""Which process of how many this is, and how the processes talk."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from portwright.errors import UserError
from portwright.job.launch_env import Launch, export_slurm_rendezvous, read_launch
from portwright.runtime.rank_watch import OtherProcessFailed, RankWatch, watch_ranks

__all__ = ["Launch", "World", "read_launch"]

_TIMEOUT = timedelta(minutes=10)  # of a collective
_PATIENCE_SECONDS = 15.0  # before a process says that it waits for the others to start


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
        self.watch: RankWatch | None = None  # finds processes that are gone; None in a world of one
        if self.size == 1:
            return
        if launch.source == "SLURM" and init_method is None:
            export_slurm_rendezvous(launch)
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
