"""Partitions and their nodes, from SLURM's commands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from portwright.errors import UserError
from portwright.launch.findings import Run
from portwright.launch.times import minutes_of

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
    found = {}
    for line in answer.out.splitlines():
        fields = dict(re.findall(r"(?:^|\s)([A-Za-z]+)=(\S*)", line))
        if "PartitionName" in fields:
            partition = _partition(fields)
            found[partition.name] = partition
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
    found = []
    for match in _GRES.finditer(text.replace("gres/", "").replace("gres:", "")):
        count = int(match["count"]) * _UNITS[match["unit"]] if match["count"] else 1
        found.append(Gres(match["name"], match["type"], count))
    return tuple(found)


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
