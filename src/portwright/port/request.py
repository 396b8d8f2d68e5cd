"""Selects the files and rules of a call of check or port, and defines the result of a port."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portwright.errors import UserError
from portwright.port.check import Selection, file_frameworks
from portwright.port.config import make_selection, read_config
from portwright.port.entries import Looked
from portwright.port.files import find_files, show
from portwright.port.finding import Finding
from portwright.port.report import NOT_TAKEN
from portwright.port.verdict import strangers

if TYPE_CHECKING:
    from portwright.port.layout.trial import Trial


# The rules of each part of a port: codes, or prefixes of codes.
PARTS = {
    "data": ("PW101", "PW102", "PW103", "PW106", "PW107"),
    "model": ("PW104", "PW105", "PW108", "PW109", "PW110", "PW2", "PW3"),
}


@dataclass(frozen=True)
class PortResult:
    """What `portwright port` did, or would do."""

    changed: list[str]
    fixed: list[Finding]
    left: list[Finding]
    diff: str
    not_copied: list[str]  # too large for --out
    not_ported: list[str]  # imported by what was ported, but not named
    placed: list[dict[str, Any]] = field(default_factory=list)  # of a layout: which statement went where
    dissolved: list[dict[str, Any]] = field(default_factory=list)  # of a layout: what run() does instead
    style: str = "in-place"
    literals: list[str] = field(default_factory=list)  # of a layout: numbers that params.yaml does not reach
    tried: Trial | None = None  # of a layout: what one step of the written folder gave

    @property
    def is_done(self) -> bool:
        """Whether nothing is left, and a layout was written and ran."""
        return not self.left and (self.tried is None or self.tried.outcome == "ran")


def select_files(
    paths: Sequence[Path], targets: Sequence[str], select: Sequence[str], ignore: Sequence[str]
) -> tuple[list[Path], Selection]:
    """The files below paths, and the rules that the command line and pyproject.toml select."""
    config = read_config(paths[0].absolute())
    files = find_files(paths, config.exclude)
    if not files:
        raise UserError(
            f"no Python file or notebook is at or below '{paths[0]}'.",
            "Name another folder, or look at exclude in pyproject.toml.",
        )
    return files, make_selection(config, targets, select, ignore)


def select_for_port(
    paths: Sequence[Path],
    targets: Sequence[str],
    select: Sequence[str],
    ignore: Sequence[str],
    *,
    several: bool = False,
) -> tuple[list[Path], Selection]:
    """The same for a port, which is for one target, or for more if `several`.

    TensorFlow files need no target: what newer versions removed is missing on every target, also the CPU.
    """
    files, selection = select_files(paths, targets, select, ignore)
    is_named = bool(targets or read_config(paths[0].absolute()).targets)
    if not is_named and all(file_frameworks(file) <= {"tensorflow"} for file in files):
        return select_files(paths, ["cpu"], select, ignore)
    if len(selection.targets) != 1 and not (several and is_named):
        raise UserError(
            f"a port is for one target, and there are {len(selection.targets)} (all where none is named): {', '.join(sorted(selection.targets))}.",
            "Give one with --target.",
        )
    return files, selection


def of_part(selection: Selection, part: str) -> Selection:
    """Selects the rules of a part of a port."""
    rules = tuple(rule for rule in selection.rules if rule.code.startswith(PARTS[part]))
    if not rules:
        raise UserError(
            f"no rule of the part '{part}' is selected.", f"Select some of {', '.join(PARTS[part])}."
        )
    return replace(selection, rules=rules)


def find_strangers(
    paths: Sequence[Path],
    files: Sequence[Path],
    selection: Selection,
    frameworks: Sequence[str] = ("torch", "tensorflow", "jax"),
) -> list[Finding]:
    """A finding for each training loop in the files that edits cannot port to the target."""
    looked = Looked(paths, files, selection, read_config(paths[0].absolute()).exclude, True)
    looks = looked.read()
    looked.save()
    found = {}
    for target in sorted(selection.targets):
        for look in looks:
            places = dict(look.owners)
            for owner, reason in strangers(look, target).items():
                if owner.framework not in frameworks:
                    continue
                place, cure = places[owner], "`portwright check` says what takes it."
                if owner.framework == "torch":
                    cure += " Write the loop out, or move model and data to a folder of `portwright new`."
                found[place.path, place.line, reason] = Finding(
                    NOT_TAKEN, show(place.path), place.line, 1, reason, cure, "manual", (target,), place.line
                )
    return list(found.values())


def shown(finding: Finding) -> Finding:
    return replace(finding, path=show(finding.path))
