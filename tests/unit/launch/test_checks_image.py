"""What ch-run needs of an image, before the queue."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.launch.test_checks import make_job, make_site

from portwright.launch.check_image import check_container
from portwright.launch.findings import Answer, Finding, run_program
from portwright.launch.job import Container, Job

# As unsquashfs 4.5.1 -ll printed it.
LISTED = """\
drwxr-xr-x root/root               175 2026-11-18 13:52 squashfs-root
drwxr-xr-x root/root                24 2026-11-18 13:52 squashfs-root/a b
drwxr-xr-x root/root                24 2026-11-18 13:52 squashfs-root/a b/c
crw-r--r-- root/root            1,   3 2026-11-18 13:52 squashfs-root/null
lrwxrwxrwx root/root                 4 2026-11-18 13:52 squashfs-root/link -> real
drwxr-xr-x root/root                24 2026-11-18 13:52 squashfs-root/ocean
drwxr-xr-x root/root                 3 2026-11-18 13:48 squashfs-root/usr
"""
NO_PROGRAM = Answer(None, err="there is no program unsquashfs here")


def squashed(folder: Path, *inside: str, image: str = "image.sqfs", **changed: Any) -> Job:
    path = folder / image
    if image.endswith(".sqfs"):
        path.write_bytes(b"hsqs" + b"\0" * 99)
    binds = tuple((str(folder), place) for place in inside)
    return replace(make_job(folder), container=Container("ch-run", str(path), binds, **changed))


def told(job: Job, answer: Answer | str = LISTED) -> list[Finding]:
    calls = []

    def run(words: Sequence[str], *, timeout_seconds: float = 15.0) -> Answer:
        calls.append(list(words))
        return Answer(0, answer) if isinstance(answer, str) else answer

    found = check_container(job, at_site=True, run=run)
    assert all(call[0] == "unsquashfs" for call in calls)
    return [finding for finding in found if "on this machine" not in finding.what]


def test_places_that_the_image_has(tmp_path: Path) -> None:
    assert told(squashed(tmp_path, "/ocean", "/a b/c", "/null")) == []


def test_places_that_it_lacks_are_an_error(tmp_path: Path) -> None:
    (found,) = told(squashed(tmp_path, "/ocean", "/ocean2", "/a b/d", "/home/ana"))
    assert found.level == "error"
    assert "has no '/ocean2', '/a b/d', '/home/ana', and ch-run" in found.what
    assert "--image FOLDER" in found.cure


@pytest.mark.parametrize(
    ("inside", "flags"),
    [
        ("/tmp/mine", ()),
        ("/tmp", ()),
        ("/dev/shm/mine", ()),
        ("/ocean/below/the/other/bind", ()),
        ("/home/ana", ("--home",)),
        ("/nowhere", ("--write-fake",)),
        ("/nowhere", ("-W",)),
    ],
)
def test_what_ch_run_mounts_itself_does_not_count(
    tmp_path: Path, inside: str, flags: tuple[str, ...]
) -> None:
    assert told(squashed(tmp_path, "/ocean", inside, flags=flags)) == []


@pytest.mark.parametrize(
    "answer", [NO_PROGRAM, Answer(1, "", "FATAL ERROR: Can't find a valid SQUASHFS"), ""]
)
def test_without_unsquashfs_it_is_a_warning(tmp_path: Path, answer: Answer | str) -> None:
    (found,) = told(squashed(tmp_path, "/ocean", "/ocean2", "/tmp/mine"), answer)
    assert found.level == "warning"
    assert "must have '/ocean', '/ocean2', since" in found.what
    assert "unsquashfs -l" in found.cure


def test_what_may_not_be_missed_is_a_warning(tmp_path: Path) -> None:
    """A bind whose source a node lacks is left out there; links lead ch-run elsewhere."""
    job = squashed(tmp_path, "/link/x")
    assert job.container is not None
    binds = (*job.container.binds, ("/local-of-nodes/data", "/data"))
    found = told(replace(job, container=replace(job.container, binds=binds)))
    assert [finding.level for finding in found] == ["warning", "warning"]
    assert "has no '/data': on nodes that have" in found[0].what
    assert "links lead to '/link/x'" in found[1].what


def test_folders_that_the_job_makes_will_be_there(tmp_path: Path) -> None:
    job = squashed(tmp_path, "/ocean")
    assert job.container is not None
    binds = tuple((str(path), f"/{path.name}") for path in (job.model_dir, job.folder))
    (found,) = told(replace(job, container=replace(job.container, binds=binds)))
    assert found.level == "error"
    assert "'/model_dir', '/mnist-1'" in found.what


def test_other_images_are_not_looked_into(tmp_path: Path) -> None:
    (tmp_path / "folder" / "usr").mkdir(parents=True)
    assert told(squashed(tmp_path, "/nowhere", image="folder"), NO_PROGRAM) == []
    job = squashed(tmp_path, "/nowhere")
    assert job.container is not None
    assert told(replace(job, container=replace(job.container, kind="apptainer")), NO_PROGRAM) == []
    damaged = squashed(tmp_path, "/nowhere")
    (tmp_path / "image.sqfs").write_bytes(b"")
    assert ["is empty" in finding.what for finding in told(damaged, NO_PROGRAM)] == [True]


@pytest.mark.skipif(
    not (shutil.which("mksquashfs") and shutil.which("unsquashfs")), reason="no mksquashfs here"
)
def test_a_real_image(tmp_path: Path) -> None:
    for place in ("usr", "ä b", "x -> y"):
        (tmp_path / "root" / place).mkdir(parents=True)
    job = squashed(tmp_path, "/ä b", "/x -> y", "/missing")
    image = tmp_path / "image.sqfs"
    image.unlink()
    assert run_program(["mksquashfs", str(tmp_path / "root"), str(image), "-quiet", "-no-progress"]).is_good
    found = [finding for finding in check_container(job, at_site=True) if finding.level != "note"]
    assert [(finding.level, "has no '/missing', and" in finding.what) for finding in found] == [
        ("error", True)
    ]


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
