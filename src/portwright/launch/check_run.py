"""Checks that a run fits: into its time limit with the time to save, and with its next checkpoints onto the disk and into the user's quota."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.launch.check_paths import find_mount, nearest_existing
from portwright.launch.findings import Finding, Run, note, refusal, warning
from portwright.launch.job import Job
from portwright.launch.run_files import (
    CheckpointSeen,
    MetricsFile,
    last_step_of,
    list_seen,
    newest_step,
    runconfig_of,
)
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
    done = newest_step(job.model_dir) or 0
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
    told = f"{left} steps are left, at {rate:.3g} steps/s of the earlier run in {job.model_dir} about {slurm_time(max(1, math.ceil(seconds / 60)))}"
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
    longest = 0.0
    with suppress(OSError):  # check_paths reports it
        longest = max(map(_seconds_of_save, list_seen(job.model_dir)), default=0.0)
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


def _seconds_of_save(seen: CheckpointSeen) -> float:
    """Seconds from a checkpoint's first file to its last: saving took at least so long."""
    path = Path(seen.path)
    files = path.iterdir() if path.is_dir() else path.parent.glob(f"{path.name}.*")
    times = [file.stat().st_mtime for file in files]
    return max(times, default=0.0) - min(times, default=0.0)


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_SHOWN = ("B", "KiB", "MiB", "GiB", "TiB")
_LITTLE_BYTES = 1 << 30
_SIZE = r"(?P<{0}>\d[\d.,]*)\s*(?P<{0}_unit>[KMGTP]?)i?B?\b\*?"
_USED_OF = re.compile(
    _SIZE.format("used") + r"\s*(?:used\s*)?(?:of|/|out of)\s*" + _SIZE.format("limit"), re.IGNORECASE
)
_ROW = re.compile(
    r"^\s*(?P<place>/\S+|\S+:/\S*)\s+(?P<used>\d+)(?P<used_unit>[KMGTP]?)\*?\s+(?P<soft>\d+)(?P<soft_unit>[KMGTP]?)\s+(?P<limit>\d+)(?P<limit_unit>[KMGTP]?)"
)


@dataclass(frozen=True)
class Quota:
    place: str  # the path or device that its line names; may be empty
    used_bytes: float
    limit_bytes: float

    @property
    def free_bytes(self) -> float:
        return self.limit_bytes - self.used_bytes


def check_space(job: Job, params: Mapping[str, Any], run: Run, *, at_site: bool) -> Iterator[Finding]:
    needed, why = _needed_bytes(job.model_dir, params)
    if needed is None:
        yield note(f"how much room checkpoints need is not known: {why}.")
    yield from _check_disk(job.model_dir, needed)
    if at_site and job.site.scheduler != "none":
        yield from _check_quota(job, needed, run)


def _needed_bytes(model_dir: Path, params: Mapping[str, Any]) -> tuple[int | None, str]:
    """Bytes that checkpoints will take in addition: the newest one's size for each that is to be kept, and one more, since the oldest is removed last."""
    try:
        seen = list_seen(model_dir)
    except OSError as error:
        return None, f"{model_dir} cannot be read ({error.strerror})"
    if not seen:
        return None, f"{model_dir} has no checkpoint yet"
    values = runconfig_of(params)
    every = values.get("checkpoint_steps", values.get("save_checkpoints_steps", 1000))
    if every == 0:
        return 0, ""
    kept = values.get("max_checkpoints", values.get("keep_checkpoint_max", 5))
    if not kept:  # all
        last = values.get("max_steps")
        if not isinstance(last, int) or not isinstance(every, int):
            return None, "all checkpoints are kept, and nothing says how many there will be"
        kept = math.ceil(last / every)
    if not isinstance(kept, int):
        return None, f"max_checkpoints is {kept!r}"
    return seen[-1].size_bytes * (max(kept - len(seen), 0) + 1), ""


def _check_disk(model_dir: Path, needed: int | None) -> Iterator[Finding]:
    place = nearest_existing(model_dir)
    try:
        disk = os.statvfs(place)
    except OSError as error:
        yield note(f"the room on the disk of '{place}' was not checked: {error.strerror}.")
        return
    free, where = disk.f_bavail * disk.f_frsize, f"the disk of model_dir '{model_dir}'"
    if needed is not None and free < needed:
        cure = "Free space, lower runconfig.max_checkpoints, or choose another --model_dir."
        yield refusal(f"{where} has {_say(free)} free, and checkpoints need about {_say(needed)}.", cure)
    elif disk.f_files and disk.f_favail == 0:
        yield refusal(f"{where} takes no more files.", "Remove files there, or choose another --model_dir.")
    elif free < _LITTLE_BYTES:
        yield warning(f"{where} has only {_say(free)} free.", "Free space, or choose another --model_dir.")


def _check_quota(job: Job, needed: int | None, run: Run) -> Iterator[Finding]:
    """The first quota that is too small."""
    answer = run(job.site.storage.quota or ("quota", "-w"))
    if answer.status is None:
        yield note(f"your quota was not checked here: {answer.words}.")
        return
    for quota in parse_quota(answer.out):
        is_that = _is_of(quota.place, job.model_dir)
        where = f" of {quota.place}" if quota.place else ""
        told = f"your quota{where} is {_say(quota.limit_bytes)}, of which {_say(quota.used_bytes)} are used"
        cure = "Remove what is not needed, lower runconfig.max_checkpoints, or choose another --model_dir."
        if is_that and quota.free_bytes < (needed or 1):
            more = f", and checkpoints need about {_say(needed)}" if needed else ""
            yield refusal(f"{told}{more}.", cure)
            return
        if quota.free_bytes <= 0:
            yield warning(f"{told}.", cure)
            return


def parse_quota(text: str) -> list[Quota]:
    """Reads quotas from the output of a site's command: `14.43G used of 1000G` or rows of `quota -w`."""
    found = []
    for line in text.splitlines():
        if row := _ROW.match(line):
            used, soft, limit = (
                _bytes(row[name], row[f"{name}_unit"] or "K") for name in ("used", "soft", "limit")
            )
            found.append(Quota(row["place"], used, limit or soft))
        elif (said := _USED_OF.search(line)) and (unit := said["limit_unit"] or said["used_unit"]):
            place = next((word for word in line.split() if word.startswith("/")), "")
            used, limit = _bytes(said["used"], said["used_unit"] or unit), _bytes(said["limit"], unit)
            found.append(Quota(place, used, limit))
    return [quota for quota in found if quota.limit_bytes]


def _bytes(number: str, unit: str) -> float:
    try:
        return float(number.replace(",", "").rstrip(".")) * _UNITS[unit.upper()]
    except ValueError:
        return 0.0


def _is_of(place: str, path: Path) -> bool:
    real = Path(os.path.realpath(path))
    if place.startswith("/") and (
        Path(place) in real.parents or Path(place) in path.parents or Path(place) in (real, path)
    ):
        return True
    return bool(place) and find_mount(real)[0] == place


def _say(count: float) -> str:
    """The size in the units of df and quota."""
    unit = 0
    while count >= 1024 and unit < len(_SHOWN) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.{1 if unit else 0}f} {_SHOWN[unit]}"
