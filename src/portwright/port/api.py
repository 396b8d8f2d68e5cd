"""Check, port and undo as one call each, with the project's settings: what the command line calls."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from portwright.errors import UserError, suggest
from portwright.port.apply import Port, common_folder, make_port, not_ported, write_copy, write_in_place
from portwright.port.check import Selection
from portwright.port.config import make_selection, read_config
from portwright.port.files import find_files, show
from portwright.port.finding import Finding, Safety
from portwright.port.many import check_files
from portwright.port.origin import make_origin
from portwright.port.patch import places_before


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


STYLES = ("in-place", "layout", "branches")
# The rules that a part of a port asks: codes, or starts of codes.
PARTS = {
    "data": ("PW101", "PW102", "PW103", "PW106", "PW107"),
    "model": ("PW104", "PW105", "PW108", "PW109", "PW110", "PW2", "PW3"),
}


def select_files(
    paths: Sequence[Path], targets: Sequence[str], select: Sequence[str], ignore: Sequence[str]
) -> tuple[list[Path], Selection]:
    """The files that paths stand for, and the rules to ask, as the command line and pyproject.toml have it."""
    config = read_config(paths[0].absolute())
    files = find_files(paths, config.exclude)
    if not files:
        raise UserError(
            f"no Python file or notebook is at or below '{paths[0]}'.",
            "Name another folder, or look at exclude in pyproject.toml.",
        )
    return files, make_selection(config, targets, select, ignore)


def check(
    paths: Sequence[Path],
    targets: Sequence[str] = (),
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    *,
    jobs: int | None = None,
    use_cache: bool = True,
) -> tuple[list[Finding], Selection]:
    """Findings in files and folders, with the selection of rules that was asked."""
    files, selection = select_files(paths, targets, select, ignore)
    return [_shown(f) for f in check_files(files, selection, jobs, use_cache)], selection


def port(
    paths: Sequence[Path],
    targets: Sequence[str],
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    *,
    unsafe: bool = False,
    write: bool = False,
    out: Path | None = None,
    style: str = "in-place",
    part: str | None = None,
) -> PortResult:
    """Rewrites files in place, or into a copy, or only shows what it would do.

    `style` layout makes the five files of the taught workflow in `out`; branches adds a vendor's branches in place. `part`
    data or model ports that part alone.
    """
    if style not in STYLES:
        raise UserError(f"there is no style '{style}'.", suggest(style, STYLES))
    if part is not None and part not in PARTS:
        raise UserError(f"there is no part '{part}'.", suggest(part, PARTS))
    if write and out is not None:
        raise UserError(
            "--write and --out were both given.", "--write edits in place, --out writes a copy: choose one."
        )
    if style == "branches":
        return _port_branches(paths, targets, select, ignore, unsafe=unsafe, write=write, out=out)
    if style == "layout":
        from portwright.port.layout.api import port_layout

        return port_layout(paths, targets, select, ignore, unsafe=unsafe, write=write, out=out, part=part)
    files, selection = select_files(paths, targets, select, ignore)
    if part is not None:
        selection = of_part(selection, part)
    if len(selection.targets) != 1:
        raise UserError(
            f"a port is for one target, and there are {len(selection.targets)} (all where none is named): {', '.join(sorted(selection.targets))}.",
            "Give one with --target.",
        )
    allow: tuple[Safety, ...] = ("safe", "unsafe") if unsafe else ("safe",)
    made: Port = make_port(files, selection, allow)
    too_large: list[Path] = []
    codes = [rule.code for rule in selection.rules]
    origin = make_origin(
        common_folder(paths, files), paths, next(iter(selection.targets)), codes, unsafe, made.fixed
    )
    if write:
        write_in_place(made, origin)
    elif out is not None:
        too_large = write_copy(made, paths, files, out, origin)
    return PortResult(
        changed=[show(path) for path in sorted(made.changed)],
        fixed=[_shown(f) for f in made.fixed],
        left=[_shown(f) for f in _where_they_stand(made, write, out, common_folder(paths, files))],
        diff=made.diff(),
        not_copied=[show(path) for path in too_large],
        not_ported=[show(path) for path in not_ported(files)],
    )


def _where_they_stand(made: Port, write: bool, out: Path | None, top: Path) -> list[Finding]:
    """What is left, in the files that a person has now: rewritten, a copy of them, or untouched."""
    if write:
        return made.left
    if out is not None:
        return [replace(f, path=str(out / Path(f.path).relative_to(top))) for f in made.left]
    changed = {str(path) for path in made.changed}
    found = [f for f in made.left if f.path not in changed]
    found += [f for patch in made.changed.values() for f in places_before(patch)]
    return sorted(found, key=lambda f: f.place)


def of_part(selection: Selection, part: str) -> Selection:
    """The rules that a part of a port asks."""
    rules = tuple(rule for rule in selection.rules if rule.code.startswith(PARTS[part]))
    if not rules:
        raise UserError(
            f"no rule of the part '{part}' is selected.", f"Select some of {', '.join(PARTS[part])}."
        )
    return replace(selection, rules=rules)


def _port_branches(
    paths: Sequence[Path],
    targets: Sequence[str],
    select: Sequence[str],
    ignore: Sequence[str],
    **options: Any,
) -> PortResult:
    if importlib.util.find_spec("portwright.port.branches") is None:
        raise UserError("--style branches is not part of this version.", "Use --style in-place or layout.")
    module: Any = importlib.import_module("portwright.port.branches.api")
    done: PortResult = module.port_branches(paths, targets, select=select, ignore=ignore, **options)
    return done


def _shown(finding: Finding) -> Finding:
    return replace(finding, path=show(finding.path))
