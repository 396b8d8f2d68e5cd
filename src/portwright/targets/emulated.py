"""What targets with an emulator share: the flag `--emulate`, and the vendor's package or what stands in for it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from portwright.target import Flag

EMULATE = Flag(
    ("--emulate",),
    "without the vendor's software: follow its rules on this machine's CPU, and say so everywhere",
    is_switch=True,
)


def is_installed(package: str) -> bool:
    """Whether the vendor's own package is here, whatever is lent under its name; nothing is imported."""
    found = PathFinder.find_spec(package)
    return found is not None and not str(found.origin).startswith(str(Path(__file__).parents[1]))


def import_vendor(package: str, flags: Mapping[str, Any]) -> tuple[ModuleType, str | None]:
    """The vendor's package, or the emulator where it is asked for; and what is emulated, None where nothing is."""
    from portwright.emulate import PACKAGES, is_emulated, lend

    module = lend(package) if flags.get(EMULATE.dest) else importlib.import_module(package)
    return module, PACKAGES[package] if is_emulated(module) else None


def explain_missing(title: str, origin: str, target: str) -> str:
    """Why a target cannot run here, with both ways out."""
    return (
        f"{title} is not installed; no public package index has it: {origin}. Run where it is installed, or add --emulate to train "
        f"under its rules on this machine's CPU; portwright plan --target {target} needs neither."
    )
