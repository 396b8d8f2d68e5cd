"""Check, port and undo as one call each, with the project's settings: what the command line calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from portwright.errors import UserError
from portwright.port.apply import Port, make_port, not_ported, write_copy, write_in_place
from portwright.port.check import Selection
from portwright.port.config import make_selection, read_config
from portwright.port.files import find_files, show
from portwright.port.finding import Finding, Safety
from portwright.port.many import check_files


@dataclass(frozen=True)
class PortResult:
    """What `portwright port` did, or would do."""

    changed: list[str]
    fixed: list[Finding]
    left: list[Finding]
    diff: str
    not_copied: list[str]  # too large for --out
    not_ported: list[str]  # imported by what was ported, but not named


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
) -> PortResult:
    """Rewrites files in place, or into a copy, or only shows what it would do."""
    if write and out is not None:
        raise UserError(
            "--write and --out were both given.", "--write edits in place, --out writes a copy: choose one."
        )
    files, selection = select_files(paths, targets, select, ignore)
    if len(selection.targets) != 1:
        raise UserError(
            f"a port is for one target, and {len(selection.targets)} are named: {', '.join(sorted(selection.targets))}.",
            "Give one with --target.",
        )
    allow: tuple[Safety, ...] = ("safe", "unsafe") if unsafe else ("safe",)
    made: Port = make_port(files, selection, allow)
    too_large: list[Path] = []
    if write:
        write_in_place(made)
    elif out is not None:
        too_large = write_copy(made, paths, files, out)
    return PortResult(
        changed=[show(path) for path in sorted(made.changed)],
        fixed=[_shown(f) for f in made.fixed],
        left=[_shown(f) for f in made.left],
        diff=made.diff(),
        not_copied=[show(path) for path in too_large],
        not_ported=[show(path) for path in not_ported(files)],
    )


def _shown(finding: Finding) -> Finding:
    return replace(finding, path=show(finding.path))
