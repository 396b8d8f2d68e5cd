"""The list of a user's jobs, one small file each, outside of every project; and their states: the scheduler is asked first, and the job's folder where it has forgotten the job."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from portwright.errors import UserError, suggest
from portwright.job.atomic import atomic_write_text, explain_os_error
from portwright.launch import local, slurm
from portwright.launch.job import MANIFEST, SCHEDULER_ID
from portwright.launch.queue_words import explain_word
from portwright.launch.slurm import ENDED, SlurmState


@dataclass(frozen=True)
class Entry:
    """A job as it was submitted, and how it ended once that is known."""

    name: str
    folder: Path
    site: str
    scheduler: str  # slurm, csctl or none
    scheduler_id: str = ""  # empty: the scheduler did not accept it
    submitted: str = ""  # ISO 8601, with the zone
    model_dir: str = ""
    title: str = ""  # the subject as it was given
    error: str = ""  # why it was not accepted
    ended: str = ""  # done, failed or cancelled; kept here, since schedulers forget their jobs
    status: int | None = None  # of an ended one
    reason: str = ""  # why it ended, where its scheduler gave a reason

    @property
    def was_taken(self) -> bool:
        return bool(self.scheduler_id)


_ENTRY = TypeAdapter(Entry)


def registry_folder() -> Path:
    """XDG_STATE_HOME/portwright/jobs."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser().absolute() / "portwright" / "jobs"


def write_entry(entry: Entry) -> None:
    """Writes a job's file, new or changed."""
    path = registry_folder() / f"{entry.name}.json"
    _make_folder(path.parent)
    values = {**asdict(entry), "folder": str(entry.folder)}
    atomic_write_text(path, json.dumps(values, indent=2) + "\n")


def note_end(entry: Entry, state: str, status: int | None, reason: str = "") -> Entry:
    """Writes down how a job ended, and why."""
    ended = replace(entry, ended=state, status=status, reason=reason)
    if (registry_folder() / f"{entry.name}.json").is_file():
        write_entry(ended)
    return ended


def read_entries() -> list[Entry]:
    """All jobs, the newest last; damaged files are left out."""
    folder = registry_folder()
    try:
        paths = sorted(folder.glob("*.json"))
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error}.", "Mend that folder.") from error
    found = [_with_restart(_with_newest_id(entry)) for path in paths if (entry := _read(path)) is not None]
    return sorted(found, key=lambda entry: (entry.submitted, entry.name))


def names() -> set[str]:
    return {path.stem for path in registry_folder().glob("*.json")}


def find_entry(text: str) -> Entry:
    """The job that `text` names: by its name, by the scheduler's id, or by its folder."""
    if not text.strip():
        raise UserError("the job's name is empty.", "Give a name that 'portwright jobs --all' lists.")
    entries = read_entries()
    named = [entry for entry in entries if entry.name == text]
    # Clusters may have the same ids: takes the newest job.
    if found := named or [entry for entry in entries if text.isdecimal() and entry.scheduler_id == text]:
        return found[-1]
    folder = Path(text).expanduser()
    if folder.joinpath(MANIFEST).is_file():
        folder = folder.resolve()
        listed = [entry for entry in entries if entry.folder == folder]
        return listed[-1] if listed else _entry_of_folder(folder)
    if folder.is_dir():
        raise UserError(f"'{text}' is a folder, but not that of a job.", "Give one with a manifest.json.")
    known = [entry.name for entry in entries]
    cure = suggest(text, known) if known else "No job has been submitted from here."
    raise UserError(f"there is no job '{text}'.", cure)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Keeps another `submit` of this user out, so that two do not take the same name or the same model_dir."""
    folder = registry_folder()
    _make_folder(folder)
    path = folder / ".lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise explain_os_error(error, path) from error
    try:
        # Without locks on the file system, write_folder still gives a name to one job alone.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _entry_of_folder(folder: Path) -> Entry:
    """The entry of a job that another machine or user submitted, made from its folder."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        entry = Entry(
            name=str(manifest["name"]),
            folder=folder,
            site=str(manifest["site"]),
            scheduler=str(manifest["scheduler"]),
            submitted=str(manifest["time"]),
            model_dir=str(manifest["model_dir"]),
            title=str(manifest.get("subject", "")),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not that of a job: {error!r}.", "Give another job.") from error
    with contextlib.suppress(OSError):
        entry = replace(entry, scheduler_id=folder.joinpath(SCHEDULER_ID).read_text().strip())
    return entry


def _read(path: Path) -> Entry | None:
    try:
        text = path.read_bytes()
        # No path has a NUL byte in it.
        return None if rb"\u0000" in text else _ENTRY.validate_json(text, strict=True)
    except (OSError, ValueError):
        return None


def _with_newest_id(entry: Entry) -> Entry:
    """Replaces the id where job.sh was submitted again by hand; the script notes the new id in its folder."""
    if entry.scheduler != "slurm":
        return entry
    try:
        noted = entry.folder.joinpath(SCHEDULER_ID).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return entry
    if not noted.isdecimal() or noted == entry.scheduler_id:
        return entry
    return replace(entry, scheduler_id=noted, ended="", status=None, reason="", error="")


def _with_restart(entry: Entry) -> Entry:
    """Clears the noted end of a job without a scheduler that was started again by hand."""
    if entry.scheduler == "slurm" or not entry.ended:
        return entry
    try:
        noted_ns = registry_folder().joinpath(f"{entry.name}.json").stat().st_mtime_ns
    except OSError:
        return entry
    if not local.has_gone_on(entry.folder, entry.ended, noted_ns):
        return entry
    return replace(entry, ended="", status=None, reason="")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise explain_os_error(error, folder) from error


_SETTLED_SECONDS = 60.0
_NUM_ENDED_LISTED = 5


def ask_state(entry: Entry) -> SlurmState:
    """The state of a job; its end is written into the registry, since schedulers forget."""
    if entry.ended or not entry.was_taken:
        return _known_without_asking(entry)
    if entry.scheduler == "slurm":
        state = judge(entry.folder, slurm.job_state(entry.scheduler_id))
    else:
        state = local.job_state(entry.folder)
    if state.state == "unknown" and not entry.folder.is_dir():
        state = SlurmState("failed", reason=f"its folder {entry.folder} is gone")
    return _noted(entry, state)


def ask_states(entries: Sequence[Entry]) -> dict[str, SlurmState]:
    """The states of several jobs, by name, with as few calls of the scheduler as possible."""
    waiting = [e.scheduler_id for e in entries if e.scheduler == "slurm" and e.was_taken and not e.ended]
    in_queue = slurm.job_states(waiting)
    found = {}
    for entry in entries:
        state = in_queue.get(entry.scheduler_id) if entry.scheduler == "slurm" and not entry.ended else None
        # The queue does not tell how a job ended.
        known = state is not None and not state.is_ended and state.state != "unknown"
        found[entry.name] = state if state is not None and known else ask_state(entry)
    return found


def list_entries(*, everything: bool) -> tuple[list[Entry], int]:
    """Jobs to list, the newest last, and how many are left out: of ended jobs only the newest few are listed."""
    entries = [_adopt_if_answered(entry) for entry in read_entries()]
    over = [entry for entry in entries if entry.ended or entry.error]
    hidden = [] if everything else over[: max(0, len(over) - _NUM_ENDED_LISTED)]
    return [entry for entry in entries if entry not in hidden], len(hidden)


def judge(folder: Path, state: SlurmState) -> SlurmState:
    """SLURM's state of a job, completed by the state file that the job's script writes."""
    said = local.read_state(folder)
    status = said.get("status")
    status = status if isinstance(status, int) else None
    for ending in ENDED:
        if said.get("state") != ending:
            continue
        if state.state == "unknown":
            return replace(state, state=ending, exit=status)
        if state.state == ending and status is not None:
            return replace(state, exit=status)
    if state.state == "unknown":
        last = (
            f"its script's last word was '{said['state']}'" if "state" in said else "its script never began"
        )
        return replace(state, reason=f"SLURM does not know it any more, and {last}")
    return state


def adopt(entry: Entry) -> Entry:
    """Finds the id of a job whose submission broke off before sbatch answered, if it was accepted."""
    if entry.was_taken or entry.error or entry.ended:
        return entry
    found = slurm.find_by_name(entry.name) if entry.scheduler == "slurm" else local.find_process(entry.folder)
    if found is None:
        return entry
    taken = replace(entry, scheduler_id=found)
    write_entry(taken)
    return taken


def _adopt_if_answered(entry: Entry) -> Entry:
    try:
        return adopt(entry)
    except (slurm.SlurmError, slurm.NoAnswerError):  # shown where its state is asked for
        return entry


def _known_without_asking(entry: Entry) -> SlurmState:
    for ending in ENDED:
        if entry.ended == ending:
            return SlurmState(ending, exit=entry.status, reason=entry.reason)
    return SlurmState("failed", reason=entry.error or "its submission was cut off")


def _noted(entry: Entry, state: SlurmState) -> SlurmState:
    """Writes down a real end: between two attempts SLURM calls a job failed for a moment."""
    is_sure = (
        state.word in ("", "COMPLETED", "CANCELLED")
        or local.read_state(entry.folder).get("state") == state.state
    )
    if state.is_ended and (is_sure or state.ended_seconds > _SETTLED_SECONDS):
        # The meaning of SLURM's state word is kept; its reason is no sentence either.
        reason = explain_word(state.word) if state.word else state.reason
        note_end(entry, state.state, state.exit, reason)
    return state


def status_of(state: SlurmState) -> int:
    """The exit status of a command that followed a job to its end: the job's own."""
    if state.state == "done":
        return 0
    return state.exit if state.exit is not None and 0 < state.exit < 256 else 1
