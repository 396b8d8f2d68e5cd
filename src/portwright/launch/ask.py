"""The state of jobs on any scheduler: it is asked first, and the job's folder where it has forgotten the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from portwright.launch import local, registry, slurm
from portwright.launch.queue_words import explain_word
from portwright.launch.registry import Entry
from portwright.launch.slurm import ENDED, SlurmState

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
    entries = [_adopt_if_answered(entry) for entry in registry.read_entries()]
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
    registry.write_entry(taken)
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
        registry.note_end(entry, state.state, state.exit, reason)
    return state


def status_of(state: SlurmState) -> int:
    """The exit status of a command that followed a job to its end: the job's own."""
    if state.state == "done":
        return 0
    return state.exit if state.exit is not None and 0 < state.exit < 256 else 1
