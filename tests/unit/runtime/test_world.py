"""What torchrun and SLURM say about a process."""

from __future__ import annotations

import pytest

from portwright.errors import UserError
from portwright.runtime.world import Launch, World, read_launch

SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x4)",
}


def test_nothing_set_is_one_process() -> None:
    assert read_launch({}) == Launch()


def test_torchrun() -> None:
    launch = read_launch(
        {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", **SLURM}
    )
    assert launch == Launch(1, 4, 1, 2, "torchrun"), "torchrun inside a SLURM job wins"


def test_an_srun_step() -> None:
    assert read_launch(SLURM) == Launch(3, 8, 1, 2, "SLURM")


def test_a_batch_script_without_srun_is_one_process() -> None:
    """Its variables tell of tasks that nobody has started; waiting for them would hang."""
    assert read_launch({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "5"}) == Launch()


@pytest.mark.parametrize(
    "environ",
    [{"RANK": "x", "WORLD_SIZE": "2"}, {"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "0", "WORLD_SIZE": ""}],
)
def test_nonsense_is_explained(environ: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"RANK|WORLD_SIZE"):
        read_launch(environ)


def test_one_process_needs_no_group() -> None:
    world = World(Launch(), "cpu", None)
    assert world.is_main
    assert world.gather("x") == ["x"]
    world.barrier()
    world.close()
