"""Plain words for SLURM's reasons and states, and for the exit statuses of steps."""

from __future__ import annotations

import re
from typing import NamedTuple


class Reason(NamedTuple):
    """The meaning of one of SLURM's reasons for a waiting job."""

    words: str
    cure: str = ""  # empty: the user can only wait


# From `man squeue`, JOB REASON CODES, and for further ones src/common/slurm_protocol_defs.c of 22.05.
_REASONS: dict[str, Reason] = {
    "None": Reason("the scheduler has not looked at it yet"),
    "Priority": Reason("jobs with a higher priority are before it in the queue"),
    "Resources": Reason("it is next, and waits until enough nodes are free"),
    "Dependency": Reason("it waits for another job that it depends on"),
    "DependencyNeverSatisfied": Reason(
        "the job that it depends on did not end as it had to, so that it will never start",
        "Cancel it and submit it again.",
    ),
    "BeginTime": Reason("its earliest start is not reached yet; after a requeue SLURM waits some minutes"),
    "Cleaning": Reason("SLURM is still tidying up after its last attempt"),
    "JobHeldUser": Reason("it is held by its owner", "Release it with 'scontrol release ID'."),
    "JobHeldAdmin": Reason("it is held by an administrator", "Ask the site's support why."),
    "JobLaunchFailure": Reason(
        "its last start failed on the node", "If that goes on, tell the site's support the node."
    ),
    "launch failed requeued held": Reason(
        "its start failed on the node, so that SLURM holds it", "Release it with 'scontrol release ID'."
    ),
    "JobHoldMaxRequeue": Reason(
        "it was requeued as often as the site allows, and is held now",
        "Release it with 'scontrol release ID', or submit it again: training resumes from its checkpoint.",
    ),
    "NodeDown": Reason("a node that it needs is down"),
    "ReqNodeNotAvail": Reason(
        "nodes that it needs are down, reserved or in use",
        "If a maintenance is announced, a shorter --time may fit in before it.",
    ),
    "Reservation": Reason("it waits for its reservation to begin"),
    "ReservationDeleted": Reason(
        "the reservation that it asks for is gone", "Submit it again without that reservation."
    ),
    "Licenses": Reason("it waits for a licence that other jobs use"),
    "PartitionDown": Reason("its partition takes jobs but starts none now"),
    "PartitionInactive": Reason("its partition is closed", "Choose another with --partition."),
    "PartitionNodeLimit": Reason(
        "it asks for more nodes than its partition gives a job", "Submit it again with fewer --nodes."
    ),
    "PartitionTimeLimit": Reason(
        "it asks for more time than its partition gives a job", "Submit it again with a shorter --time."
    ),
    "BadConstraints": Reason("no node can ever be what it asks for", "Submit it again with other resources."),
    "InvalidAccount": Reason("its account is not valid any more", "Submit it again with another --account."),
    "InvalidQOS": Reason("its QOS is not valid any more", "Submit it again with another QOS."),
    "NodesNotAvail": Reason("no node of its partition is free and healthy"),
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": Reason(
        "nodes that it needs are down, drained, or kept for partitions of a higher priority"
    ),
    "Prolog": Reason("the node is being prepared for it"),
    "FrontEndDown": Reason("SLURM has no front end that could start it"),
    "SystemFailure": Reason("SLURM itself failed", "Ask the site's support."),
    "NonZeroExitCode": Reason("its script ended with a failure"),
    "TimeLimit": Reason("it reached its time limit"),
    "OutOfMemory": Reason("it needed more memory than it was given"),
    "Preempted": Reason("a job of a higher priority took its nodes"),
}

# Limits: QOSMaxJobsPerUserLimit, AssocGrpCPUMinutesLimit, MaxMemPerLimit, ... there are some hundred of them.
_LIMIT = re.compile(r"(QOS|Assoc)?(Grp|Max|Min|Job|Usage)\w*")
_LIMITS: tuple[tuple[str, str], ...] = (
    ("Minutes", "the hours granted to {who} are spent, or would be by this job"),
    ("Wall", "it asks for more time than {who} may take"),
    ("Submit", "{who} has as many jobs in the queue as it may have"),
    ("Jobs", "{who} has as many jobs running as it may have"),
    ("Node", "{who} uses as many nodes as it may use, or this job asks for more"),
    ("GRES", "{who} uses as many accelerators as it may use, or this job asks for more"),
    ("Cpu", "{who} uses as many CPUs as it may use, or this job asks for more"),
    ("CPU", "{who} uses as many CPUs as it may use, or this job asks for more"),
    ("Mem", "{who} uses as much memory as it may use, or this job asks for more"),
    ("Billing", "{who} has spent what it was granted"),
)
_LIMIT_CURE = "If other jobs of the group hold it up it starts after them; else ask for less, or for more of the allocation."

_STATUSES = {
    1: "findings, something that this machine cannot do, or an end with status 0 before the last step",
    2: "bad input: params, paths or flags",
    3: "the loss became NaN or infinite",
    85: "it saved and asked to be requeued",
    126: "a program could not be run (permission, or made for another machine)",
    127: "a program was not found (PATH, a module that was not loaded, or not in the image)",
    130: "interrupted",
    134: "a program aborted",
    135: "a bus error: often a full /dev/shm or disk",
    137: "killed, most often because memory ran out",
    139: "a memory fault in a program or library",
    143: "terminated",
}

_SCHEDULER_WORDS = {
    "TIMEOUT": "it reached its time limit, and could not save and requeue before",
    "NODE_FAIL": "a node failed",
    "BOOT_FAIL": "a node could not be started",
    "OUT_OF_MEMORY": "it needed more memory than it was given (--mem)",
    "DEADLINE": "it could not end before its deadline",
    "PREEMPTED": "a job of a higher priority took its nodes, and SLURM did not requeue it",
}


def explain_reason(reason: str) -> Reason | None:
    """The meaning of one of SLURM's reasons; None where there is no reason."""
    word = reason.strip().strip("()").replace("_", " ").strip()
    if not word or word == "None":
        return None
    head = word.split(",")[0].strip()
    known = _REASONS.get(word) or _REASONS.get(head)
    if known is not None:
        more = word[len(head) :].lstrip(", ")
        return known._replace(words=f"{known.words} ({more})") if more and word not in _REASONS else known
    limit = _LIMIT.fullmatch(head)
    if limit is not None:
        who = {"QOS": "the QOS", "Assoc": "the account"}.get(limit[1] or "", "its user or account")
        for sign, words in _LIMITS:
            if sign in head:
                return Reason(f"{words.format(who=who)} ({head})", _LIMIT_CURE)
        return Reason(f"a limit of {who} holds it ({head})", _LIMIT_CURE)
    return Reason(f"SLURM says {word}")


def explain_status(status: int) -> str:
    """The meaning of a step's exit status."""
    known = _STATUSES.get(status)
    if known is None and 128 < status < 193:
        known = f"ended by signal {status - 128}"
    return f"status {status}: {known}" if known else f"status {status}"


def explain_word(word: str) -> str:
    """The meaning of SLURM's word for an end, such as TIMEOUT; empty for a plain failure."""
    return _SCHEDULER_WORDS.get(word, "")
