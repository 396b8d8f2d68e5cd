"""What a command line asks of a plan beside its subject: targets, mode, memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from portwright.discover import find_targets, get_target
from portwright.errors import UserError, suggest
from portwright.graph.plans.fit import parse_mode
from portwright.job.sizes import parse_bytes
from portwright.target import Hardware, Target


@dataclass(frozen=True)
class Wish:
    """The part of the command line that says how to plan."""

    targets: tuple[Target, ...]
    mode: str | None = None
    memory: str | None = None
    legalise: bool = False


def parse_targets(text: str) -> tuple[Target, ...]:
    """Reads csx, csx,gpu or all; `all` are those that say what they run or what they are."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError("--target names no target.", "Give csx, csx,gpu or all.")
    if any(name.lower() == "all" for name in names):
        return tuple(target for target in find_targets().values() if target.hardware is not None)
    chosen = {target.name: target for target in map(get_target, names)}
    for target in chosen.values():
        if target.hardware is None:
            raise UserError(
                f"nothing is known of the machine of target {target.name}.", "Plan for another target."
            )
    return tuple(chosen.values())


def check_wish(wish: Wish) -> None:
    """Refuses a mode or a size of memory that cannot be."""
    mode, memories = parse_mode(wish.mode), parse_memory(wish.memory, wish.targets)
    for target in wish.targets:
        machine = machine_of(target, memories)
        if mode is not None and mode not in machine.modes:
            raise UserError(
                f"{machine.name} has no execution mode {mode}.", f"It has: {', '.join(machine.modes)}."
            )


def machine_of(target: Target, memories: Mapping[str, int]) -> Hardware:
    assert target.hardware is not None
    machine = target.hardware()
    if target.name not in memories:
        return machine
    sources = {**machine.sources, "memory_bytes": "--memory"}
    sources.pop("core_memory_bytes", None)
    return dataclasses.replace(
        machine, memory_bytes=memories[target.name], core_memory_bytes=None, sources=sources
    )


def parse_memory(text: str | None, targets: Sequence[Target]) -> dict[str, int]:
    """Reads 24GB, which is meant for the one target or for those that are this machine's, or gpu=24GB,csx=10GB."""
    if text is None:
        return {}
    memories: dict[str, int] = {}
    for part in text.split(","):
        name, is_named, size = part.rpartition("=")
        if is_named:
            known = {target.name: target for target in targets}
            if name.strip().upper() not in known:
                raise UserError(
                    f"--memory names '{name}', which is not planned for.", suggest(name.upper(), known)
                )
            memories[name.strip().upper()] = parse_bytes(size)
            continue
        meant = [t for t in targets if len(targets) == 1 or t.kernels is None]
        if not meant:
            raise UserError(
                f"--memory {part} could be of any of {', '.join(t.name.lower() for t in targets)}.",
                f"Say whose: --memory {targets[0].name.lower()}={part}.",
            )
        memories.update(dict.fromkeys((t.name for t in meant), parse_bytes(part)))
    return memories
