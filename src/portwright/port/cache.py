"""Remembers the findings of files, as long as neither they nor the files that they depend on change."""

from __future__ import annotations

import contextlib
import hashlib
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


class Cache:
    """One cache file, outside the project, for a project and a selection of rules; an unwritable cache is ignored."""

    def __init__(self, root: Path, selection: Selection, members: Sequence[Path]) -> None:
        key = [str(root), _fingerprint(), sorted(selection.targets), [r.code for r in selection.rules]]
        name = hashlib.blake2b(json.dumps(key).encode(), digest_size=16).hexdigest()
        self.path = cache_folder() / f"{name}.json"
        self._digests: dict[str, str | None] = {}
        self._entries: dict[str, dict[str, Any]] = {}
        self._missing: set[str] = set()
        self._members = {str(path) for path in members}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(self.path.read_text(encoding="utf-8"))
            # A file that was missing before may change what a name means, and a step in a file that was not
            # checked before may call functions of any other file.
            known = set(content["members"])
            if self._members <= known and not any(Path(path).exists() for path in content["missing"]):
                self._entries, self._missing = content["entries"], set(content["missing"])
                self._members = known

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
            self._missing.update(p for p, old in each.consulted.items() if old is None)
            self._entries[row["path"]] = {
                "digest": self._digest(row["path"]),
                "needs": {p: old for p, old in each.consulted.items() if old is not None},
                "findings": row["findings"],
            }
        with contextlib.suppress(UserError):
            content = {
                "missing": sorted(self._missing), "members": sorted(self._members), "entries": self._entries
            }  # fmt: skip
            atomic_write_text(self.path, json.dumps(content))

    def _is_fresh(self, path: Path) -> bool:
        entry = self._entries.get(str(path))
        if entry is None or entry["digest"] is None or entry["digest"] != self._digest(str(path)):
            return False
        return all(self._digest(needed) == old for needed, old in entry["needs"].items())

    def _digest(self, path: str) -> str | None:
        if path not in self._digests:
            try:
                self._digests[path] = digest(read_bytes(Path(path)))
            except UnreadableError:
                self._digests[path] = None
        return self._digests[path]


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
