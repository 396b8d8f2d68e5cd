"""Checks before the queue and explained logs, against a real SLURM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster

from portwright.launch.checks import Finding, check_job
from portwright.launch.container import make_container
from portwright.launch.explain import explain_text, read_log
from portwright.launch.job import Job, Resources, Step
from portwright.launch.site import Site


@pytest.fixture(autouse=True)
def _asks_this_cluster(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", cluster.environ["SLURM_CONF"])


def make_job(folder: Path, **asked: Any) -> Job:
    site = Site.model_validate(
        {"name": "here", "scheduler": "slurm", "target": "CPU", "storage": {"shared": [str(folder)]}}
    )
    return Job(
        name="probe-1",
        folder=folder / "jobs" / "probe-1",
        workdir=folder,
        site=site,
        target="CPU",
        steps=(Step("train", asked.get("ntasks", 1), ("true",)),),
        resources=Resources(**asked),
        model_dir=folder / "model_dir",
    )


def errors(found: list[Finding]) -> list[str]:
    return [finding.what for finding in found if finding.level == "error"]


@pytest.mark.parametrize(
    "asked",
    [{"partition": "sdf", "gres": "cs:cerebras:1", "ntasks": 7, "cpus_per_task": 14, "minutes": 240},
     {"partition": "GPU", "gres": "gpu:v100-32:8"}, {"partition": "p64", "gres": "ipu:4"}, {"ntasks": 512}],
)  # fmt: skip
def test_what_slurm_takes_is_taken(tmp_path: Path, asked: dict[str, Any]) -> None:
    found = check_job(make_job(tmp_path, **asked), {})
    assert errors(found) == []
    assert any("SLURM would start it about" in finding.what for finding in found)


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"partition": "sfd"}, "no partition 'sfd'"),
        ({"gres": "cs:cerebras:2"}, "has cs:cerebras:2"),
        ({"gres": "tpu:1"}, "has tpu:1"),
        ({"minutes": 2881}, "at most 2-00:00:00"),
        ({"ntasks": 513}, "do not fit"),
        ({"cpus_per_task": 129}, "129 CPUs for one task"),
        ({"nodes": 5}, "at most 4 node(s)"),
        ({"memory": "3T"}, "3T of memory"),
        ({"flags": ("--no-such-flag",)}, "unrecognized option"),
        ({"flags": ("--constraint=none-such",)}, "No node of the partition has what the job asks for"),
        ({"flags": ("--reservation=none-such",)}, "reservation does not exist"),
    ],
)
def test_what_slurm_refuses_is_told_before(tmp_path: Path, asked: dict[str, Any], what: str) -> None:
    (told,) = errors(check_job(make_job(tmp_path, **asked), {}))
    assert what in told


def test_a_node_is_asked(tmp_path: Path, image: Path) -> None:
    data = tmp_path / "a b'c"
    data.mkdir()
    job = make_job(tmp_path, partition="sdf", minutes=10)
    params = {"train_input": {"data_dir": str(data)}}
    assert check_job(job, params, probe=True)[-1].what == "a node sees all paths of the job."

    # /mnt: ch-run makes no folder in an image that it may not write.
    container = make_container(
        job.site, image=str(image), kind="ch-run", paths=(), extra_binds=[f"{tmp_path}:/mnt"]
    )
    inside = replace(job, container=container, workdir=Path("/mnt"))
    found = check_job(
        replace(inside, site=job.site.model_copy(update={"storage": type(job.site.storage)()})),
        {},
        probe=True,
    )
    assert errors(found) == []
    assert found[-1].what.endswith("the container starts there.")


def test_messages_of_a_running_job_are_known(cluster: SlurmCluster, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\n"
        "srun -n2 --kill-on-bad-exit=1 sh -c 'if [ $SLURM_PROCID = 1 ]; then kill -9 $$; fi; sleep 60'\n"
    )
    job = cluster.submit("-n2", "-o", tmp_path / "log", script)
    cluster.wait_state(job, {"FAILED", "COMPLETED", "CANCELLED"})
    report = read_log(tmp_path / "log")
    assert report.explanations[0].name == "task-killed"
    assert report.explanations[0].num_followers >= 1
    assert report.has_errors


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("sbatch", "-p", "nope"), "slurm-partition"),
        (("sbatch", "--gres=zz:1"), "slurm-gres-invalid"),
        (("sbatch", "-t", "abc"), "slurm-time-invalid"),
        (("sbatch", "--gres=cs:cerebras:9"), "slurm-configuration"),
        (("sbatch", "--bogus"), "bad-arguments"),
        (("sbatch", "-w", "no-such-node"), "slurm-configuration"),
    ],
)
def test_refusals_are_explained(
    cluster: SlurmCluster, tmp_path: Path, words: tuple[str, ...], name: str
) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\ntrue\n")
    said = cluster.run(*words, script, check=False)
    assert said.returncode != 0
    assert [told.name for told in explain_text(said.stderr + said.stdout)] == [name]


CONTAINERS = {
    "image-missing": ["/no/such/image", "true"],
    "image-damaged": ["{tmp}/bad.sif", "true"],
    "bind-source-missing": ["--bind", "/no/such:/mnt", "{image}", "true"],
    "program-missing": ["{image}", "no-such-program"],
    "module-missing": ["{image}", "python", "-c", "import no_such_module"],
    "read-only": ["{image}", "python", "-c", "open('/usr/x', 'w')"],
}


@pytest.mark.parametrize("name", CONTAINERS)
@pytest.mark.parametrize("kind", ["apptainer", "ch-run"])
def test_messages_of_containers_are_known(
    cluster: SlurmCluster, image: Path, tmp_path: Path, request: pytest.FixtureRequest, name: str, kind: str
) -> None:
    (tmp_path / "bad.sif").write_text("hello")
    words = [word.format(tmp=tmp_path, image=image) for word in CONTAINERS[name]]
    if kind == "apptainer":
        start = [str(request.getfixturevalue("apptainer") / "apptainer"), "exec"]
    else:
        start = ["ch-run"]
        at = next(
            at
            for at, word in enumerate(words)
            if word in (str(image), "/no/such/image", f"{tmp_path}/bad.sif")
        )
        words.insert(at + 1, "--")
    said = cluster.run("srun", "--export=ALL,USER=root", *start, *words, check=False)
    assert said.returncode != 0
    assert explain_text(said.stderr + said.stdout)[0].name == name, said.stderr
