"""Shared by targets with an emulator: the flag `--emulate`, and the import of the vendor's package or its emulator."""

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
    """Whether the vendor's own package, not its emulator, is installed; nothing is imported."""
    found = PathFinder.find_spec(package)
    return found is not None and not str(found.origin).startswith(str(Path(__file__).parents[1]))


def import_vendor(package: str, flags: Mapping[str, Any]) -> tuple[ModuleType, str | None]:
    """The vendor's package, or the emulator with --emulate; and what is emulated, None for the real package."""
    from portwright.emulate import PACKAGES, is_emulated, lend

    module = lend(package) if flags.get(EMULATE.dest) else importlib.import_module(package)
    return module, PACKAGES[package] if is_emulated(module) else None


def explain_missing(title: str, package: str, origin: str, target: str) -> str | None:
    """Why a target cannot run here: install the package or emulate it; None where it is installed."""
    if is_installed(package):
        return None
    return (
        f"{title} is not installed; no public package index has it: {origin}. Run where it is installed, or add --emulate to train "
        f"under its rules on this machine's CPU; portwright plan --target {target} needs neither."
    )
