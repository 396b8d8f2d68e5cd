"""Calls SLURM's commands and reads their output, jobs and partitions; needs no accounting (sacct)."""

from __future__ import annotations

import datetime
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from portwright.errors import UserError
from portwright.launch.findings import Run, run_program
from portwright.launch.times import minutes_of, seconds_of

State = Literal["pending", "running", "done", "failed", "cancelled", "unknown"]
ENDED: tuple[State, ...] = ("done", "failed", "cancelled")
TIMEOUT_SECONDS = 30.0  # for a busy controller; SLURM's own MessageTimeout is 10
_SUBMIT_SECONDS = 90.0  # sbatch waits longer for a controller that is busy

# Our states for SLURM's.
_STATES: Mapping[str, State] = {
    "PENDING": "pending", "REQUEUED": "pending", "REQUEUE_FED": "pending", "REQUEUE_HOLD": "pending",
    "SPECIAL_EXIT": "pending", "RESV_DEL_HOLD": "pending",
    "CONFIGURING": "running", "RUNNING": "running", "COMPLETING": "running", "SUSPENDED": "running",
    "STOPPED": "running", "SIGNALING": "running", "STAGE_OUT": "running", "RESIZING": "running",
    "COMPLETED": "done", "CANCELLED": "cancelled", "REVOKED": "cancelled",
    "FAILED": "failed", "TIMEOUT": "failed", "NODE_FAIL": "failed", "BOOT_FAIL": "failed", "DEADLINE": "failed",
    "OUT_OF_MEMORY": "failed", "PREEMPTED": "failed",
}  # fmt: skip
_NOT_KNOWN = re.compile(r"invalid job id|no such job", re.IGNORECASE)
_NO_ANSWER = re.compile(
    r"unable to contact slurm|socket timed out|connection refused|zero bytes were transmitted|"
    r"communication.*(?:connection|failure)|unable to resolve|could not establish a configuration source",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class SlurmState:
    """The state of a job on any scheduler; unknown values are None or empty."""

    state: State
    word: str = ""  # the scheduler's word: PENDING, TIMEOUT
    reason: str = ""  # why it waits or has ended, in the scheduler's word: Priority, Resources
    queue_position: int | None = None  # 1: next
    queue_length: int | None = None  # jobs that wait in the partition
    start_estimate: str | None = None  # 2026-11-16T20:00:00
    nodes: str = ""  # sdf-[1-2]
    restarts: int = 0
    time_left: str | None = None  # as squeue writes it: 3:12:01
    exit: int | None = None  # status of the batch script, once it has ended
    ended_seconds: float = 0.0  # since its end

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED


class SlurmError(UserError):
    """A command of SLURM's failed."""


class NoAnswerError(UserError):
    """SLURM's controller does not answer, so that the state of jobs is not known."""


def run_slurm(
    words: Sequence[str], *, timeout_seconds: float = TIMEOUT_SECONDS, cwd: Path | None = None
) -> str:
    """The output of one of SLURM's commands; the error of a failure has the command's message."""
    answer = run_program(words, timeout_seconds=timeout_seconds, cwd=cwd)
    if answer.is_good:
        return answer.out
    said = _last_words(answer.err or answer.out)
    if answer.is_late or _NO_ANSWER.search(answer.err):
        late = f"SLURM did not answer {words[0]} within {timeout_seconds:.0f} s."
        raise NoAnswerError(
            late if answer.is_late else f"SLURM does not answer: {said}.",
            "Its controller may be busy or down: try again, and see 'scontrol ping'.",
        )
    if answer.status is None:
        cure = "Run this on a login node of the site, or use --site local."
        raise SlurmError(f"{said.replace('no program', 'no')}, so SLURM cannot be asked.", cure)
    raise SlurmError(f"{words[0]} failed with status {answer.status}: {said}.", "")


def submit(script: Path) -> str:
    """Hands a batch script to sbatch and gives the job's id."""
    words = ["sbatch", "--parsable", str(script)]
    try:
        out = run_slurm(words, timeout_seconds=_SUBMIT_SECONDS, cwd=script.parent)
    except SlurmError as error:
        raise SlurmError(error.message, error.cure or _cure_of(error.message)) from error
    found = re.search(r"^(\d+)(?:;\S*)?\s*$", out, re.MULTILINE)
    if found is None:
        raise SlurmError(
            f"sbatch said {out.strip()[:200]!r} instead of a job's id.",
            "See with 'squeue --me' whether the job was taken.",
        )
    return found[1]


def find_by_name(name: str) -> str | None:
    """The id of this user's job of that name, if the queue has just one: for a submission whose answer was lost."""
    ids = run_slurm(["squeue", *_mine(), "--noheader", f"--name={name}", "--format=%i"]).split()
    return ids[0] if len(ids) == 1 else None


def job_state(job_id: str) -> SlurmState:
    """The state of a job; `unknown` for one that SLURM has forgotten, some minutes after its end."""
    try:
        state = parse_job(run_slurm(["scontrol", "--oneliner", "show", "job", job_id]))
    except SlurmError as error:
        if _NOT_KNOWN.search(error.message):
            return SlurmState("unknown")
        raise
    if state.state != "pending":
        return state
    place, length = queue_place(job_id)
    return replace(state, queue_position=place, queue_length=length)


def job_states(ids: Sequence[str]) -> dict[str, SlurmState]:
    """The states of several jobs, by one call; jobs that are not in the queue are left out."""
    if not ids:
        return {}
    # Not --jobs: one forgotten id would make the whole call fail.
    out = run_slurm(["squeue", *_mine(), "--noheader", "--states=all", "--format=%i|%T|%L|%S|%N|%r"])
    wanted, found = set(ids), {}
    for line in out.splitlines():
        fields = [field.strip() for field in line.split("|", 5)]
        if len(fields) == 6 and fields[0] in wanted:
            _, word, left, start, nodes, reason = fields
            found[fields[0]] = SlurmState(
                _STATES.get(word, "unknown"),
                word,
                _known(reason) or "",
                start_estimate=_known(start) if word == "PENDING" else None,
                nodes=nodes,
                time_left=_known(left),
            )
    return found


def parse_job(text: str) -> SlurmState:
    """Reads a line of `scontrol --oneliner show job`."""

    def value(key: str) -> str | None:
        # Takes the first match: paths, which may contain anything, come after the keys that are read here.
        found = re.search(rf"(?:^|\s){key}=(\S*)", text)
        return _known(found[1]) if found else None

    word = (value("JobState") or "").split(",")[0]
    state = _STATES.get(word, "unknown")
    code, _, number = (value("ExitCode") or "").partition(":")
    ended = state in ENDED
    status = _number(code)
    if status == 0 and _number(number):
        status = 128 + int(number)
    return SlurmState(
        state,
        word,
        value("Reason") or "",
        start_estimate=value("StartTime") if state == "pending" else None,
        nodes=value("NodeList") or "",
        restarts=_number(value("Restarts") or "") or 0,
        time_left=_time_left(value("RunTime"), value("TimeLimit")) if word == "RUNNING" else None,
        exit=status if ended else None,
        ended_seconds=_seconds_since(value("EndTime")) if ended else 0.0,
    )


def queue_place(job_id: str) -> tuple[int | None, int | None]:
    """The place of a job among those that wait for its partition, and their number; None where the queue does not tell."""
    try:
        own = ["squeue", "--noheader", f"--jobs={job_id}", "--states=PENDING", "--format=%P"]
        partition = run_slurm(own).strip()
        if not partition:
            return None, None
        words = ["squeue", "--noheader", "--states=PENDING", f"--partition={partition}", "--sort=-p,i"]
        ids = run_slurm([*words, "--format=%i"]).split()
    except SlurmError:  # the job began meanwhile
        return None, None
    return (ids.index(job_id) + 1, len(ids)) if job_id in ids else (None, None)


def cancel(job_id: str) -> bool:
    """Asks SLURM to end a job; False where it has ended already."""
    try:
        run_slurm(["scancel", job_id])
    except SlurmError as error:
        if _NOT_KNOWN.search(error.message) or "already completing or completed" in error.message:
            return False
        raise
    return True


def _mine() -> list[str]:
    return [f"--user={os.getuid()}"]  # --me needs SLURM 20.11


def _cure_of(message: str) -> str:
    lowered = message.lower()
    otherwise = "Mend what SLURM names, or change what is asked for: see 'portwright submit --help'."
    return next((cure for sign, cure in _CURES.items() if sign in lowered), otherwise)


_CURES = {
    "invalid account": "Give an allocation that is yours with --account; 'portwright sites NAME' says how the site names them.",
    "invalid qos": "Leave that --flag out, or give a QOS that the account has.",
    "invalid partition": "Give a partition of this cluster with --partition; 'sinfo -s' lists them.",
    "invalid generic resource": "Give resources that this cluster has with --gres; 'sinfo -o %G' lists them.",
    "time limit": "Ask for less with --time; 'sinfo -o \"%P %l\"' lists the limits.",
    "node configuration is not available": "Ask for fewer --nodes, --ntasks or --cpus-per-task, or another --gres: no node has what is asked for.",
    "node count specification invalid": "Ask for fewer --nodes.",
    "violates accounting/qos policy": "Ask for less, or wait until other jobs of yours have ended.",
}


def _last_words(text: str) -> str:
    """The line of a SLURM command's output that has its message, without prefixes and full stop."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()] or lines
    cleaned = [re.sub(r"^(?:\w+: )?(?:error: )?", "", line) for line in errors]
    return "; ".join(dict.fromkeys(cleaned)).rstrip(".") or "no word of why"


def _known(text: str) -> str | None:
    return None if text in ("", "None", "(null)", "Unknown", "N/A", "NOT_SET", "INVALID") else text


def _time_left(run_time: str | None, limit: str | None) -> str | None:
    spent, whole = seconds_of(run_time), seconds_of(limit)
    if spent is None or whole is None:
        return None
    days, rest = divmod(max(whole - spent, 0), 86400)
    shown = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{shown}" if days else shown


def _seconds_since(moment: str | None) -> float:
    """Seconds since a time that SLURM printed, in this machine's zone."""
    try:
        return max(0.0, time.time() - datetime.datetime.fromisoformat(moment or "").timestamp())
    except ValueError:
        return 0.0


_UNBOUND = {"UNLIMITED", "INFINITE", "NONE", "N/A", ""}
_GRES = re.compile(
    r"(?P<name>[A-Za-z]\w*)(?::(?P<type>(?![0-9]+[KMGTP]?(?:$|[(,]))[^:,(]+))?(?::(?P<count>\d+)(?P<unit>[KMGTP]?))?(?:\([^)]*\))?"
)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_DEAD = ("down", "drain", "fail", "maint", "unknown", "power", "future", "reserved")


@dataclass(frozen=True)
class Partition:
    """What `scontrol show partition` says; None: no limit."""

    name: str
    state: str  # UP, DOWN, DRAIN, INACTIVE
    is_default: bool
    max_minutes: int | None
    max_nodes: int | None
    num_nodes: int
    allow_accounts: frozenset[str] | None  # None: all
    deny_accounts: frozenset[str]
    allow_groups: frozenset[str] | None
    max_cpus_per_node: int | None


@dataclass(frozen=True)
class Gres:
    """A device as in gpu:a100:4; without a type it stands for any type."""

    name: str
    type: str | None
    count: int

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.name, self.type, self.count) if part is not None)


@dataclass(frozen=True)
class Node:
    name: str
    num_cpus: int
    memory_mb: int
    gres: tuple[Gres, ...]
    state: str

    @property
    def is_usable(self) -> bool:
        return not self.state.rstrip("*").lower().startswith(_DEAD)

    def num_of(self, wanted: Gres) -> int:
        """How many of the node's devices match `wanted`."""
        return sum(
            has.count
            for has in self.gres
            if has.name == wanted.name
            and (wanted.type is None or (has.type or "").lower() == wanted.type.lower())
        )


def read_partitions(run: Run) -> tuple[dict[str, Partition] | None, str]:
    """All partitions by name; None, and why, where SLURM does not answer here."""
    answer = run(["scontrol", "-o", "show", "partition"])
    if not answer.is_good:
        return None, answer.words or "scontrol does not answer"
    lines = (dict(re.findall(r"(?:^|\s)([A-Za-z]+)=(\S*)", line)) for line in answer.out.splitlines())
    found = {fields["PartitionName"]: _partition(fields) for fields in lines if "PartitionName" in fields}
    return (found, "") if found else (None, "SLURM shows no partition to you")


def read_nodes(name: str, run: Run) -> list[Node]:
    """The nodes of a partition, each once; none where sinfo does not answer."""
    answer = run(["sinfo", "-h", "-N", "-p", name, "-o", "%N|%c|%m|%G|%T"])
    found: dict[str, Node] = {}
    for line in answer.out.splitlines() if answer.is_good else ():
        parts = line.strip().split("|")
        if len(parts) == 5:
            node, cpus, memory, gres, state = parts
            found[node] = Node(node, _number(cpus) or 0, _number(memory) or 0, parse_gres(gres), state)
    return list(found.values())


def parse_gres(text: str) -> tuple[Gres, ...]:
    """Devices as sinfo prints or a job asks for them: gpu:v100:8(S:0-1),nvme:1."""
    if text in ("", "(null)", "N/A"):
        return ()
    return tuple(
        Gres(found["name"], found["type"], int(found["count"] or 1) * _UNITS[found["unit"] or ""])
        for found in _GRES.finditer(text.replace("gres/", "").replace("gres:", ""))
    )


def _partition(fields: Mapping[str, str]) -> Partition:
    return Partition(
        name=fields["PartitionName"],
        state=fields.get("State", "UP"),
        is_default=fields.get("Default") == "YES",
        max_minutes=_minutes(fields.get("MaxTime", "")),
        max_nodes=_number(fields.get("MaxNodes", "")),
        num_nodes=_number(fields.get("TotalNodes", "")) or 0,
        allow_accounts=_names(fields.get("AllowAccounts", "ALL")),
        deny_accounts=_names(fields.get("DenyAccounts", "")) or frozenset(),
        allow_groups=_names(fields.get("AllowGroups", "ALL")),
        max_cpus_per_node=_number(fields.get("MaxCPUsPerNode", "")),
    )


def _names(text: str) -> frozenset[str] | None:
    return None if text in ("ALL", "(null)", "") else frozenset(text.split(","))


def _number(text: str) -> int | None:
    found = re.match(r"\d+", text.strip())
    return int(found[0]) if found else None


def _minutes(text: str) -> int | None:
    if text.upper() in _UNBOUND:
        return None
    try:
        return minutes_of(text)
    except UserError:  # an unknown form: the limit is not checked
        return None
