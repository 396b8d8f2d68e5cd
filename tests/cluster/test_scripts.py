"""Every shipped site's scripts, held against shellcheck, bash and sbatch itself; and what scripts do on a real SLURM."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from script_jobs import CountingJob
from slurm_cluster import SlurmCluster

from portwright.launch.container import make_container
from portwright.launch.hpc import hpc_steps
from portwright.launch.job import Job, Resources, Step
from portwright.launch.script import render_job
from portwright.launch.site_files import SHIPPED, load_site
from portwright.launch.task_script import render_task

pytestmark = pytest.mark.timeout(600)

ODD = 'it\'s a "job" $HOME %j \\ #1 `id` ü'
SITES = sorted(path.stem for path in SHIPPED.glob("*.toml"))
# Of a plugin that the site has and SLURM has not: sbatch refuses a flag that it does not know.
PLUGIN_FLAGS = ("--ipus=",)


def site_job(name: str, target: str, root: Path, *, hpc: bool = False, odd: bool = False) -> Job:
    """A job as `submit` would plan it there, with everything that the site asks for."""
    site = load_site(name).for_target(target)
    workdir = root / (ODD if odd else "work")
    workdir.mkdir()
    expanded = tuple(place for place, word in enumerate(site.launch.run_flags) if "${" in word)
    train = ("python", "run.py", target, "--mode", "train", "--model_dir", str(workdir / "model dir"))
    steps = (
        Step("validate", 1, (*train, "--validate_only")),
        Step(
            "train",
            site.job.ntasks,
            (*train, *site.launch.run_flags),
            site.tasks,
            tuple(len(train) + at for at in expanded),
        ),
        Step("eval", 1, ("python", "run.py", target, "--mode", "eval")),
    )
    if hpc:
        for file in ("layout.csl", "run.py"):
            (workdir / file).touch()
        steps = hpc_steps(workdir, {"compile": {"params": {"M": 4}, "output": "my out"}})
    job = site.job
    return Job(
        name=f"{name}-1",
        folder=workdir / "jobs" / f"{name}-1",
        workdir=workdir,
        site=site,
        target=target,
        steps=steps,
        resources=Resources(
            account="abc123" if job.account != "none" else None,
            partition=job.partition,
            nodes=job.nodes,
            ntasks=max(step.ntasks for step in steps),
            cpus_per_task=job.cpus_per_task,
            gres=job.gres,
            memory=job.memory,
            minutes=job.minutes,
            grace_seconds=job.grace_seconds,
            flags=job.flags,
        ),
        model_dir=workdir / "model dir",
        container=make_container(site, image=None, kind=None, paths=[workdir], extra_binds=[]),
        python="/opt/my python/bin/python",
        modules=(*site.environment.modules, "anaconda/3"),
        environment=site.environment.variables,
        passed=(*site.environment.passed, "TOKEN"),
        title=ODD if odd else "mymodel",
    )


def variants() -> Iterator[pytest.param]:
    for name in SITES:
        site = load_site(name)
        for target in site.targets:
            yield pytest.param(name, target, False, id=f"{name}-{target}")
        if site.hpc:
            yield pytest.param(name, site.target, True, id=f"{name}-hpc")


@pytest.mark.parametrize("odd", [False, True], ids=["plain", "odd"])
@pytest.mark.parametrize(("name", "target", "hpc"), list(variants()))
def test_every_site_s_scripts(
    cluster: SlurmCluster, tmp_path: Path, name: str, target: str, hpc: bool, odd: bool
) -> None:
    odd = odd and load_site(name).container.kind != "singularity"  # whose old releases take no quotes
    job = site_job(name, target, tmp_path, hpc=hpc, odd=odd)
    job.folder.mkdir(parents=True)
    for file, text in (("job.sh", render_job(job)), ("task.sh", render_task(job))):
        (job.folder / file).write_text(text)
        assert "disable=" not in text
        subprocess.run(["bash", "-n", job.folder / file], check=True)
        subprocess.run(["shellcheck", "--severity=style", job.folder / file], check=True)
    if job.site.scheduler != "slurm":
        return
    lines = (job.folder / "job.sh").read_text().splitlines(keepends=True)
    kept = [
        line
        for line in lines
        if not (line.startswith("#SBATCH") and any(flag in line for flag in PLUGIN_FLAGS))
    ]
    assert len(lines) - len(kept) == (1 if target == "IPU" else 0)
    (job.folder / "job.sh").write_text("".join(kept))
    accepted = cluster.run("sbatch", "--test-only", job.folder / "job.sh", check=False)
    assert accepted.returncode == 0, accepted.stderr
    assert "to start at" in accepted.stderr


def test_odd_names_everywhere(cluster: SlurmCluster, tmp_path: Path) -> None:
    root = tmp_path / ODD
    words = (ODD, "", "two\nlines", "$(touch hacked)", "*")
    job = CountingJob(
        cluster,
        root,
        goal=3,
        words=words,
        folder=root / f"jobs {ODD}",
        passed=("TOKEN",),
        environment={"PLAIN": ODD},
    )
    job.submit("--export=ALL,TOKEN=planted-value")
    assert job.wait_for("done", "failed") == "done", job.log
    assert "All steps are done" in job.log  # in the file that --output names
    for rank in range(3):
        told = job.told("train", rank)[0]
        assert told["argv"] == list(words)
        assert told["cwd"] == str(root)
        assert told["env"]["PLAIN"] == ODD
        assert told["env"]["TOKEN"] == "planted-value"
        assert int(told["env"]["RANK"]) == rank
        assert told["env"]["WORLD_SIZE"] == "3"
        assert len(told["env"]["PORTWRIGHT_TASK_HOSTS"].split(",")) == 3
        assert told["env"]["MASTER_ADDR"] == told["env"]["PORTWRIGHT_TASK_HOSTS"].split(",")[0]
    assert not list(tmp_path.rglob("hacked"))
    for path in job.folder.rglob("*"):
        assert not path.is_file() or "planted-value" not in path.read_text(errors="replace"), path


def test_the_time_limit(cluster: SlurmCluster, tmp_path: Path) -> None:
    asked = Resources(nodes=2, ntasks=3, cpus_per_task=1, minutes=1, grace_seconds=30)
    job = CountingJob(cluster, tmp_path, goal=250, resources=asked)
    job.submit()
    assert job.wait_for("done", "failed") == "done", job.log
    assert set(job.attempts) == {"requeue:signal"}
    assert len(job.told("validate", 0)) == 1
    assert len(job.told("train", 0)) == 1 + len(job.attempts)
    assert job.log.count("saved at") == 3 * len(job.attempts)
    ports = [told["env"]["MASTER_PORT"] for told in job.told("train", 0)]
    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize("kind", ["none", "ch-run", "apptainer"])
def test_a_step_that_is_told_to_end(
    cluster: SlurmCluster, tmp_path: Path, kind: str, image: Path, request: pytest.FixtureRequest
) -> None:
    """TERM reaches the programs, in a container too; they save, and the job is requeued."""
    container, flags = None, ()
    if kind != "none":
        table = {"container": {"kind": kind, "image": str(image)}}
        job = CountingJob(cluster, tmp_path, tables=table)
        container = make_container(job.job.site, image=None, kind=None, paths=[tmp_path])
    if kind == "apptainer":
        folder = request.getfixturevalue("apptainer")
        flags = (f"--export=ALL,APPTAINER_NO_PRIVS=1,PATH={folder}:/usr/bin:/bin",)
    job = CountingJob(cluster, tmp_path, container=container)
    job.submit(*flags)
    job.wait_at(5)
    steps = cluster.run("squeue", "--noheader", "--steps", f"--jobs={job.id}", "--format=%i").stdout.split()
    cluster.run("scancel", "--signal=TERM", next(step for step in steps if step.split(".")[1].isdecimal()))
    assert job.wait_for("done", "failed") == "done", job.log
    assert job.attempts == ["requeue:85"]
    assert job.log.count("saved at") == 3


def test_a_cancelled_job_stays_cancelled(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = CountingJob(cluster, tmp_path)
    job.submit()
    job.wait_at(5)
    cluster.run("scancel", str(job.id))
    assert job.wait_for("cancelled", "requeued", "failed") == "cancelled", job.log
    assert cluster.wait_state(job.id, {"CANCELLED"}) == "CANCELLED"
    assert job.attempts == []


def test_a_killed_task_ends_the_others_and_is_tried_again(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = CountingJob(cluster, tmp_path, trouble="if rank == 1 and not first: os.kill(os.getpid(), 9)")
    job.submit()
    assert job.wait_for("done", "failed") == "done", job.log
    assert job.attempts == ["retry:137"]


def test_the_same_failure_again_and_again_ends_the_job(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = CountingJob(
        cluster, tmp_path, trouble="os.kill(os.getppid(), 9); os.kill(os.getpid(), 9)", max_retries=1
    )
    job.submit()
    assert job.wait_for("done", "failed") == "failed", job.log
    assert job.attempts == ["retry:137"]
    assert "without a new checkpoint: 2" in job.log


def test_an_error_of_the_program_ends_the_job(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = CountingJob(cluster, tmp_path, trouble="sys.exit(3)")
    job.submit()
    assert job.wait_for("done", "failed") == "failed"
    assert job.attempts == []
    assert cluster.job(job.id)["ExitCode"] == "3:0"


def test_a_dead_worker_does_not_end_the_step(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = CountingJob(cluster, tmp_path, tasks="stream", trouble="if rank == 1: os.kill(os.getpid(), 9)")
    job.submit()
    assert job.wait_for("done", "failed") == "done", job.log
    assert job.attempts == []
    assert not (job.model_dir / "train.1.finished").exists()


def test_a_dead_coordinator_does(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = CountingJob(
        cluster,
        tmp_path,
        tasks="stream",
        trouble="if rank == 0: os.kill(os.getpid(), 9)",
        max_retries=0,
    )
    job.submit()
    assert job.wait_for("done", "failed") == "failed", job.log
    assert "status 137" in job.log


def test_preemption(cluster: SlurmCluster, tmp_path: Path) -> None:
    node = cluster.names[0]
    asked = Resources(
        partition="low",
        ntasks=2,
        cpus_per_task=1,
        minutes=20,
        grace_seconds=30,
        flags=(f"--nodelist={node}",),
    )
    job = CountingJob(cluster, tmp_path, resources=asked, max_retries=0)  # it is no failure, however often
    job.submit()
    job.wait_at(5)
    high = cluster.submit(
        "-p", "high", "--exclusive", f"--nodelist={node}", "--output=/dev/null", "--wrap", "true"
    )
    assert job.wait_for("done", "failed") == "done", job.log
    assert job.attempts == ["requeue:preempted"]
    cluster.wait_state(high, {"COMPLETED"})


def test_a_lost_node(cluster: SlurmCluster, tmp_path: Path) -> None:
    asked = Resources(nodes=2, ntasks=2, minutes=20, flags=(f"--nodelist={','.join(cluster.names[2:4])}",))
    job = CountingJob(cluster, tmp_path, resources=asked)
    job.submit()
    job.wait_at(5)
    cluster.node_down(cluster.names[3])
    job.wait_for("requeued")
    cluster.node_up(cluster.names[3])
    assert job.wait_for("done", "failed") == "done", job.log
    assert job.attempts[0] == "node"


def test_the_sdk_s_chain(cluster: SlurmCluster, tmp_path: Path) -> None:
    """With stand-ins for cslc and cs_python, found as at the site: by SDK_INSTALL_PATH, and CS_IP_ADDR from the site."""
    sdk = tmp_path / "my sdk"
    sdk.mkdir()
    for program in ("cslc", "cs_python"):
        (sdk / program).write_text(f'#!/bin/sh\necho {program} "$@" >>said; pwd >>said\n')
        (sdk / program).chmod(0o755)
    job = site_job("neocortex", "CSX", tmp_path, hpc=True)
    asked = replace(job.resources, account=None)
    job = replace(job, environment={"SDK_INSTALL_PATH": str(sdk)}, modules=(), resources=asked)
    folder = job.folder
    folder.mkdir(parents=True)
    (folder / "job.sh").write_text(render_job(job))
    (folder / "task.sh").write_text(render_task(job))
    (folder / "task.sh").chmod(0o700)
    number = cluster.submit(folder / "job.sh", cwd=tmp_path)
    ended = cluster.wait_state(number, {"COMPLETED", "FAILED"})
    assert ended == "COMPLETED", (folder / "log.txt").read_text()
    address = cluster.run("srun", "--export=ALL", "printenv", "CS_IP_ADDR").stdout.strip()
    assert (job.workdir / "said").read_text().splitlines() == [
        "cslc --arch=wse2 ./layout.csl --fabric-dims=757,996 --fabric-offsets=1,1 --params=M:4 -o my out",
        str(job.workdir),
        f"cs_python run.py --name my out --cmaddr {address}:9000 --fabdims 757,996",
        str(job.workdir),
    ]
