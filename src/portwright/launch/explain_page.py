"""What `portwright explain-log` prints."""

from __future__ import annotations

from pathlib import Path

from portwright.errors import UserError
from portwright.launch.explain import Explanation, LogReport

LOG_FILE = "log.txt"
_SHOWN_FOLLOWERS = 3


def find_log(text: str) -> Path:
    """The log that is meant: a file, or that of a job."""
    path = Path(text).expanduser()
    try:
        if path.is_file() or path.is_fifo():
            return path
        if path.joinpath(LOG_FILE).is_file():
            return path / LOG_FILE
    except OSError as error:  # a name that is too long
        raise UserError(
            f"'{text[:200]}' is no path: {error.strerror}.", "Give a job, a log file, or -."
        ) from error
    from portwright.launch.registry import find_entry

    try:
        entry = find_entry(text)
    except UserError as error:
        raise UserError(f"'{text}' is neither a file nor a job: {error.message}", error.cure) from error
    found = entry.folder / LOG_FILE
    if not found.is_file():
        raise UserError(
            f"the job {entry.name} has no log yet ({found}).",
            "It has not begun, or its folder was removed; see 'portwright jobs'.",
        )
    return found


def write_report(report: LogReport, name: str) -> str:
    """The report as a person reads it: why it ended, then what came before, then what is worth knowing."""
    errors = [found for found in report.explanations if found.level == "error"]
    notes = [found for found in report.explanations if found.level == "note"]
    counted = f"{name}: {report.num_lines} line{'s' * (report.num_lines != 1)}"
    lines: list[str] = []
    if errors:
        last = (errors[-1].step, errors[-1].attempt)
        final = [found for found in errors if (found.step, found.attempt) == last]
        earlier = [found for found in errors if (found.step, found.attempt) != last]
        lines += [f"{counted}. What went wrong{_where(final[0])}:", *_whole(final[0])]
        if final[1:]:
            lines += ["", "Said after it, and perhaps because of it:", *_briefs(final[1:])]
        if earlier:
            lines += ["", "In runs before that:", *_briefs(earlier)]
    elif report.is_done:
        lines += [f"{counted}. All steps of the job ended well."]
    elif not report.num_lines:
        lines += [f"{name} is empty: the job has written nothing."]
        lines += ["Look whether it has begun ('portwright jobs'), and whether its log is another file."]
    else:
        lines += [f"{counted}. Nothing in it is known as an error.", *_look_at(report)]
    if notes:
        lines += ["", "Worth knowing:", *_briefs(notes)]
    return "\n".join(lines)


def _whole(found: Explanation) -> list[str]:
    lines = [
        f"  line {found.line}: {found.text}" + (f"  ({found.count} such lines)" if found.count > 1 else ""),
        f"  {found.meaning}",
        f"  Cure: {found.cure}",
        f"  Known from: {found.source}",
    ]
    if found.followers:
        shown = found.followers[:_SHOWN_FOLLOWERS]
        more = found.num_followers - len(shown)
        lines.append("  What came of it, or with it:")
        lines += [f"    line {follower.line}: {follower.text}" for follower in shown]
        lines += [f"    and {more} more"] if more > 0 else []
    return lines


def _briefs(explanations: list[Explanation]) -> list[str]:
    lines = []
    for found in explanations:
        lines.append(f"  line {found.line}{_where(found)}: {found.text}")
        lines.append(f"    {found.meaning} {found.cure}")
    return lines


def _where(found: Explanation) -> str:
    if not found.step:
        return ""
    return f" in {found.step}" + (f", attempt {found.attempt}" if found.attempt > 1 else "")


def _look_at(report: LogReport) -> list[str]:
    return [
        "Look at the last lines, and upwards from them for the first that says error, failed or Traceback:",
        *(f"  {text}" for text in report.tail),
    ]
