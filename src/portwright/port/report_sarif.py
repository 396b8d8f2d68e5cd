"""Findings as SARIF 2.1.0, which code-review tools read, with rewrites as fixes."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from portwright import __version__
from portwright.port.check import Selection, find
from portwright.port.entries import CheckResult
from portwright.port.files import show
from portwright.port.finding import Edit, Finding
from portwright.port.patch import _has_statement, _insert_imports
from portwright.port.project import Project, find_root, read_source
from portwright.port.report import verdict_line
from portwright.port.rule import Rule
from portwright.port.source import Source, UnreadableError
from portwright.port.verdict import AS_IT_IS

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_BASE = "SRCROOT"
_SEMANTIC = re.compile(r"\d+\.\d+\.\d+(?:[-+][0-9A-Za-z.+-]+)?")


def sarif_report(result: CheckResult) -> dict[str, Any]:
    """The report as one SARIF run; verdicts are its notifications, and complete in its properties."""
    findings, rules = result.findings, result.selection.rules
    known = {rule.code: rule for rule in rules}
    codes = sorted({*known, *(f.code for f in findings)})
    sources = Sources(rules)
    prints = _fingerprints(findings, sources)
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "portwright",
                        "version": __version__,
                        **({"semanticVersion": __version__} if _SEMANTIC.fullmatch(__version__) else {}),
                        "rules": [_descriptor(code, known.get(code)) for code in codes],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "newlineSequences": ["\r\n", "\r", "\n"],
                "originalUriBaseIds": {_BASE: {"uri": Path.cwd().as_uri().rstrip("/") + "/"}},
                "results": [
                    _result(finding, codes, sources, fingerprint)
                    for finding, fingerprint in zip(findings, prints, strict=True)
                ],
                "invocations": [
                    {"executionSuccessful": True, "toolExecutionNotifications": _notifications(result)}
                ],
                "properties": {name: value for name, value in result.as_dict().items() if name != "findings"},
            }
        ],
    }


def _notifications(result: CheckResult) -> list[dict[str, Any]]:
    return [
        {
            "level": "note" if verdict.answer == AS_IT_IS else "warning",
            "message": {"text": verdict_line(verdict)},
            "locations": [{"physicalLocation": {"artifactLocation": _location(show(entry.look.entry))}}],
        }
        for entry in result.entries
        for verdict in entry.verdicts
    ]


def _descriptor(code: str, rule: Rule | None) -> dict[str, Any]:
    if rule is None:
        return {"id": code, "shortDescription": {"text": "The file could not be checked."}}
    page = inspect.cleandoc(type(rule).__doc__ or rule.name)
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": page.partition("\n")[0]},
        "fullDescription": {"text": page.partition("## Example")[0].replace("## Why", "").strip()},
        "help": {"text": page, "markdown": page},
        "defaultConfiguration": {"level": _level(rule.safety)},
        "properties": {"tags": [*rule.targets, rule.group()], "safety": rule.safety},
    }


def _level(safety: str) -> str:
    return "error" if safety == "manual" else "warning"


def _result(finding: Finding, codes: Sequence[str], sources: Sources, fingerprint: str) -> dict[str, Any]:
    place: dict[str, Any] = {"artifactLocation": _location(finding.path)}
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": _level(finding.safety),
        "message": {"text": f"{finding.message}. {finding.cure}"},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {"portwrightFinding/v1": fingerprint},
        "properties": {"safety": finding.safety, "targets": list(finding.targets)},
    }
    if finding.path.endswith(".ipynb"):
        # A line of a cell is not a line of the .ipynb file.
        name = finding.message.partition(":")[0] if finding.message.startswith("cell") else "cell"
        result["locations"][0]["logicalLocations"] = [
            {"fullyQualifiedName": f"{name}, line {max(finding.line, 1)}"}
        ]
        return result
    place["region"] = {"startLine": max(finding.line, 1), "startColumn": max(finding.column, 1)}
    if finding.end_line > finding.line:
        place["region"]["endLine"] = finding.end_line
    fix = sources.fix_of(finding)
    if fix is not None:
        source, edits = fix
        result["fixes"] = [
            {
                "description": {"text": finding.cure},
                "artifactChanges": [
                    {
                        "artifactLocation": _location(finding.path),
                        "replacements": [_replacement(source, e.start, e.end, e.text) for e in edits],
                    }
                ],
            }
        ]
    return result


def _replacement(source: Source, start: int, end: int, text: str) -> dict[str, Any]:
    line, column = source.position(start)
    end_line, end_column = source.position(end)
    region = {"startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column}
    return {"deletedRegion": region, **({"insertedContent": {"text": text}} if text else {})}


def _location(path: str) -> dict[str, Any]:
    if PurePath(path).is_absolute():
        return {"uri": PurePath(path).as_uri()}
    return {"uri": quote(os.fsencode(PurePath(path).as_posix())), "uriBaseId": _BASE}


def _fingerprints(findings: Sequence[Finding], sources: Sources) -> list[str]:
    """Hashes that stay the same for a finding that only moved: of its code, file, line text, and number among equal ones."""
    seen: Counter[str] = Counter()
    prints = []
    for finding in findings:
        text = " ".join(sources.line_of(finding).split())
        key = "\0".join((finding.code, PurePath(finding.path).as_posix(), text))
        seen[key] += 1
        whole = f"{key}\0{seen[key]}".encode("utf-8", "surrogateescape")
        prints.append(hashlib.sha256(whole).hexdigest()[:32])
    return prints


class Sources:
    """Reads each file once; an unreadable file has no lines, and a finding of its own."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)
        self._sources: dict[str, Source | None] = {}
        self._found: dict[tuple[str, tuple[str, ...]], dict[tuple[str, int, int], Finding]] = {}

    def line_of(self, finding: Finding) -> str:
        """The text of a finding's line; empty if unknown."""
        source = self._source(finding.path)
        if source is None or finding.path.endswith(".ipynb"):
            return ""
        if not 1 <= finding.line <= len(source.line_starts):
            return ""
        start, end = source.line_span(finding.line)
        return source.data[start:end].decode("utf-8", "replace").rstrip("\r\n")

    def fix_of(self, finding: Finding) -> tuple[Source, list[Edit]] | None:
        """The edits of a finding, with the imports that they need; None if it has none."""
        source = self._source(finding.path)
        if finding.safety == "manual" or source is None or finding.path.endswith(".ipynb"):
            return None
        known = self._edits(finding, source).get((finding.code, finding.line, finding.column))
        if known is None or not known.edits:
            return None
        edits = sorted(known.edits)
        module = source.parse()
        missing = [s for s in known.imports if not _has_statement(module, s)]
        if missing:
            edits.append(_insert_imports(source, module, missing, edits[0].start))
        return source, sorted(edits)

    def _source(self, path: str) -> Source | None:
        if path not in self._sources:
            try:
                self._sources[path] = read_source(Path(path).absolute())
            except UnreadableError:
                self._sources[path] = None
        return self._sources[path]

    def _edits(self, finding: Finding, source: Source) -> dict[tuple[str, int, int], Finding]:
        key = (finding.path, finding.targets)
        if key not in self._found:
            project = Project(find_root(source.path))
            try:
                found = find(source, project, Selection(self._rules, frozenset(finding.targets)))
            except UnreadableError:
                found = []
            self._found[key] = {(f.code, f.line, f.column): f for f in found}
        return self._found[key]
