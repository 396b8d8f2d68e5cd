"""Source lines and edits of findings, for reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from portwright.port.check import Selection, find
from portwright.port.finding import Edit, Finding
from portwright.port.patch import _has_statement, _insert_imports
from portwright.port.project import Project, find_root, read_source
from portwright.port.rule import Rule
from portwright.port.source import Source, UnreadableError


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
