"""check() and port() as the command line calls them, with the project's settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from portwright.errors import UserError, suggest
from portwright.port.apply import Port, common_folder, make_port, not_ported, write_copy, write_in_place
from portwright.port.config import read_config
from portwright.port.entries import CheckResult, Entry, Looked
from portwright.port.files import show
from portwright.port.finding import Finding, Safety
from portwright.port.many import check_files
from portwright.port.origin import make_origin
from portwright.port.patch import places_before
from portwright.port.request import (
    PARTS,
    PortResult,
    find_strangers,
    of_part,
    select_files,
    select_for_port,
    shown,
)
from portwright.port.verdict import decide

STYLES = ("in-place", "layout", "branches")


def check(
    paths: Sequence[Path],
    targets: Sequence[str] = (),
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    *,
    jobs: int | None = None,
    use_cache: bool = True,
) -> CheckResult:
    """Finds what blocks the targets in files and in what they import, with a verdict for each entry script and target."""
    from portwright.port.ask import ask

    files, selection = select_files(paths, targets, select, ignore)
    exclude = read_config(paths[0].absolute()).exclude
    looked = Looked(paths, files, selection, exclude, use_cache, ask)
    looks = looked.read()
    every = sorted({*files, *(path for look in looks for path in look.files)})
    findings = [shown(f) for f in check_files(every, selection, jobs, use_cache)]
    entries = []
    for look in looks:
        own = {show(path) for path in look.files}
        about = [f for f in findings if f.path in own]
        verdicts = [decide(look, t, about, selection, looked.plan) for t in sorted(selection.targets)]
        entries.append(Entry(look, tuple(verdicts)))
    looked.save()
    return CheckResult(findings, selection, entries, [show(path) for path in every])


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
    try_out: bool = False,
) -> PortResult:
    """Rewrites files in place, or into a copy, or only shows what it would do.

    `style` layout makes the five files of the taught workflow in `out`; branches adds a vendor's branches in place. `part`,
    data or model, ports only that part. `try_out` runs one step of the written layout.
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
        from portwright.port.branches.api import port_branches

        return port_branches(
            paths, targets, select=select, ignore=ignore, unsafe=unsafe, write=write, out=out
        )
    if style == "layout":
        from portwright.port.layout.api import port_layout

        return port_layout(
            paths, targets, select, ignore, unsafe=unsafe, write=write, out=out, part=part, try_out=try_out
        )
    files, selection = select_for_port(paths, targets, select, ignore)
    strange = find_strangers(paths, files, selection)
    if part is not None:
        selection = of_part(selection, part)
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
        fixed=[shown(f) for f in made.fixed],
        left=[
            *strange,
            *(shown(f) for f in _at_current_lines(made, write, out, common_folder(paths, files))),
        ],
        diff=made.diff(),
        not_copied=[show(path) for path in too_large],
        not_ported=[show(path) for path in not_ported(files)],
    )


def _at_current_lines(made: Port, write: bool, out: Path | None, top: Path) -> list[Finding]:
    """The findings that are left, with lines of the files that the user has now: rewritten, copied, or untouched."""
    if write:
        return made.left
    if out is not None:
        return [replace(f, path=str(out / Path(f.path).relative_to(top))) for f in made.left]
    changed = {str(path) for path in made.changed}
    found = [f for f in made.left if f.path not in changed]
    found += [f for patch in made.changed.values() for f in places_before(patch)]
    return sorted(found, key=lambda f: f.place)
