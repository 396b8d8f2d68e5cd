"""What was found in files that have not changed since, nor anything that it depended on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portwright import __version__
from portwright.errors import UserError
from portwright.job.atomic import atomic_write_text
from portwright.port.check import Selection
from portwright.port.finding import Finding
from portwright.port.project import digest
from portwright.port.source import UnreadableError, read_bytes

if TYPE_CHECKING:
    from portwright.port.many import Checked


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "portwright" / "check"


class Cache:
    """One file for a project and a selection of rules, outside of the project; a cache that cannot be written is none."""

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
            # A file that was looked for in vain and is there now may change what any name means, and the step of a file
            # that was not looked at before may call what any other one defines.
            known = set(content["members"])
            if self._members <= known and not any(Path(path).exists() for path in content["missing"]):
                self._entries, self._missing = content["entries"], set(content["missing"])
                self._members = known

    def known(self, files: Sequence[Path]) -> dict[Path, list[Finding]]:
        """Findings of files that are as they were."""
        return {
            path: [Finding.from_dict(f) for f in self._entries[str(path)]["findings"]]
            for path in files
            if self._is_fresh(path)
        }

    def add(self, checked: Iterable[Checked]) -> None:
        from portwright.port.many import to_row

        for each in checked:
            row = to_row(each)
            self._missing.update(p for p, held in each.consulted.items() if held is None)
            self._entries[row["path"]] = {
                "digest": self._digest(row["path"]),
                "needs": {p: held for p, held in each.consulted.items() if held is not None},
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
        return all(self._digest(needed) == held for needed, held in entry["needs"].items())

    def _digest(self, path: str) -> str | None:
        if path not in self._digests:
            try:
                self._digests[path] = digest(read_bytes(Path(path)))
            except UnreadableError:
                self._digests[path] = None
        return self._digests[path]


def _fingerprint() -> list[str]:
    """Changes whenever a rule or the engine does, also between two versions."""
    from portwright.discover import find_rules

    folder = Path(__file__).parent
    marks = [
        f"{p.relative_to(folder)} {p.stat().st_size} {p.stat().st_mtime_ns}"
        for p in sorted(folder.rglob("*.py"))
    ]
    outside = [f"{type(r).__module__} {r.code}" for r in find_rules().values()]
    return [__version__, platform.python_version(), *marks, *outside]
