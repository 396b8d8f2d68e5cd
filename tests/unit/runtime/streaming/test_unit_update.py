"""Which cores the optimizer's threads take when several processes share a machine."""

from __future__ import annotations

from typing import Any

import pytest

from portwright.errors import UnsupportedError
from portwright.runtime.streaming import unit_update
from portwright.runtime.streaming.unit_update import bind_to_own_cores
from portwright.runtime.world import Launch


class Binder:
    def __init__(self, refuses: bool = False) -> None:
        self.bound: list[list[int]] = []
        self._refuses = refuses

    def bind_threads(self, cores: list[int]) -> None:
        if self._refuses:
            raise UnsupportedError("The system refused")
        self.bound.append(cores)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    def place(rank: int, size: int, source: str = "torchrun", num_cores: int = 8) -> None:
        launch = Launch(rank, size, rank, size, source)
        monkeypatch.setattr(unit_update, "read_launch", lambda: launch)
        monkeypatch.setattr(unit_update, "usable_cores", lambda: list(range(10, 10 + num_cores)))

    return place


@pytest.mark.parametrize(("rank", "cores"), [(0, [10, 11, 12, 13]), (1, [14, 15, 16, 17])])
def test_each_process_keeps_to_its_part(on: Any, rank: int, cores: list[int]) -> None:
    on(rank, 2)
    binder: Any = Binder()
    bind_to_own_cores(binder, print)
    assert binder.bound == [cores]


@pytest.mark.parametrize(
    ("size", "source", "num_cores"), [(1, "single process", 8), (2, "SLURM", 8), (8, "torchrun", 8)]
)
def test_nothing_is_bound(on: Any, size: int, source: str, num_cores: int) -> None:
    on(0, size, source, num_cores)
    binder: Any = Binder()
    bind_to_own_cores(binder, print)
    assert binder.bound == []


def test_a_refusal_is_a_note(on: Any) -> None:
    on(0, 2)
    notes: list[str] = []
    binder: Any = Binder(refuses=True)
    bind_to_own_cores(binder, notes.append)
    assert len(notes) == 1
    assert "refused" in notes[0]
