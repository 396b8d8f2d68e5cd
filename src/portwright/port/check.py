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

# What a file must mention for any rule of a framework to have something to say about it.
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
    """The rules to ask, and the targets to ask them for."""

    rules: tuple[Rule, ...]
    targets: frozenset[str]


def check_path(path: Path, project: Project, selection: Selection) -> list[Finding]:
    try:
        source = project.overlay.get(path) or read_source(path)
    except UnreadableError as error:
        return [unreadable(path, error, selection.targets)]
    return check_source(source, project, selection)


def check_source(source: Source, project: Project, selection: Selection) -> list[Finding]:
    """Findings of one file, in the order of its lines, as a person sees its places."""
    try:
        found = find(source, project, selection)
    except UnreadableError as error:
        line, column, where = source.place(min(error.line, len(source.line_starts)), error.column)
        return [replace(unreadable(source.path, error, selection.targets, where), line=line, column=column)]
    return [as_seen(source, finding) for finding in found]


def as_seen(source: Source, finding: Finding) -> Finding:
    """A finding at the place that a person sees: in a notebook, the line of a cell."""
    line, column, where = source.place(finding.line, finding.column)
    return replace(finding, line=line, column=column, message=where + finding.message)


def find(source: Source, project: Project, selection: Selection) -> list[Finding]:
    """Findings with their edits, in lines of the text; raises UnreadableError where it is not Python."""
    found = [unreadable(source.path, problem, selection.targets) for problem in source.problems]
    frameworks = _frameworks_of(source.data)
    if not frameworks:
        source.parse()  # what is not Python is said, even where nothing else would be
        return found
    file = File(source, project, selection.targets)
    # A rule is asked only where one of its words occurs, and the words of a file are fewer than its bytes.
    mentioned = b" ".join(set(_WORD.findall(source.data)))
    for rule in selection.rules:
        if rule.framework not in frameworks or not any(word in mentioned for word in _words_of(rule)):
            continue
        if not selection.targets.intersection(rule.targets):
            continue
        try:
            found += [finding for finding in rule.find(file) if finding.targets]
        except Exception as error:  # one rule's mistake must not hide what the others found
            found.append(_rule_failed(source.path, rule, error, selection.targets))
    return sorted(_without_ignored(found, source), key=lambda f: f.place)


def _frameworks_of(data: bytes) -> set[str]:
    """Whose rules have something to say: tf.nn is not torch's nn, and a file may hold both."""
    found = {name for name, sign in _RELEVANT.items() if sign.search(data)}
    if found == {"torch", "tensorflow"} and b"torch" not in data:
        found.discard("torch")
    return found


@lru_cache(maxsize=1024)
def _words_of(rule: Rule) -> tuple[bytes, ...]:
    """Of each word the longest part that is letters, which must occur wherever the word does."""
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
    if not ignored:
        return list(found)
    return [f for f in found if not any(_covers(ignored, line, f.code) for line in {f.line, f.end_line})]


def _covers(ignored: dict[int, frozenset[str] | None], line: int, code: str) -> bool:
    codes = ignored.get(line, frozenset())
    return codes is None or code in codes
