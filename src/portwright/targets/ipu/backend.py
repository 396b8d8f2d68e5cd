"""Opens sessions through PopTorch or its emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from portwright.errors import UnsupportedError
from portwright.target import JobSpec
from portwright.targets.emulated import import_vendor

if TYPE_CHECKING:
    from portwright.targets.ipu.session import IpuSession


class IpuBackend:
    """Opens sessions only through PopTorch's public API, which the emulator has too."""

    def __init__(self, flags: Mapping[str, Any], note: Callable[[str], None]) -> None:
        from portwright.runtime.world import Launch, World, read_launch

        num_processes = read_launch().world_size
        if num_processes > 1:
            raise UnsupportedError(
                f"IPU was started in {num_processes} processes.",
                "Start one, and set ipu.replication_factor: PopTorch spreads a model over IPUs by itself.",
            )
        self.world = World(Launch(), "cpu", None)
        self.poptorch, self.emulates = import_vendor("poptorch", flags)
        self._flags, self._note = flags, note

    def open(self, job: JobSpec) -> IpuSession:
        from portwright.targets.ipu.session import IpuSession

        is_offline = bool(self._flags.get("validate_only") or self._flags.get("compile_only"))
        return IpuSession(job, self.poptorch, self._note, is_offline=is_offline)

    def close(self) -> None:
        self.world.close()
