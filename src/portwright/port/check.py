"""Checks one file: every selected rule over one walk of its tree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from portwright.port.finding import Finding
from portwright.port.project import Project, read_source
from portwright.port.rule import File, Rule
from portwright.port.source import Source, UnreadableError

# Rules of a framework run only on files that match its pattern.
_RELEVANT = {
    "torch": re.compile(rb"torch|backward\(|\bnn\b|\bforward\(|samba|ComputeMode|spacy|einops|timm"),
    "tensorflow": re.compile(
        rb"^[^\n#]*\b(?:import|from)[ \t]+[^\n]*\b(?:tensorflow\w*|tf_keras|keras|cerebras|tf)\b",
        re.MULTILINE,
    ),
}
_WORD = re.compile(rb"\w+")
UNREADABLE = "PW001"
RULE_FAILED = "PW002"


@dataclass(frozen=True)
class Selection:
    """The rules to run, and the targets to run them for."""

    rules: tuple[Rule, ...]
    targets: frozenset[str]
    ignored: frozenset[str] = frozenset()  # codes that the user turned off


def check_path(path: Path, project: Project, selection: Selection) -> list[Finding]:
    try:
        source = project.overlay.get(path) or read_source(path)
    except UnreadableError as error:
        return [unreadable(path, error, selection.targets)]
    return check_source(source, project, selection)


def check_source(source: Source, project: Project, selection: Selection) -> list[Finding]:
    """Findings of one file in the order of its lines; in a notebook lines are those of cells."""
    try:
        found = find(source, project, selection)
    except UnreadableError as error:
        line, column, where = source.place(min(error.line, len(source.line_starts)), error.column)
        return [replace(unreadable(source.path, error, selection.targets, where), line=line, column=column)]
    return [as_seen(source, finding) for finding in found]


def as_seen(source: Source, finding: Finding) -> Finding:
    """A finding with its line in the cell of a notebook; in other files the same finding."""
    line, column, where = source.place(finding.line, finding.column)
    return replace(finding, line=line, column=column, message=where + finding.message)


def find(source: Source, project: Project, selection: Selection) -> list[Finding]:
    """Findings with their edits, in lines of the text; raises UnreadableError where it is not Python."""
    found = [unreadable(source.path, problem, selection.targets) for problem in source.problems]
    frameworks = _frameworks_of(source.data)
    if not frameworks:
        source.parse()  # reports what is not Python, even if no rule runs
        return found
    file = File(source, project, selection.targets)
    # A rule runs only if one of its words occurs. A file has fewer words than bytes, so the search is over words.
    mentioned = b" ".join(set(_WORD.findall(source.data)))
    for rule in selection.rules:
        if rule.framework not in frameworks or not any(word in mentioned for word in _words_of(rule)):
            continue
        if not selection.targets.intersection(rule.targets):
            continue
        try:
            found += [finding for finding in rule.find(file) if finding.targets]
        except Exception as error:  # an error in one rule must not hide the findings of the others
            found.append(_rule_failed(source.path, rule, error, selection.targets))
    return sorted(_without_ignored(found, source), key=lambda f: f.place)


def file_frameworks(path: Path) -> set[str]:
    """The frameworks of a file; empty if it cannot be read, which its own check reports."""
    try:
        return _frameworks_of(read_source(path).data)
    except UnreadableError:
        return set()


def _frameworks_of(data: bytes) -> set[str]:
    """The frameworks whose rules to run on a file, which may use both; tf.nn alone does not count as torch."""
    found = {name for name, sign in _RELEVANT.items() if sign.search(data)}
    if found == {"torch", "tensorflow"} and b"torch" not in data:
        found.discard("torch")
    return found


@lru_cache(maxsize=1024)
def _words_of(rule: Rule) -> tuple[bytes, ...]:
    """For each word of a rule the longest run of word characters, which occurs wherever the word does."""
    return tuple(max(_WORD.findall(word.encode()) or [b""], key=len) for word in rule.words)


def unreadable(path: Path, error: UnreadableError, targets: Iterable[str], where: str = "") -> Finding:
    return Finding(
        code=UNREADABLE,
        path=str(path),
        line=error.line,
        column=error.column,
        message=f"{where}not checked, for {error}",
        cure="Mend the file, check it with the Python that it is written for, or leave it out with exclude.",
        safety="manual",
        targets=tuple(sorted(targets)),
        end_line=error.line,
    )


def _rule_failed(path: Path, rule: Rule, error: Exception, targets: Iterable[str]) -> Finding:
    return Finding(
        code=RULE_FAILED,
        path=str(path),
        line=1,
        column=1,
        message=f"the rule {rule.code} failed on this file: {type(error).__name__}: {error}",
        cure=f"Report this file to the rule's authors; until then check it with --ignore {rule.code}.",
        safety="manual",
        targets=tuple(sorted(targets)),
        end_line=1,
    )


def _without_ignored(found: Sequence[Finding], source: Source) -> list[Finding]:
    ignored = source.ignored
    kept = [f for f in found if not any(_covers(ignored, line, f.code) for line in {f.line, f.end_line})]
    return [_all_or_none(f, source, ignored) for f in kept]


def _all_or_none(finding: Finding, source: Source, ignored: dict[int, frozenset[str] | None]) -> Finding:
    """Drops the edits of a finding if one of them changes an ignored line, since edits are never made in part."""
    lines = {source.position(at)[0] for edit in finding.edits for at in (edit.start, edit.end)}
    forbidden = sorted(line for line in lines if _covers(ignored, line, finding.code))
    if not forbidden:
        return finding
    why = f" Its rewrite would change line {forbidden[0]} too, which is to be ignored."
    return replace(finding, edits=(), imports=(), safety="manual", cure=finding.cure + why)


def _covers(ignored: dict[int, frozenset[str] | None], line: int, code: str) -> bool:
    codes = ignored.get(line, frozenset())
    return codes is None or code in codes
