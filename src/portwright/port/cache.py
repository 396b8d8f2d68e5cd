"""Remembers the findings of files, as long as neither they nor the files that they depend on change."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright import __version__
from portwright.errors import UserError
from portwright.job.atomic import atomic_write_text
from portwright.port.check import Selection
from portwright.port.finding import Finding
from portwright.port.project import digest
from portwright.port.source import UnreadableError, read_bytes


@dataclass(frozen=True)
class Checked:
    """The findings of one file, and the digests of the other files that they depend on."""

    path: Path
    findings: list[Finding]
    consulted: dict[str, str | None]


def to_row(checked: Checked) -> dict[str, Any]:
    return {
        "path": str(checked.path),
        "findings": [{**f.as_dict(), "end_line": f.end_line} for f in checked.findings],
        "consulted": checked.consulted,
    }


def from_row(row: dict[str, Any]) -> Checked:
    return Checked(Path(row["path"]), [Finding.from_dict(f) for f in row["findings"]], row["consulted"])


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "portwright" / "check"


class Store:
    """One cache file, outside of all projects, for what a key stands for; an unwritable one is ignored."""

    def __init__(self, *key: Any) -> None:
        name = digest(json.dumps([*key, _fingerprint()]).encode())
        self.path = cache_folder() / f"{name}.json"
        self.missing: set[str] = (
            set()
        )  # files that were looked for: one that appears may change what a name means
        self._digests: dict[str, str | None] = {}

    def read(self) -> dict[str, Any]:
        """What was written; empty if nothing was, or if a file that was missing is there now."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
            if not any(Path(path).exists() for path in content["missing"]):
                self.missing = set(content["missing"])
                return content
        return {}

    def write(self, **content: Any) -> None:
        with contextlib.suppress(UserError):
            document = {**content, "missing": sorted(self.missing)}
            atomic_write_text(self.path, json.dumps(document, default=str))

    def digest(self, path: str) -> str | None:
        """A file's digest; None if it cannot be read."""
        if path not in self._digests:
            try:
                self._digests[path] = digest(read_bytes(Path(path)))
            except UnreadableError:
                self._digests[path] = None
        return self._digests[path]


class Cache:
    """The findings of a project's files for a selection of rules."""

    def __init__(self, root: Path, selection: Selection, members: Sequence[Path]) -> None:
        self._store = Store(str(root), sorted(selection.targets), [r.code for r in selection.rules])
        self.path = self._store.path
        self._entries: dict[str, dict[str, Any]] = {}
        self._members = {str(path) for path in members}
        content = self._store.read()
        # A step in a file that was not checked before may call functions of any other file.
        if self._members <= set(content.get("members", ())):
            self._entries, self._members = content.get("entries", {}), set(content.get("members", ()))

    def known(self, files: Sequence[Path]) -> dict[Path, list[Finding]]:
        """Findings of the files that did not change."""
        return {
            path: [Finding.from_dict(f) for f in self._entries[str(path)]["findings"]]
            for path in files
            if self._is_fresh(path)
        }

    def add(self, checked: Iterable[Checked]) -> None:
        for each in checked:
            row = to_row(each)
            self._store.missing.update(p for p, old in each.consulted.items() if old is None)
            self._entries[row["path"]] = {
                "digest": self._store.digest(row["path"]),
                "needs": {p: old for p, old in each.consulted.items() if old is not None},
                "findings": row["findings"],
            }
        self._store.write(members=sorted(self._members), entries=self._entries)

    def _is_fresh(self, path: Path) -> bool:
        entry = self._entries.get(str(path))
        if entry is None or entry["digest"] is None or entry["digest"] != self._store.digest(str(path)):
            return False
        return all(self._store.digest(needed) == old for needed, old in entry["needs"].items())


def _fingerprint() -> list[str]:
    """A key that changes with every rule, target and module of the checker."""
    from portwright.discover import find_rules, find_targets

    folder = Path(__file__).parent
    marks = [
        f"{p.relative_to(folder.parent)} {p.stat().st_size} {p.stat().st_mtime_ns}"
        for p in [*sorted(folder.rglob("*.py")), folder.parent / "legal_forms.py"]
    ]
    outside = [f"{type(r).__module__} {r.code}" for r in find_rules().values()]
    answers = [f"{name} {sorted(target.needs.items())}" for name, target in find_targets().items()]
    return [__version__, platform.python_version(), *marks, *outside, *answers]
