"""Tasks that train and GPUs, before the queue."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.launch.test_checks import DEFAULTS, PARTITION, Programs, make_job, make_site

from portwright.launch.checks import Answer, Finding, check_job
from portwright.launch.job import Job, Step, Tasks

NODES = "".join(f"chk-{number}|40|512000|gpu:v100-32:8(S:0-1),nvme:1|idle\n" for number in (1, 2, 3))


def partitions(**values: str) -> str:
    shown = PARTITION.format(**{**DEFAULTS, "name": "GPU", "default": "YES", "nodes": "3"})
    for name, value in values.items():
        shown = shown.replace(f"{name}=NO ", f"{name}={value} ")
    return shown


def gpu_job(folder: Path, tasks: Tasks = "parallel", srun: tuple[str, ...] = (), **asked: Any) -> Job:
    site = make_site(folder, target="GPU", launch={"srun": srun})
    steps = (
        Step("validate", 1, ("python", "run.py")),
        Step("train", asked["ntasks"], ("python", "run.py"), tasks),
    )
    return replace(make_job(folder, site, **asked), target="GPU", steps=steps)


def told(job: Job, **programs: Answer | str) -> list[Finding]:
    answers = {"scontrol": partitions(), "sinfo": NODES, **programs}
    found = check_job(job, {}, run=Programs(**answers))
    return [finding for finding in found if finding.level != "note"]


@pytest.mark.parametrize(
    ("asked", "what", "cure"),
    [
        (
            {"ntasks": 8, "nodes": 1, "gres": "gpu:4"},
            "8 tasks train on a node, and the job asks for 4 GPU(s) a node",
            "Give --gres gpu:8, or --nodes 2 --flag=--ntasks-per-node=4, or --ntasks 4.",
        ),
        ({"ntasks": 8, "nodes": 1, "gres": "nvme:1,gpu:v100-32:6"}, "asks for 6", "--gres nvme:1,gpu:v100-32:8"),
        ({"ntasks": 2, "nodes": 1, "gres": "gpu"}, "asks for 1", "--gres gpu:2"),
        ({"ntasks": 9, "nodes": 2, "gres": "gpu:4"}, "5 tasks train on a node", "--nodes 3 --flag=--ntasks-per-node=3"),
        ({"ntasks": 20, "gres": "gpu:4"}, "7 tasks train on a node", "Give --gres gpu:7, or --ntasks 12."),
        (
            {"ntasks": 9, "nodes": 1, "gres": "gpu:8"},
            "9 tasks train on a node",
            "Give --nodes 2 --flag=--ntasks-per-node=5, or --ntasks 8.",
        ),
        ({"ntasks": 8, "nodes": 1, "flags": ("--gpus-per-node=4",)}, "asks for 4", "--flag=--gpus-per-node=8"),
        ({"ntasks": 8, "nodes": 1, "flags": ("--gpus-per-node=v100-32:4",)}, "asks for 4", "--flag=--gpus-per-node=8"),
        ({"ntasks": 6, "nodes": 1, "gres": "gpu:1", "flags": ("--gpus-per-node=4",)}, "asks for 4", "--flag=--gpus"),
        (
            {"ntasks": 8, "nodes": 2, "flags": ("--gpus=6",)},
            "8 tasks train, and --gpus=6 asks for 6 GPU(s) in all",
            "Give --flag=--gpus=8, or --ntasks 6.",
        ),
        ({"ntasks": 8, "nodes": 2, "flags": ("-G6",)}, "--gpus=6", "--flag=--gpus=8"),
        ({"ntasks": 8, "nodes": 2, "flags": ("--gpus=8", "--gpus=v100-32:3,v100:3")}, "--gpus=6", "--flag=--gpus=8"),
        ({"ntasks": 9, "nodes": 1, "gres": "gpu:4", "flags": ("--exclusive",)}, "have at most 8 GPU(s)", "--ntasks 8"),
    ],
)  # fmt: skip
def test_tasks_without_a_gpu_are_an_error(
    tmp_path: Path, asked: dict[str, Any], what: str, cure: str
) -> None:
    (found,) = told(gpu_job(tmp_path, **asked))
    assert found.level == "error"
    assert what in found.what
    assert "each task needs one of its own" in found.what
    assert cure in found.cure


@pytest.mark.parametrize(
    "asked",
    [
        {"ntasks": 4, "nodes": 1, "gres": "gpu:4"},
        {"ntasks": 8, "nodes": 2, "gres": "gpu:4", "flags": ("--ntasks-per-node=4",)},
        {"ntasks": 8, "nodes": 2, "gres": "gpu:4", "cpus_per_task": 10},  # 40 CPUs take four tasks
        {"ntasks": 8, "nodes": 2, "flags": ("--gpus=8",)},
        {"ntasks": 6, "nodes": 1, "gres": "gpu:v100-32:2,gpu:4"},
        {"ntasks": 4, "nodes": 1, "gres": "gpu:1", "flags": ("--gpus-per-node=4",)},
        {"ntasks": 8, "nodes": 1, "gres": "gpu:4", "flags": ("--exclusive",)},
        {"ntasks": 8, "nodes": 1},  # GPUs that SLURM does not count
        {"ntasks": 8, "nodes": 1, "gres": "nvme:1"},
        {"ntasks": 1, "nodes": 1, "gres": "gpu:1"},
        {"ntasks": 8, "nodes": 1, "flags": ("--gpus-per-task=1", "--gpu-bind=none")},
        {"ntasks": 2, "nodes": 2, "flags": ("--gpus-per-task=1",)},
        # Forms that are SLURM's to understand.
        {"ntasks": 8, "nodes": 1, "gres": "gpu:4", "flags": ("--gpus-per-socket=4", "--sockets-per-node=2")},
        {"ntasks": 8, "nodes": 1, "gres": "gpu:4", "flags": ("--tres-per-task=gres/gpu:1",)},
        {"ntasks": 8, "nodes": 1, "gres": "gpu:4", "flags": ("--ntasks-per-gpu=2",)},
        {"ntasks": 8, "nodes": 1, "gres": "gpu:4", "flags": ("--gpus-per-node=all",)},
        {"ntasks": 8, "nodes": 1, "flags": ("--gpus-per-node=0",)},
        {"ntasks": 8, "nodes": 1, "flags": ("--gpus-per-n=4",)},
        {"ntasks": 8, "nodes": 1, "gres": "gpu:4", "srun": ("--gpus-per-task=1",)},
    ],
)
def test_what_may_be_fine_is_not_refused(tmp_path: Path, asked: dict[str, Any]) -> None:
    assert told(gpu_job(tmp_path, **asked)) == []


def test_only_tasks_that_train_on_gpus_count(tmp_path: Path) -> None:
    job = gpu_job(tmp_path, ntasks=8, nodes=1, gres="gpu:1")
    assert len(told(job)) == 1
    assert told(gpu_job(tmp_path, "stream", ntasks=8, nodes=1, gres="gpu:1")) == []
    assert told(replace(job, target="CPU")) == []


def test_a_partition_of_whole_nodes_gives_all_gpus(tmp_path: Path) -> None:
    whole = partitions(OverSubscribe="EXCLUSIVE")
    assert told(gpu_job(tmp_path, ntasks=8, nodes=1, gres="gpu:4"), scontrol=whole) == []
    (found,) = told(gpu_job(tmp_path, ntasks=9, nodes=1, gres="gpu:4"), scontrol=whole)
    assert "nodes of GPU have at most 8 GPU(s)" in found.what


def test_nodes_that_are_not_known_refuse_nothing_by_themselves(tmp_path: Path) -> None:
    silent = Answer(1, "", "timed out")
    job = gpu_job(tmp_path, ntasks=9, nodes=1, gres="gpu:4", flags=("--exclusive",))
    assert told(job, sinfo=silent) == []
    (found,) = told(gpu_job(tmp_path, ntasks=9, nodes=1, gres="gpu:4"), sinfo=silent)
    assert "--gres gpu:9" in found.cure


@pytest.mark.parametrize(
    ("asked", "cure"),
    [
        ({"ntasks": 7, "nodes": 2, "gres": "gpu:4"}, "--flag=--ntasks-per-node=4"),
        ({"ntasks": 8, "gres": "gpu:4"}, "--flag=--ntasks-per-node=4"),
    ],
)
def test_what_slurm_may_place_badly_is_a_warning(tmp_path: Path, asked: dict[str, Any], cure: str) -> None:
    """SLURM 22.05.8 places 8 tasks on 2 nodes of 128 CPUs as 7 and 1."""
    (found,) = told(gpu_job(tmp_path, **asked))
    assert found.level == "warning"
    assert cure in found.cure
