"""Whether nodes see the paths of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from portwright.launch import check_paths
from portwright.launch.check_paths import find_unseen
from portwright.launch.job import Job, Resources, Step
from portwright.launch.site import Site
from portwright.launch.site_files import load_site


def make_job(folder: Path, site: Site) -> Job:
    return Job(
        name="mnist-1",
        folder=folder / "jobs" / "mnist-1",
        workdir=folder,
        site=site,
        target="CPU",
        steps=(Step("train", 1, ("python", "run.py")),),
        resources=Resources(),
        model_dir=folder / "model_dir",
    )


def test_a_cluster_that_queues_by_itself_has_nodes_too(tmp_path: Path) -> None:
    job = make_job(tmp_path, load_site("alcf-cerebras"))
    unseen = find_unseen(Path("/tmp/model_dir"), job, at_site=True)
    assert unseen is not None
    assert unseen.level == "error"
    assert "/projects" in unseen.what
    assert find_unseen(Path("/projects/me/model_dir"), job, at_site=True) is None


def test_on_this_machine_every_path_will_do(tmp_path: Path) -> None:
    site = Site.model_validate(
        {"name": "here", "scheduler": "none", "target": "CPU", "storage": {"shared": ["/projects"]}}
    )
    assert find_unseen(Path("/tmp/model_dir"), make_job(tmp_path, site), at_site=True) is None


@pytest.mark.parametrize(("scheduler", "cure"), [("slurm", "--probe asks a node."), ("csctl", "")])
def test_only_slurm_can_be_asked_for_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str, cure: str
) -> None:
    table = tmp_path / "mounts"
    table.write_text("/dev/sda1 / ext4 rw 0 0\n")
    monkeypatch.setattr(check_paths, "MOUNTS", table)
    site = Site.model_validate({"name": "here", "scheduler": scheduler, "target": "CPU"})
    unseen = find_unseen(Path("/data/of/mine"), make_job(tmp_path, site), at_site=True)
    assert unseen is not None
    assert (unseen.level, unseen.cure) == ("note", cure)
