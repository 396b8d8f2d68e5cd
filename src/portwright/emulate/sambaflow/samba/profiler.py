"""sambaflow.samba.profiler: accepted and empty, since an emulated run has no times worth keeping."""

from __future__ import annotations

from typing import Any


class Profiler:
    def __init__(self, *args: Any, **options: Any) -> None:
        self._num_events = 0

    def start_event(self, name: str, *args: Any, **options: Any) -> int:
        self._num_events += 1
        return self._num_events

    def end_event(self, event: Any = None, *args: Any, **options: Any) -> None:
        """Accepted."""
