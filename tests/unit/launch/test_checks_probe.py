"""--probe and containers: what a node is told to run, run here in its place."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.launch.test_checks import SIF, Programs, make_job, make_site, with_image

from portwright.launch.checks import Answer, check_job
from portwright.launch.job import Container, Job

# As ch-run 0.31: a bind needs its source, and a place in the image.
CH_RUN = r"""#!/bin/bash
[[ -n $USER ]] || { echo 'ch-run[1]: error: $USER not set' >&2; exit 1; }
said=$(printf '%s\n' "$@")
while [[ $1 != -- ]]; do
    if [[ $1 == --bind ]]; then binds+=("$2"); shift; fi
    image=$1
    shift
done
for bind in "${binds[@]}"; do
    [[ -e ${bind%%:*} ]] || { echo "ch-run[1]: error: can't bind: source not found: ${bind%%:*}" >&2; exit 1; }
    [[ -e $image${bind#*:} ]] || { echo "ch-run[1]: error: can't mkdir: $image${bind#*:}: Read-only file system" >&2; exit 1; }
done
[[ -d $image ]] || exit 1
echo "$said" >"$SAID"
"""


class Node(Programs):
    """Runs what srun is given, with the variables of a task."""

    def __init__(self, folder: Path, program: str = CH_RUN) -> None:
        super().__init__()
        self.said = folder / "said"
        programs = folder / "programs"
        programs.mkdir()
        (programs / "ch-run").write_text(program)
        (programs / "ch-run").chmod(0o755)
        self.environ = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "SAID": str(self.said),
            "SLURM_PROCID": "0",
            "SLURM_LOCALID": "0",
            "SLURM_STEP_NUM_TASKS": "1",
        }

    def __call__(self, words: Sequence[str], *, timeout_seconds: float = 15.0) -> Answer:
        if words[0] != "srun":
            return super().__call__(words, timeout_seconds=timeout_seconds)
        first = next(place for place, word in enumerate(words) if word.startswith("/bin/"))
        done = subprocess.run(
            words[first:], env=self.environ, cwd="/", capture_output=True, text=True, check=False
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def binds(self) -> list[str]:
        lines = self.said.read_text().splitlines()
        return [lines[place + 1] for place, line in enumerate(lines) if line == "--bind"]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder of the nodes with an image in it."""
    folder = tmp_path / "a b'$x"
    (folder / "image" / "usr").mkdir(parents=True)
    return folder


def with_folder(shared: Path, *binds: tuple[str, str], **changed: Any) -> Job:
    """/usr/share is bound where the image has nothing yet: below /tmp, where `shared` is, task.sh makes no places."""
    site = make_site(shared, storage={"shared": [str(shared), "/usr/share"], "on_nodes": ["/local-of-nodes"]})
    container = Container("ch-run", str(shared / "image"), (("/usr/share", "/work/share"), *binds), **changed)
    return replace(make_job(shared, site, minutes=10), container=container)


def test_a_first_submission_is_not_refused(shared: Path, tmp_path: Path) -> None:
    """model_dir is made by job.sh, and a place in the image by task.sh."""
    job = with_folder(shared, (str(shared / "model_dir"), "/model_dir"))
    node = Node(tmp_path)
    found = check_job(job, {}, run=node, probe=True)
    assert found[-1].what == "a node sees all paths of the job, and the container starts there."
    assert node.binds() == ["/usr/share:/work/share"]
    assert not (shared / "model_dir").exists()
    assert node.said.read_text().splitlines()[-1] == "true"


def test_what_a_node_does_not_have_is_left_out(shared: Path, tmp_path: Path) -> None:
    job = with_folder(shared, ("/local-of-nodes/data", "/data"))
    node = Node(tmp_path)
    assert check_job(job, {}, run=node, probe=True)[-1].what.endswith("the container starts there.")
    assert node.binds() == ["/usr/share:/work/share"]


def test_the_copy_on_the_node_is_started(shared: Path, tmp_path: Path) -> None:
    shutil.copytree(shared / "image", shared / "copy")
    job = with_folder(shared, images_on_nodes=(str(shared / "gone"), str(shared / "copy")))
    node = Node(tmp_path)
    assert check_job(job, {}, run=node, probe=True)[-1].what.endswith("the container starts there.")
    assert str(shared / "copy") in node.said.read_text().splitlines()


def test_variables_of_the_site_are_set_before(shared: Path, tmp_path: Path) -> None:
    node = Node(tmp_path, '#!/bin/sh\necho "$COLOUR $PWD" >"$SAID"\n')
    check_job(replace(with_folder(shared), environment={"COLOUR": "a 'b' $c"}), {}, run=node, probe=True)
    assert node.said.read_text() == f"a 'b' $c {shared}\n"


def test_a_container_that_does_not_start_is_an_error(shared: Path, tmp_path: Path) -> None:
    node = Node(tmp_path, "#!/bin/sh\necho 'ch-run[1]: error: no such luck' >&2\nexit 3\n")
    found = check_job(with_folder(shared), {}, run=node, probe=True)[-1]
    assert found.level == "error"
    assert found.what.startswith("the container does not start on a node: ")
    assert "no such luck" in found.what


def test_a_stream_writes_down_nothing(tmp_path: Path) -> None:
    """task.sh tells the status of a coordinator; the probe is none."""
    job = with_image(tmp_path, SIF)
    steps = (replace(job.steps[0], ntasks=2, tasks="stream"),)
    node = Node(tmp_path)
    (tmp_path / "programs" / "apptainer").write_text('#!/bin/sh\necho "$@" >"$SAID"\n')
    (tmp_path / "programs" / "apptainer").chmod(0o755)
    found = check_job(replace(job, steps=steps), {}, run=node, probe=True)
    assert found[-1].what.endswith("the container starts there.")
    assert not job.folder.exists()
