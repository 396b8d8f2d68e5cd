"""The entry scripts of one `check` with their verdicts, and the cache of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from portwright.port.cache import Store
from portwright.port.check import Selection
from portwright.port.files import _absolute as absolute
from portwright.port.files import show
from portwright.port.finding import Finding
from portwright.port.look import Look, Place, find_entries, look_at
from portwright.port.owners import Reader, owner_of_name
from portwright.port.project import group_by_root
from portwright.port.report import summarise
from portwright.port.verdict import AS_IT_IS, Plan, Verdict


@dataclass(frozen=True)
class Entry:
    """An entry script, with its verdict for each target."""

    look: Look
    verdicts: tuple[Verdict, ...]

    def as_dict(self) -> dict[str, Any]:
        """The documented JSON form."""
        return {
            "path": show(self.look.entry),
            "owners": [
                {"owner": owner.name, "path": show(place.path), "line": place.line}
                for owner, place in self.look.owners
            ],
            "files": [show(path) for path in self.look.files],
            "not_followed": [
                {"import": what, "why": why, "path": show(place.path), "line": place.line}
                for what, why, place in self.look.not_followed
            ],
            "verdicts": [verdict.as_dict() for verdict in self.verdicts],
        }


@dataclass(frozen=True)
class CheckResult:
    """The findings and verdicts of `check`."""

    findings: list[Finding]
    selection: Selection
    entries: list[Entry]
    files: list[str]

    def as_dict(self) -> dict[str, Any]:
        """The documented JSON form."""
        return {
            "findings": [f.as_dict() for f in self.findings],
            "entries": [entry.as_dict() for entry in self.entries],
            "summary": summarise(self.findings),
        }

    @property
    def runs_as_it_is(self) -> bool:
        """Whether every entry runs as it is on every target."""
        return not self.findings and all(
            v.answer == AS_IT_IS for entry in self.entries for v in entry.verdicts
        )


class Looked:
    """What one call of `check` read of its entries, and the plans for them; both are cached until a file changes."""

    def __init__(
        self, paths: Sequence[Path], files: Sequence[Path], selection: Selection, exclude: Sequence[str], use_cache: bool,
        ask: Callable[[Look, str, str, Selection], Plan] | None = None,
    ) -> None:  # fmt: skip
        """`ask` plans what a style of `port` would do with an entry; only `plan` calls it."""
        self._ask = ask
        self._paths, self._files, self._selection, self._exclude = paths, files, selection, exclude
        codes = [rule.code for rule in selection.rules]
        named = [[str(p.absolute()) for p in paths], [str(f) for f in files]]
        self._store = Store("looks", *named, codes, list(exclude)) if use_cache else None
        self._looks: list[Look] = []
        self._plans: dict[str, Plan] = {}
        self._is_new = False

    def read(self) -> list[Look]:
        if not self._load():
            self._looks = self._look()
            self._is_new = True
        return self._looks

    def plan(self, look: Look, target: str, style: str) -> Plan:
        key = f"{look.entry}\n{target}\n{style}"
        if key not in self._plans:
            assert self._ask is not None
            self._plans[key] = self._ask(look, target, style, self._selection)
            self._is_new = True
        return self._plans[key]

    def save(self) -> None:
        if self._store is None or not self._is_new:
            return
        rows = [
            {**asdict(look), "owners": [(owner.name, asdict(place)) for owner, place in look.owners]}
            for look in self._looks
        ]
        plans = {
            key: {**plan.__dict__, "left": [{**f.as_dict(), "end_line": f.end_line} for f in plan.left]}
            for key, plan in self._plans.items()
        }
        read = {str(path) for look in self._looks for path in (*look.files, *self._files)}
        self._store.write(needs={path: self._store.digest(path) for path in read}, looks=rows, plans=plans)

    def _load(self) -> bool:
        content = self._store.read() if self._store is not None else {}
        if self._store is None or not content:
            return False
        try:
            if any(self._store.digest(path) != old for path, old in content["needs"].items()):
                return False
            self._looks = [_look_from(row) for row in content["looks"]]
            self._plans = {
                key: Plan(**{**row, "left": tuple(Finding.from_dict(f) for f in row["left"])})
                for key, row in content["plans"].items()
            }
        except (KeyError, TypeError):
            return False
        return True

    def _look(self) -> list[Look]:
        """Reads named files that no other entry imports, and the scripts in folders that train; without any, all files as one entry."""
        looks: list[Look] = []
        named = {absolute(path) for path in self._paths if not path.is_dir()}
        for root, members in group_by_root(self._files).items():
            reader = Reader(root)
            own = [look_at(path, reader, self._exclude) for path in members if path in named]
            own += find_entries([path for path in members if path not in named], reader, self._exclude)
            looks += own
            if self._store is not None:
                gone = (path for path, old in reader.project.consulted.items() if old is None)
                self._store.missing.update(gone)
        started = {path for look in looks if look.owners for path in look.files}
        kept = [look for look in looks if look.owners or look.entry not in started]
        return kept or [Look(self._paths[0].absolute(), tuple(self._files), (), (), None, False)]


def _look_from(row: dict[str, Any]) -> Look:
    return Look(
        Path(row["entry"]),
        tuple(map(Path, row["files"])),
        tuple((what, why, Place(**place)) for what, why, place in row["not_followed"]),
        tuple((owner_of_name(name), Place(**place)) for name, place in row["owners"]),
        Place(**row["uses_gpu"]) if row["uses_gpu"] else None,
        row["names_device"],
    )
