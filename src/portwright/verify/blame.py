"""Guesses which rewrite caused a difference: by its place in the source, or else by the subject of its rule."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from portwright.errors import PortwrightError
from portwright.port.config import find_rule
from portwright.port.origin import Origin, Rewrite, find_origin
from portwright.verify.command import parse_command
from portwright.verify.difference import Difference

_NEAR_LINES = 3
# For each quantity that differs: prefixes of the codes of the rules that may change it, the likeliest first.
_CODES_OF_QUANTITY = {
    "batch": ("PW101", "PW1"),
    "dropout": ("PW319", "PW340", "PW3"),
    "initial": ("PW3",),
    "parameter": ("PW310", "PW3"),
    "output": ("PW3", "PW2", "PW5"),
    "loss": ("PW3", "PW328", "PW2", "PW409", "PW5"),
    "gradient": ("PW408", "PW405", "PW402", "PW2", "PW4", "PW3"),
    "optimizer": ("PW403", "PW404", "PW4"),
    "update": ("PW4", "PW602"),
    "buffer": ("PW309", "PW3"),
    "steps": ("PW101", "PW1"),
}
# The rule about each diagnosis, for ports made by hand, of which no rewrite is on record.
_RULE_OF_DIAGNOSIS = {
    "zero-grad": "PW402",
    "clipping": "PW405",
    "batch-size": "PW101",
    "batch-shifted": "PW101",
    "batch-order": "PW103",
    "learning-rate": "PW403",
    "not-updated": "PW602",
    "detached": "PW204",
    "ended-early": "PW101",
}


def blame(difference: Difference, command: str | Sequence[str], folder: Path) -> Difference:
    """The difference with the rule that is likely to blame, and why; unchanged if none is likely."""
    words = parse_command(command, folder).words
    script = Path(folder, words[0])
    found = find_origin(script) if words[0] != "-m" else None
    if found is None:
        return _by_hand(difference)
    copy, origin = found
    if not origin.rewrites:
        return _by_hand(difference)
    placed = _by_place(difference, copy, origin)
    # a crash can have any cause, so only a rewrite at the line that failed is blamed
    if difference.quantity == "crash":
        return placed or difference
    return placed or _by_subject(difference, origin) or difference


def _by_place(difference: Difference, copy: Path, origin: Origin) -> Difference | None:
    """The rewrite nearest to the line that called the first module that differs."""
    path, _, line = difference.line.rpartition(":")
    if not path or not line.isdigit():
        return None
    try:
        relative = Path(path).resolve().relative_to(copy.resolve()).as_posix()
        original = Path(origin.saved.get(relative, str(Path(origin.folder, relative))))
        there, is_edited = _line_in_original(copy / relative, original, int(line))
    except (OSError, ValueError, UnicodeDecodeError):
        return None
    if difference.quantity == "crash" and not is_edited:
        return None
    near = [r for r in origin.rewrites if r.path == relative and abs(r.line - there) <= _NEAR_LINES]
    if not near:
        return None
    best = min(near, key=lambda r: abs(r.line - there))
    return replace(
        difference,
        rule=best.code,
        rule_reason=f"which rewrote {best.path}:{best.line}, where the difference shows",
    )


def _line_in_original(ported: Path, original: Path, line: int) -> tuple[int, bool]:
    """The line of the original that a line of the port came from, and whether its text changed."""
    before, after = (p.read_text(encoding="utf-8").splitlines() for p in (original, ported))
    for tag, a_start, a_end, b_start, b_end in difflib.SequenceMatcher(
        None, before, after, False
    ).get_opcodes():
        if b_start <= line - 1 < b_end:
            return min(a_start + (line - 1 - b_start), max(a_start, a_end - 1)) + 1, tag != "equal"
    return line, False


def _by_subject(difference: Difference, origin: Origin) -> Difference | None:
    codes = [r.code for r in origin.rewrites]
    for start in _CODES_OF_QUANTITY.get(difference.quantity, ()):
        fitting = [r for r in origin.rewrites if r.code.startswith(start)]
        if fitting:
            return replace(difference, rule=fitting[0].code, rule_reason=_reason(fitting))
    if len(set(codes)) == 1:
        return replace(difference, rule=codes[0], rule_reason=_reason(origin.rewrites))
    return None


def _reason(rewrites: Sequence[Rewrite]) -> str:
    first = rewrites[0]
    more = len([r for r in rewrites if r.code == first.code]) - 1
    others = f" and {more} more place{'' if more == 1 else 's'}" if more else ""
    return f"which rewrote {first.path}:{first.line}{others} and is about such things; --bisect makes sure"


def _by_hand(difference: Difference) -> Difference:
    code = _RULE_OF_DIAGNOSIS.get(difference.diagnosis)
    if code is None:
        return difference
    try:
        rule = find_rule(code)
    except PortwrightError:
        return difference
    return replace(
        difference,
        rule=code,
        rule_reason=f"the rule about such places ({rule.name}); no rewrite is on record",
    )
