"""Checks that the disk and the user's quota have room for the next checkpoints."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.launch.check_paths import find_mount, nearest_existing
from portwright.launch.findings import Finding, Run, note, refusal, warning
from portwright.launch.job import Job
from portwright.launch.run_files import list_seen, runconfig_of

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
