"""Checks before the queue: what would fail after hours of waiting is told at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portwright.launch.check_account import check_account
from portwright.launch.check_image import check_container
from portwright.launch.check_paths import check_paths
from portwright.launch.check_probe import check_test_only, probe_node
from portwright.launch.check_resources import check_resources
from portwright.launch.check_space import check_space
from portwright.launch.check_time import check_time
from portwright.launch.findings import Answer, Finding, Run, run_program
from portwright.launch.job import Job
from portwright.launch.partition import read_partitions

__all__ = ["Answer", "Finding", "Run", "check_job", "run_program"]


def check_job(
    job: Job, params: Mapping[str, Any], *, run: Run = run_program, probe: bool = False
) -> list[Finding]:
    """Everything that is known to be wrong with a job, or worth knowing, before it is submitted.

    Where this machine is not the site's (its scheduler does not answer), what only the site can tell is a note.
    `probe` also asks a node, which takes a place in the queue for a moment.
    """
    if job.site.scheduler != "slurm":
        at_site = job.site.scheduler == "none" or run(["csctl", "--version"]).is_good
        found = [] if at_site else [_not_here(job, "csctl does not answer")]
        found += check_time(job, params, None)
        return found + _check_files(job, params, run, at_site=at_site)

    found = []
    partitions, silence = read_partitions(run)
    if partitions is None:
        found.append(_not_here(job, silence))
    found += check_account(job, run, at_site=partitions is not None)
    chosen = None
    if partitions is not None:
        chosen, told = check_resources(job, partitions, run)
        found += told
    found += check_time(job, params, chosen)
    is_refused = any(finding.level == "error" for finding in found)
    found += _check_files(job, params, run, at_site=partitions is not None)
    if partitions is not None and not is_refused:
        found += check_test_only(job, run)
        if probe and not any(finding.level == "error" for finding in found):
            found += probe_node(job, params, run)
    return found


def _check_files(job: Job, params: Mapping[str, Any], run: Run, *, at_site: bool) -> list[Finding]:
    found = check_paths(job, params, at_site=at_site)
    found += check_container(job, run=run, at_site=at_site)
    return found + check_space(job, params, run, at_site=at_site)


def _not_here(job: Job, why: str) -> Finding:
    return Finding(
        "note",
        f"account, partition, devices and limits of {job.site.name} were not checked here: {why}.",
        "Submit on a login node of the site.",
    )
