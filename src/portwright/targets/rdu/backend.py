"""Opens sessions through SambaFlow or its emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from portwright.errors import UnsupportedError
from portwright.target import JobSpec
from portwright.targets.emulated import import_vendor

if TYPE_CHECKING:
    from portwright.targets.rdu.session import RduSession


class RduBackend:
    """Opens sessions only through SambaFlow's public API, which the emulator has too."""

    def __init__(self, flags: Mapping[str, Any], note: Callable[[str], None]) -> None:
        from portwright.runtime.world import World, read_launch

        _, self.emulates = import_vendor("sambaflow", flags)
        launch = read_launch()
        if launch.world_size > 1 and self.emulates is not None:
            raise UnsupportedError(
                f"RDU was started in {launch.world_size} processes, and several RDUs are not emulated.",
                "Start one process.",
            )
        self.world = World(launch, "cpu", None)
        self._flags, self._note = flags, note

    def open(self, job: JobSpec) -> RduSession:
        from portwright.targets.rdu.section import read_settings
        from portwright.targets.rdu.session import RduSession

        settings = read_settings(
            job, self._flags, self._note, num_processes=self.world.size, is_emulated=self.emulates is not None
        )
        return RduSession(job, settings, self.world, self._note)

    def close(self) -> None:
        self.world.close()
