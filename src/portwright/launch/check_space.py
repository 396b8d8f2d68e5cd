"""Checks that the disk and the user's quota have room for the next checkpoints."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.launch.check_paths import find_mount, nearest_existing
from portwright.launch.findings import Finding, Run, note, refusal, warning
from portwright.launch.job import Job
from portwright.launch.run_files import list_seen

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


def check_space(job: Job, params: Mapping[str, Any], run: Run, *, at_site: bool) -> list[Finding]:
    needed, why = _needed_bytes(job.model_dir, params)
    found = [] if needed is not None else [note(f"how much room checkpoints need is not known: {why}.")]
    found += _check_disk(job.model_dir, needed)
    if at_site and job.site.scheduler != "none":
        found += _check_quota(job, needed, run)
    return found


def _needed_bytes(model_dir: Path, params: Mapping[str, Any]) -> tuple[int | None, str]:
    """Bytes that checkpoints will take in addition: the newest one's size for each that is to be kept, and one more, since the oldest is removed last."""
    try:
        seen = list_seen(model_dir)
    except OSError as error:
        return None, f"{model_dir} cannot be read ({error.strerror})"
    if not seen:
        return None, f"{model_dir} has no checkpoint yet"
    runconfig = params.get("runconfig")
    values: Mapping[str, Any] = runconfig if isinstance(runconfig, Mapping) else {}
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


def _check_disk(model_dir: Path, needed: int | None) -> list[Finding]:
    place = nearest_existing(model_dir)
    try:
        disk = os.statvfs(place)
    except OSError as error:
        return [note(f"the room on the disk of '{place}' was not checked: {error.strerror}.")]
    free, where = disk.f_bavail * disk.f_frsize, f"the disk of model_dir '{model_dir}'"
    has = f"has {_say(free)} free"
    if needed is not None and free < needed:
        cure = "Free space, lower runconfig.max_checkpoints, or choose another --model_dir."
        return [refusal(f"{where} {has}, and checkpoints need about {_say(needed)}.", cure)]
    if disk.f_files and disk.f_favail == 0:
        return [
            refusal(f"{where} takes no more files.", "Remove files there, or choose another --model_dir.")
        ]
    if free < _LITTLE_BYTES:
        return [warning(f"{where} has only {_say(free)} free.", "Free space, or choose another --model_dir.")]
    return []


def _check_quota(job: Job, needed: int | None, run: Run) -> list[Finding]:
    words = job.site.storage.quota or ("quota", "-w")
    answer = run(words)
    if answer.status is None:
        return [note(f"your quota was not checked here: {answer.words}.")]
    for quota in parse_quota(answer.out):
        is_that = bool(quota.place) and _is_of(quota.place, job.model_dir)
        where = f" of {quota.place}" if quota.place else ""
        told = f"your quota{where} is {_say(quota.limit_bytes)}, of which {_say(quota.used_bytes)} are used"
        cure = "Remove what is not needed, lower runconfig.max_checkpoints, or choose another --model_dir."
        if is_that and quota.free_bytes < (needed or 1):
            more = f", and checkpoints need about {_say(needed)}" if needed else ""
            return [refusal(f"{told}{more}.", cure)]
        if quota.free_bytes <= 0:
            return [warning(f"{told}.", cure)]
    return []


def parse_quota(text: str) -> list[Quota]:
    """Reads quotas from the output of a site's command: `14.43G used of 1000G` or rows of `quota -w`."""
    found = []
    for line in text.splitlines():
        if row := _ROW.match(line):
            limit = _bytes(row["limit"], row["limit_unit"] or "K") or _bytes(
                row["soft"], row["soft_unit"] or "K"
            )
            if limit:
                found.append(Quota(row["place"], _bytes(row["used"], row["used_unit"] or "K"), limit))
        elif (used := _USED_OF.search(line)) and (used["limit_unit"] or used["used_unit"]):
            place = next((word for word in line.split() if word.startswith("/")), "")
            limit_unit = used["limit_unit"] or used["used_unit"]
            limit = _bytes(used["limit"], limit_unit)
            if limit:
                found.append(Quota(place, _bytes(used["used"], used["used_unit"] or limit_unit), limit))
    return found


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
    mount = find_mount(real)
    return mount is not None and mount.device == place


def _say(count: float) -> str:
    """The size in the units of df and quota."""
    unit = 0
    while count >= 1024 and unit < len(_SHOWN) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.{1 if unit else 0}f} {_SHOWN[unit]}"
