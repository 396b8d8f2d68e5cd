"""Checks the time limit against the site, the partition, the steps that are left, and the time to save."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from portwright.errors import UserError
from portwright.launch.findings import Finding, note, refusal, warning
from portwright.launch.job import Job
from portwright.launch.run_files import CheckpointSeen, MetricsFile, last_step_of, list_seen, runconfig_of
from portwright.launch.slurm import Partition
from portwright.launch.times import slurm_time

_TRAINING = ("train", "train_and_eval")
_SHORTEST_GRACE_SECONDS = 30


def check_time(job: Job, params: Mapping[str, Any], partition: Partition | None) -> Iterator[Finding]:
    yield from _check_limits(job, partition)
    yield from _check_estimate(job, params)
    yield from _check_grace(job)


def _check_limits(job: Job, partition: Partition | None) -> Iterator[Finding]:
    asked = job.resources
    if asked.minutes is None:
        return
    limits = [(job.site.name, job.site.job.max_minutes)]
    if partition is not None:
        limits.append((f"the partition {partition.name}", partition.max_minutes))
    for who, most in limits:
        if most is not None and asked.minutes > most:
            yield refusal(
                f"{who} takes jobs of at most {slurm_time(most)}, received --time {slurm_time(asked.minutes)}.",
                f"Give --time {slurm_time(most)} or less: the job saves before the limit, requeues and resumes.",
            )
            break
    if asked.minutes * 60 <= asked.grace_seconds:
        yield refusal(
            f"the job would be asked to save as soon as it begins: {asked.grace_seconds} s before a limit of {slurm_time(asked.minutes)}.",
            "Give a longer --time, or a shorter grace_seconds in the site's file.",
        )


def _check_estimate(job: Job, params: Mapping[str, Any]) -> Iterator[Finding]:
    if not any(step.name in _TRAINING for step in job.steps):
        return
    rate, reason = _measured_rate(job.model_dir)
    if rate is None:
        yield note(f"how long training takes is not known: {reason}.")
        return
    done = max((seen.step for seen in _seen(job.model_dir)), default=0)
    runconfig = runconfig_of(params)
    end = last_step_of(runconfig, done)
    if end is None:
        yield note("how long training takes is not known: params do not say how many steps it has.")
        return
    left = end - done
    if left <= 0:
        yield note(f"0 steps are left: the newest checkpoint is of step {done}.")
        return
    seconds = left / rate
    told = f"{left} steps are left, at {rate:.3g} steps/s of the earlier run in {job.model_dir} {_duration(seconds)}"
    limit = job.resources.minutes
    if limit is None:
        yield note(f"{told}.")
        return
    usable = limit * 60 - job.resources.grace_seconds
    if seconds <= usable:
        yield note(f"{told}, within the limit of {slurm_time(limit)}.")
    elif runconfig.get("checkpoint_steps", 1) == 0:
        yield refusal(
            f"{told}, longer than the limit of {slurm_time(limit)}, and checkpoint_steps is 0, so that nothing is saved.",
            "Set runconfig.checkpoint_steps, or give a longer --time.",
        )
    elif usable > 0:
        requeues = math.ceil(seconds / usable) - 1
        yield note(
            f"{told}, longer than the limit of {slurm_time(limit)}: the job saves, requeues and resumes about {requeues} time(s)."
        )


def _check_grace(job: Job) -> Iterator[Finding]:
    grace = job.resources.grace_seconds
    if job.site.scheduler == "slurm" and grace < _SHORTEST_GRACE_SECONDS:
        yield warning(
            f"the job has {grace} s to save before its limit, and SLURM's signal may come half a minute late.",
            "Give grace_seconds of 60 or more in the site's file.",
        )
    longest = max((_seconds_of_save(seen) for seen in _seen(job.model_dir)), default=0.0)
    if longest * 1.5 > max(grace - 20, grace / 2):  # the part that job.sh leaves to the tasks
        yield warning(
            f"a checkpoint took at least {longest:.0f} s to write before, and the job has {grace} s to save before its limit.",
            f"Give grace_seconds of {math.ceil(longest * 2 + 40)} or more in the site's file.",
        )


def _measured_rate(model_dir: Path) -> tuple[float | None, str]:
    try:
        rate = MetricsFile(model_dir / "train" / "metrics.jsonl").read().steps_per_second()
    except OSError as error:
        return None, f"{model_dir / 'train' / 'metrics.jsonl'} cannot be read ({error.strerror})"
    if rate is None or not math.isfinite(rate) or rate <= 0:
        return None, f"no earlier run in {model_dir} has measured its speed"
    return rate, ""


def _seen(model_dir: Path) -> list[CheckpointSeen]:
    try:
        return list_seen(model_dir)
    except OSError:  # check_paths reports it
        return []


def _seconds_of_save(seen: CheckpointSeen) -> float:
    """Seconds from a checkpoint's first file to its last: saving took at least so long."""
    path = Path(seen.path)
    try:
        files = list(path.iterdir()) if path.is_dir() else list(path.parent.glob(f"{path.name}.*"))
        times = [file.stat().st_mtime for file in files]
    except OSError:
        return 0.0
    return max(times) - min(times) if times else 0.0


def _duration(seconds: float) -> str:
    minutes = max(1, math.ceil(seconds / 60))
    try:
        return f"about {slurm_time(minutes)}"
    except UserError:
        return f"about {minutes} minutes"
