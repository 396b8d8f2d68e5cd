from __future__ import annotations

from pathlib import Path

import pytest
from unit.launch.script_jobs import make_job, make_site

from portwright.errors import UserError
from portwright.launch.job import Container, Step
from portwright.launch.task_script import render_task, visible_variables


def contained(kind: str, **fields: object) -> Container:
    return Container(kind, "/images/my image.sif", (("/data", "/data"), ("/a b", "/c")), **fields)  # type: ignore[arg-type]


def test_only_what_the_job_needs(tmp_path: Path) -> None:
    plain = render_task(make_job(tmp_path))
    for word in ("SLURM", "APPTAINER", "bind", "image", ".status", "ch-run"):
        assert word not in plain
    assert "SLURM_PROCID" in render_task(make_job(tmp_path, scheduler="slurm"))


def test_apptainer_passes_variables_by_the_environment(tmp_path: Path) -> None:
    text = render_task(
        make_job(
            tmp_path,
            container=contained("apptainer", flags=("--nv",)),
            passed=("TOKEN",),
            environment={"PLAIN": "1"},
        )
    )
    assert "program=(apptainer exec --cleanenv --nv)" in text
    assert "APPTAINERENV_$name" in text
    assert "SINGULARITYENV_$name" in text
    assert "ch-run" not in text
    names = text.split("visible=(")[1].split(")")[0].replace("\\", "").split()
    assert {"RANK", "MASTER_ADDR", "TOKEN", "PLAIN", "PORTWRIGHT_TASK_HOSTS"} <= set(names)
    assert len(names) == len(set(names))


def test_a_container_that_is_not_clean_needs_no_list(tmp_path: Path) -> None:
    for kind in ("singularity", "ch-run"):
        text = render_task(make_job(tmp_path, container=contained(kind, clean_env=False)))
        assert "visible" not in text
        assert "--cleanenv" not in text


def test_copies_on_the_nodes_come_first(tmp_path: Path) -> None:
    text = render_task(
        make_job(tmp_path, container=contained("singularity", images_on_nodes=("/l1/i.sif", "/l 2/i.sif")))
    )
    assert "for copy in /l1/i.sif '/l 2/i.sif'; do" in text
    assert "copy" not in render_task(make_job(tmp_path, container=contained("singularity")))


def test_packages_are_put_on_the_path(tmp_path: Path) -> None:
    job = make_job(tmp_path, container=contained("apptainer", packages="/my packages"))
    assert "export PYTHONPATH='/my packages'${PYTHONPATH:+:$PYTHONPATH}" in render_task(job)
    assert "PYTHONPATH" in visible_variables(job)


def test_a_job_half_in_a_container_is_refused(tmp_path: Path) -> None:
    steps = (Step("compile", 1, ("cslc",), contained=False), Step("train", 1, ("python",)))
    with pytest.raises(UserError, match="some steps"):
        render_task(make_job(tmp_path, *steps, container=contained("apptainer")))
    outside = render_task(
        make_job(tmp_path, steps[0], container=contained("apptainer"), site=make_site("slurm"))
    )
    assert "apptainer" not in outside
