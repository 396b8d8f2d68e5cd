"""What ch-run needs of an image, before the queue."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from unit.launch.test_checks import make_job, make_site

from portwright.launch.check_paths import check_container
from portwright.launch.findings import Finding
from portwright.launch.job import Container, Job


def squashed(folder: Path, *inside: str, image: str = "image.sqfs", **changed: Any) -> Job:
    path = folder / image
    if image.endswith(".sqfs"):
        path.write_bytes(b"hsqs" + b"\0" * 99)
    binds = tuple((str(folder), place) for place in inside)
    return replace(make_job(folder), container=Container("ch-run", str(path), binds, **changed))


def told(job: Job) -> list[Finding]:
    found = check_container(job, at_site=True)
    return [finding for finding in found if "on this machine" not in finding.what]


def test_an_image_that_is_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder" / "usr").mkdir(parents=True)
    assert told(squashed(tmp_path, "/nowhere", image="folder")) == []
    job = squashed(tmp_path, "/nowhere")
    assert told(job) == []
    (tmp_path / "image.sqfs").write_bytes(b"")
    assert ["is empty" in finding.what for finding in told(job)] == [True]


def test_ch_run_on_gpus_needs_their_libraries_in_the_image(tmp_path: Path) -> None:
    site = make_site(tmp_path, target="GPU", container={"kind": "none", "flags": ["--nv"]})
    job = replace(squashed(tmp_path, "/ocean"), site=site, target="GPU")
    (note,) = told(job)
    assert note.level == "note"
    assert "ch-fromhost --nvidia" in note.cure
    assert job.container is not None
    assert told(replace(job, container=replace(job.container, kind="apptainer", flags=("--nv",)))) == []


def test_flags_that_are_left_out_are_told(tmp_path: Path) -> None:
    site = make_site(tmp_path, container={"kind": "singularity", "flags": ["--nv", "--writable-tmpfs"]})
    (note,) = told(replace(squashed(tmp_path, "/ocean"), site=site))
    assert note.level == "note"
    assert "(--nv --writable-tmpfs) are not of ch-run" in note.what
