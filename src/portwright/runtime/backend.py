"""The Backend of torch itself, for the targets whose device torch drives."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from portwright.errors import UserError
from portwright.runtime.execution import Choice, Mode, prepare_execution
from portwright.runtime.plugin import Plugin, PluginSession
from portwright.runtime.session import TorchSession
from portwright.runtime.world import World, read_launch
from portwright.target import JobSpec


class TorchBackend:
    """`plugin` is for a device that a vendor's package adds to torch; CPUs and GPUs have none."""

    emulates: str | None = None

    def __init__(
        self,
        device_type: str,
        flags: Mapping[str, Any],
        note: Callable[[str], None],
        plugin: Plugin | None = None,
    ) -> None:
        launch = read_launch()
        if plugin is not None:
            self.device = plugin.take_device(launch)
        elif device_type == "cuda":
            self.device = torch.device("cuda", _choose_gpu(launch.local_rank, torch.cuda.device_count()))
            torch.cuda.set_device(self.device)
        else:
            self.device = torch.device("cpu")
        address = flags.get("dist_addr")
        init_method = flags.get("init_method") or "env://"
        self.world = World(
            launch,
            device_type,
            flags.get("dist_backend") or (None if plugin is None else plugin.collectives),
            f"tcp://{address}" if address and init_method == "env://" and launch.world_size > 1 else None,
            note,
        )
        self._note, self._plugin = note, plugin
        self._num_sharing = launch.local_world_size
        self.execution: Choice | None = None  # the choice of the session opened last

    def open(self, job: JobSpec) -> TorchSession:
        if self._plugin is not None:
            return PluginSession(job, self.device, self.world, self._note, self._plugin)
        job, self.execution = prepare_execution(
            job, self.device, self.world, self._note, self._num_sharing if self.device.type == "cpu" else 1
        )
        if not self.execution.is_plain and self.world.is_main:
            self._note(self.execution.line)
        session = _session_class(self.execution.mode, self.world.size)
        return session(job, self.device, self.world, self._note)

    def close(self) -> None:
        self.world.close()


def _choose_gpu(local_rank: int, num_devices: int) -> int:
    """Which of the GPUs that torch sees is this process's."""
    if local_rank < num_devices:
        return local_rank
    if num_devices and os.environ.get("SLURM_GPUS_PER_TASK"):
        return 0  # srun --gpus-per-task: each task sees only its own, counted from 0
    raise UserError(
        f"process {local_rank} of this machine has no GPU: torch sees {num_devices}.",
        f"Start at most {num_devices} processes a machine.",
    )


def _session_class(mode: Mode, num_processes: int) -> type[TorchSession]:
    if mode == "streaming" and num_processes > 1:
        from portwright.runtime.streaming.sharded_session import ShardedStreamingSession

        return ShardedStreamingSession
    if mode == "streaming":
        from portwright.runtime.streaming.session import StreamingSession

        return StreamingSession
    if mode == "pipelined":
        from portwright.runtime.pipelined.session import MicroBatchSession, PipelinedSession

        return PipelinedSession if num_processes > 1 else MicroBatchSession
    return TorchSession
