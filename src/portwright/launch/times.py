"""The current time, and SLURM's forms of times: 30, 90:00, 4:00:00, 2-12, 2-12:30, 2-00:00:00."""

from __future__ import annotations

import datetime
import re

from portwright.errors import UserError
from portwright.job.problems import show

# Each form with the seconds that its numbers stand for: with two colons a time begins with hours, with one with minutes.
_FORMS: tuple[tuple[re.Pattern[str], tuple[int, ...]], ...] = (
    (re.compile(r"(\d+)"), (60,)),
    (re.compile(r"(\d+):(\d+)"), (60, 1)),
    (re.compile(r"(\d+):(\d+):(\d+)"), (3600, 60, 1)),
    (re.compile(r"(\d+)-(\d+)"), (86400, 3600)),
    (re.compile(r"(\d+)-(\d+):(\d+)"), (86400, 3600, 60)),
    (re.compile(r"(\d+)-(\d+):(\d+):(\d+)"), (86400, 3600, 60, 1)),
)
_PRINTED = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
_LONGEST_MINUTES = 365 * 24 * 60  # SLURM counts minutes in 32 bits; more than a year is a mistake
_FORMS_SAID = (
    "Write minutes (90), hours:minutes:seconds (4:00:00) or days-hours:minutes:seconds (2-00:00:00)."
)


def minutes_of(text: str) -> int:
    """The minutes of a SLURM time; remaining seconds count as one more minute, as in SLURM.

    As for SLURM, 0:90:00 is an hour and a half, and 4:00 is four minutes.
    """
    given = text.strip()
    if not given.isascii():
        raise UserError(f"expected a time, received {show(text)}.", _FORMS_SAID)
    found = [(match.groups(), units) for form, units in _FORMS if (match := form.fullmatch(given))]
    if not found:
        raise UserError(f"expected a time, received {show(text)}.", _cure(given))
    seconds = sum(int(part[:12]) * unit for part, unit in zip(*found[0], strict=True))
    minutes = -(-seconds // 60)
    if minutes == 0:
        raise UserError(f"expected a time above zero, received {show(text)}.", "Give at least a minute.")
    if minutes > _LONGEST_MINUTES:
        raise UserError(f"expected a time of at most a year, received {show(text)}.", _FORMS_SAID)
    return minutes


def _cure(given: str) -> str:
    words = re.fullmatch(r"(\d+)\s*(d|h|m|min|days?|hours?|minutes?)", given, re.IGNORECASE)
    if words is not None:
        number, unit = int(words[1][:9]), words[2][0].lower()
        meant = number * {"d": 1440, "h": 60, "m": 1}[unit]
        if 0 < meant <= _LONGEST_MINUTES:
            return f"Did you mean {slurm_time(meant)}? {_FORMS_SAID}"
    if given.lower() in ("unlimited", "infinite"):
        return f"Leave it out where there is no limit. {_FORMS_SAID}"
    return _FORMS_SAID


def slurm_time(minutes: int) -> str:
    """Minutes in the form of an #SBATCH line: 4:00:00, or 2-00:00:00 from a day on."""
    days, rest = divmod(minutes, 1440)
    hours, left = divmod(rest, 60)
    return f"{days}-{hours:02}:{left:02}:00" if days else f"{hours}:{left:02}:00"


def seconds_of(text: str | None) -> int | None:
    """Seconds of a time that SLURM printed: 12:34, 3:12:01 or 1-00:00:00; None for any other text."""
    found = _PRINTED.fullmatch(text or "")
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def now() -> str:
    """The current time in ISO 8601, with the zone."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
