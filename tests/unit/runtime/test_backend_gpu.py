"""Which GPU a process of a launch takes."""

from __future__ import annotations

import pytest

from portwright.errors import UserError
from portwright.runtime.backend import _choose_gpu


def test_each_process_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_GPUS_PER_TASK", raising=False)
    assert [_choose_gpu(rank, 4) for rank in range(4)] == [0, 1, 2, 3]
    with pytest.raises(UserError, match=r"process 4 .* torch sees 4"):
        _choose_gpu(4, 4)


def test_srun_may_show_each_task_its_own_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_GPUS_PER_TASK", "1")
    assert [_choose_gpu(rank, 1) for rank in range(3)] == [0, 0, 0]
    with pytest.raises(UserError, match="torch sees 0"):
        _choose_gpu(0, 0)
