"""Every shipped site's scripts, held against shellcheck, bash and sbatch itself; and what scripts do on a real SLURM."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from apptainer import UnavailableError, apptainer_folder
from image import image_folder
from script_jobs import CountingJob, ask
from slurm_cluster import SlurmCluster

from portwright.launch.container import make_container
from portwright.launch.hpc import hpc_steps
from portwright.launch.job import Container, Job, Resources, Step
from portwright.launch.script import render_job
from portwright.launch.site_files import SHIPPED, load_site
from portwright.launch.task_script import render_task

pytestmark = pytest.mark.timeout(600)

ODD = 'it\'s a "job" $HOME %j \\ #1 `id` ü'
ODD_WORDS = (ODD, "", "two\nlines", "$(touch hacked)", "*")
Runs = dict[str, "Future[CountingJob | None]"]
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
    odd = (
        odd and load_site(name).for_target(target).container.kind != "singularity"
    )  # whose old releases take no quotes
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


def odd_names(cluster: SlurmCluster, tmp_path: Path) -> CountingJob:
    root = tmp_path / ODD
    job = CountingJob(
        cluster,
        root,
        goal=3,
        words=ODD_WORDS,
        folder=root / f"jobs {ODD}",
        passed=("TOKEN",),
        environment={"PLAIN": ODD},
    )
    job.submit("--export=ALL,TOKEN=planted-value")
    return job


def time_limit(cluster: SlurmCluster, tmp_path: Path) -> CountingJob:
    job = CountingJob(cluster, tmp_path, goal=250, resources=ask(cluster, 1, 2, minutes=1))
    job.submit()
    return job


def told_to_end(
    cluster: SlurmCluster, tmp_path: Path, container: Container | None = None, *flags: str
) -> CountingJob:
    """TERM reaches the programs, in a container too; they save, and the job is requeued."""
    # Half a minute: on a busy machine SLURM takes ten seconds to answer, and the step must still be there.
    job = CountingJob(cluster, tmp_path, container=container, goal=150)
    job.submit(*flags)
    job.wait_at(5)

    def is_told() -> bool:
        """A busy SLURM may list a step and refuse the signal to it, or refuse it after some tasks had it."""
        listed = cluster.run("squeue", "--noheader", "--steps", f"--jobs={job.id}", "--format=%i").stdout
        steps = [step for step in listed.split() if step.split(".")[1].isdecimal()]
        return "saved at" in job.log or any(
            cluster.run("scancel", "--signal=TERM", step, check=False).returncode == 0 for step in steps
        )

    cluster.wait(is_told, 25, lambda: job.log)
    return job


def told_in_ch_run(cluster: SlurmCluster, tmp_path: Path) -> CountingJob:
    return told_to_end(cluster, tmp_path, _container("ch-run", tmp_path))


def told_in_apptainer(cluster: SlurmCluster, tmp_path: Path) -> CountingJob | None:
    try:
        programs = apptainer_folder()
    except UnavailableError:
        return None
    flag = f"--export=ALL,APPTAINER_NO_PRIVS=1,PATH={programs}:/usr/bin:/bin"
    return told_to_end(cluster, tmp_path, _container("apptainer", tmp_path), flag)


def _container(kind: str, root: Path) -> Container | None:
    site = load_site("slurm-gpu").for_target("CPU")
    return make_container(site, image=str(image_folder()), kind=kind, paths=[root])


def cancelled(cluster: SlurmCluster, tmp_path: Path) -> CountingJob:
    job = CountingJob(cluster, tmp_path)
    job.submit()
    job.wait_at(5)
    cluster.run("scancel", str(job.id))
    return job


def killed_task(cluster: SlurmCluster, tmp_path: Path) -> CountingJob:
    job = CountingJob(cluster, tmp_path, trouble="if rank == 1 and not first: os.kill(os.getpid(), 9)")
    job.submit()
    return job


def killed_each_time(cluster: SlurmCluster, tmp_path: Path) -> CountingJob:
    both = "if rank == 0: os.kill(os.getppid(), 9); os.kill(os.getpid(), 9)"  # task.sh too
    job = CountingJob(cluster, tmp_path, trouble=both, max_retries=1)
    job.submit()
    return job


def own_error(cluster: SlurmCluster, tmp_path: Path) -> CountingJob:
    job = CountingJob(cluster, tmp_path, trouble="sys.exit(3)")
    job.submit()
    return job


def dead_worker(cluster: SlurmCluster, tmp_path: Path) -> CountingJob:
    job = CountingJob(cluster, tmp_path, tasks="stream", trouble="if rank == 1: os.kill(os.getpid(), 9)")
    job.submit()
    return job


def dead_coordinator(cluster: SlurmCluster, tmp_path: Path) -> CountingJob:
    """With its task.sh, which cannot tell its status then; the workers end well."""
    both = "if rank == 0: os.kill(os.getppid(), 9); os.kill(os.getpid(), 9)"
    job = CountingJob(cluster, tmp_path, tasks="stream", trouble=both, max_retries=0)
    job.submit()
    return job


def preempted(cluster: SlurmCluster, tmp_path: Path) -> CountingJob:
    asked = ask(cluster, 3, partition="low")
    job = CountingJob(cluster, tmp_path, resources=asked, max_retries=0)  # it is no failure, however often
    job.submit()
    job.wait_at(5)
    cluster.submit("-p", "high", "--exclusive", *asked.flags, "--output=/dev/null", "--wrap", "true")
    return job


def lost_node(cluster: SlurmCluster, tmp_path: Path) -> CountingJob:
    job = CountingJob(cluster, tmp_path, resources=ask(cluster, 1, 4))
    job.submit()
    job.wait_at(5)
    cluster.node_down(cluster.names[3])
    cluster.wait(lambda: bool(job.attempts), 120, lambda: job.log)
    cluster.node_up(cluster.names[3])
    return job


BEHAVIOURS = (
    *(odd_names, time_limit, told_to_end, told_in_ch_run, told_in_apptainer, cancelled, killed_task),
    *(killed_each_time, own_error, dead_worker, dead_coordinator, preempted, lost_node),
)


@pytest.fixture(scope="module")
def runs(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """All at the same time, as most of each is waiting."""
    _container("ch-run", tmp_path_factory.mktemp("image"))
    with ThreadPoolExecutor(len(BEHAVIOURS)) as pool:
        runs = {
            behaviour.__name__: pool.submit(behaviour, cluster, tmp_path_factory.mktemp(behaviour.__name__))
            for behaviour in BEHAVIOURS
        }
        yield runs


def ended(runs: Runs, name: str) -> CountingJob:
    """The job of this name, once it has ended."""
    job = runs[name].result(timeout=300)
    if job is None:
        pytest.skip("no apptainer")
    job.wait_for("done", "failed", "cancelled")
    return job


def test_odd_names_everywhere(runs: Runs) -> None:
    job = ended(runs, "odd_names")
    assert job.state == "done", job.log
    assert "All steps are done" in job.log  # in the file that --output names
    for rank in range(3):
        told = job.told("train", rank)[0]
        assert told["argv"] == list(ODD_WORDS)
        assert told["cwd"] == str(job.job.workdir)
        assert told["env"]["PLAIN"] == ODD
        assert told["env"]["TOKEN"] == "planted-value"
        assert int(told["env"]["RANK"]) == rank
        assert told["env"]["WORLD_SIZE"] == "3"
        hosts = told["env"]["PORTWRIGHT_TASK_HOSTS"].split(",")
        assert told["env"]["MASTER_ADDR"] == hosts[0]
        assert int(told["env"]["LOCAL_WORLD_SIZE"]) == hosts.count(hosts[rank])
        assert (len(hosts), len(set(hosts))) == (3, 2)
    assert not list(job.job.workdir.rglob("hacked"))
    for path in job.folder.rglob("*"):
        assert not path.is_file() or "planted-value" not in path.read_text(errors="replace"), path


def test_the_time_limit(runs: Runs) -> None:
    job = ended(runs, "time_limit")
    assert job.state == "done", job.log
    assert set(job.attempts) == {"requeue:signal"}
    assert len(job.told("validate", 0)) == 1
    assert len(job.told("train", 0)) == 1 + len(job.attempts)
    assert job.log.count("saved at") == 3 * len(job.attempts)
    ports = [told["env"]["MASTER_PORT"] for told in job.told("train", 0)]
    assert len(set(ports)) == len(ports)


@pytest.mark.parametrize("name", ["told_to_end", "told_in_ch_run", "told_in_apptainer"])
def test_a_step_that_is_told_to_end_is_resumed(runs: Runs, name: str) -> None:
    job = ended(runs, name)
    assert job.state == "done", job.log
    assert job.attempts == ["requeue:85"]
    assert job.log.count("saved at") == 3


@pytest.mark.parametrize(
    ("name", "state", "attempts", "says"),
    [
        ("killed_task", "done", ["retry:137"], "requeued"),
        ("killed_each_time", "failed", ["retry:137"], "without a new checkpoint: 2"),
        ("own_error", "failed", [], "train failed with status 3"),
        ("dead_worker", "done", [], "All steps are done"),
        ("dead_coordinator", "failed", [], "status 137"),
        ("preempted", "done", ["requeue:preempted"], "requeued"),
        ("lost_node", "done", ["node"], "back into the queue"),
        ("cancelled", "cancelled", [], "The job was cancelled"),
    ],
)
def test_what_an_end_means(runs: Runs, name: str, state: str, attempts: list[str], says: str) -> None:
    job = ended(runs, name)
    assert job.state == state, job.log
    assert job.attempts == attempts
    assert says in job.log


def test_slurm_says_the_same(cluster: SlurmCluster, runs: Runs) -> None:
    assert cluster.job(ended(runs, "own_error").id)["ExitCode"] == "3:0"
    assert cluster.state(ended(runs, "cancelled").id) == "CANCELLED"
    assert cluster.state(ended(runs, "preempted").id) == "COMPLETED"


def test_a_partition_that_cancels_what_it_preempts(cluster: SlurmCluster, runs: Runs, tmp_path: Path) -> None:
    ended(runs, "preempted")  # on the same node
    asked = ask(cluster, 3, partition="cancelled")
    job = CountingJob(cluster, tmp_path, resources=asked, max_retries=0)
    job.submit()
    job.wait_at(5)
    cluster.submit("-p", "high", "--exclusive", *asked.flags, "--output=/dev/null", "--wrap", "true")
    job.wait_for("done", "failed", "cancelled")
    assert (job.state, job.attempts) == ("done", ["requeue:preempted"]), job.log


def test_a_script_that_is_handed_over_by_hand(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = CountingJob(cluster, tmp_path)
    job.submit()
    job.wait_at(5)
    first = job.id
    second = cluster.submit(job.folder / "job.sh", cwd=tmp_path)  # while the first one runs
    cluster.wait_state(second, {"FAILED"})
    assert f"the job {first} was started from" in job.log
    assert cluster.state(first) == "RUNNING"
    cluster.run("scancel", str(first))
    job.wait_for("cancelled")
    job.submit()
    job.wait_for("done", "failed")
    assert job.state == "done", job.log
    assert len(job.told("validate", 0)) == 1  # which was done


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
