"""Checks before submission: faults that would show after hours in the queue are told at once."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from portwright.errors import UserError
from portwright.launch.check_paths import check_container, check_paths, nearest_existing, needed_paths
from portwright.launch.check_resources import check_account, check_resources
from portwright.launch.check_run import check_space, check_time
from portwright.launch.explain import explain_text
from portwright.launch.findings import Answer, Finding, Run, note, refusal, run_program, warning
from portwright.launch.job import Job
from portwright.launch.script import render_job
from portwright.launch.slurm import read_partitions
from portwright.launch.task_script import container_of, render_task
from portwright.launch.words import quote

__all__ = ["Answer", "Finding", "Run", "check_job", "run_program"]


def check_job(
    job: Job, params: Mapping[str, Any], *, run: Run = run_program, probe: bool = False
) -> list[Finding]:
    """All findings about a job before it is submitted.

    Where this machine is not the site's (its scheduler does not answer), checks that need the site become notes.
    `probe` also asks a node, which takes a place in the queue for a moment.
    """
    partitions, chosen, silence = None, None, ""
    found: list[Finding] = []
    if job.site.scheduler == "slurm":
        partitions, silence = read_partitions(run)
    elif job.site.scheduler == "csctl" and not run(["csctl", "--version"]).is_good:
        silence = "csctl does not answer"
    at_site = not silence
    if silence:
        what = f"account, partition, devices and limits of {job.site.name} were not checked here: {silence}."
        found.append(note(what, "Submit on a login node of the site."))
    if job.site.scheduler == "slurm":
        found += check_account(job, run, at_site=at_site)
    if partitions is not None:
        chosen, told = check_resources(job, partitions, run)
        found += told
    found += check_time(job, params, chosen)
    is_refused = _has_error(found)
    found += check_paths(job, params, at_site=at_site)
    found += check_container(job, at_site=at_site)
    found += check_space(job, params, run, at_site=at_site)
    if partitions is not None and not is_refused:
        found += _check_test_only(job, run)
        if probe and not _has_error(found):
            found += _probe_node(job, params, run)
    return found


def _has_error(found: list[Finding]) -> bool:
    return any(finding.level == "error" for finding in found)


_START = re.compile(r"to start at (?P<time>\S+) using .* on nodes? (?P<nodes>\S+)")
_PROBE_SECONDS = 180.0
_MARK = "portwright-probe:"
_STEP = "portwright-probe"  # no step of a job: task.sh keeps no record of it
# Each argument is a letter for the test, then the path, so that no name is taken for shell syntax.
_PROBE = f"""
while [ $# -gt 1 ]; do
    [ "-$1" "$2" ] || echo "{_MARK} $1 $2"
    shift 2
done
echo "{_MARK} done"
"""


def _check_test_only(job: Job, run: Run) -> Iterator[Finding]:
    """Has sbatch read the script and say whether and when it would start; nothing is submitted."""
    try:
        text = render_job(job)
    except UserError as error:
        yield refusal(error.message, error.cure)
        return
    with tempfile.TemporaryDirectory(prefix="portwright-") as folder:
        script = Path(folder) / "job.sh"
        script.write_text(text, encoding="utf-8")
        answer = run(["sbatch", "--test-only", str(script)])
    if answer.status is None:
        yield note(f"sbatch --test-only was not asked: {answer.words}.")
    elif not answer.is_good:
        yield _refused("sbatch refuses the job", answer)
    elif start := _START.search(f"{answer.err}\n{answer.out}"):
        yield note(f"SLURM would start it about {start['time']} on {start['nodes']}.")


def _probe_node(job: Job, params: Mapping[str, Any], run: Run) -> Iterator[Finding]:
    """Asks a node of the partition whether it sees the job's paths, and whether the container starts there."""
    asked = job.resources
    srun = ["srun", "--quiet", "--ntasks=1", "--cpus-per-task=1", "--time=2", f"--job-name=probe-{job.name}"]
    srun += [f"--account={asked.account}"] if asked.account else []
    srun += [f"--partition={asked.partition}"] if asked.partition else []
    srun += [f"--immediate={int(_PROBE_SECONDS) - 60}", "--chdir=/"]
    tests = []
    for needed in needed_paths(job, params):
        if needed.use == "read" and needed.path.exists():
            tests += ["r", str(needed.path)]
        elif needed.use == "write":
            tests += ["w", str(nearest_existing(needed.path))]
    if (
        job.container is not None
        and job.container.image.startswith("/")
        and not job.container.images_on_nodes
    ):
        tests += ["r", job.container.image]
    answer = run([*srun, "/bin/sh", "-c", _PROBE, "probe", *tests], timeout_seconds=_PROBE_SECONDS)
    if f"{_MARK} done" not in answer.out:
        if answer.status is None or "Unable to allocate resources" in answer.err:
            yield warning(f"no node could be asked: {answer.words}.", "Submit without --probe.")
        else:
            yield _refused("the probe failed on the node", answer)
        return
    unseen = re.findall(rf"^{_MARK} ([rw]) (.*)$", answer.out, re.MULTILINE)
    for kind, path in unseen:
        cure = "Put it on a file system that the nodes see, with rights for you."
        yield refusal(f"a node cannot {'read' if kind == 'r' else 'write'} '{path}'.", cure)
    if unseen:
        return
    if container_of(job) is None:
        yield note("a node sees all paths of the job.")
        return
    words = ["/bin/bash", "-c", _start_script(job), "task.sh", _STEP, "true"]
    start = run([*srun, *words], timeout_seconds=_PROBE_SECONDS)
    if start.is_good:
        yield note("a node sees all paths of the job, and the container starts there.")
    else:
        yield _refused("the container does not start on a node", start)


def _start_script(job: Job) -> str:
    """job.sh's preparation, then task.sh itself: the container starts here exactly as it does in the job.

    task.sh leaves out binds that the node lacks, such as model_dir before the first start, and makes ch-run's mount points.
    """
    lines = [f"cd -- {quote(job.workdir)} || exit 2"]
    if job.modules:
        lines += [
            "type module >/dev/null 2>&1 || source /etc/profile",
            f"module load {' '.join(quote(name) for name in job.modules)} || exit 2",
        ]
    lines += [f"export {name}={quote(value)}" for name, value in job.environment.items()]
    return "\n".join([*lines, "export PORTWRIGHT_TASK_HOSTS=localhost", render_task(job)])


def _refused(what: str, answer: Answer) -> Finding:
    for first in explain_text(f"{answer.err}\n{answer.out}\n"):
        return refusal(f"{what}: {first.text.rstrip('.')}. {first.meaning}", first.cure)
    said = answer.words or f"status {answer.status}"
    return refusal(f"{what}: {said}.", "See 'man sbatch' for what it names.")
