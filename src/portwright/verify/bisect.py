"""Finds the rewrite that changes the numbers, by judging copies with fewer and fewer rewrites."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from portwright.discover import find_rules
from portwright.errors import UserError
from portwright.port.apply import Port, make_port, write_copy
from portwright.port.check import Selection
from portwright.port.files import find_files
from portwright.port.finding import Finding, Safety
from portwright.port.origin import Origin, find_origin
from portwright.port.rule import File, Rule
from portwright.verify.command import parse_command
from portwright.verify.difference import count
from portwright.verify.judge import DropoutChoice, Judgement, judge
from portwright.verify.launch import Runs


def bisect_port(runs: Runs, judgement: Judgement, dropout: DropoutChoice, folder: Path) -> dict[str, Any]:
    """The rule, file and line of the first rewrite that makes the port differ; `says` is always there."""
    if judgement.difference is None:
        return {"says": "nothing to find: no difference was seen"}
    words = list(parse_command(runs.ported_command, folder).words)
    found = find_origin(Path(folder, words[0])) if words[0] != "-m" else None
    if found is None:
        raise UserError(
            f"{words[0]} is not a port that `portwright port` wrote, or one of an earlier version.",
            "Port it again with --out or --write, or leave --bisect away.",
        )
    copy, origin = found
    if origin.style != "in-place":
        raise UserError(
            f"a port of style {origin.style} is not made of single rewrites.", "Leave --bisect away."
        )
    return _Bisection(runs, judgement, dropout, folder, copy, origin, words).run()


class _Bisection:
    """One binary search, first for the rule, then for the place that it rewrote."""

    def __init__(
        self, runs: Runs, judgement: Judgement, dropout: DropoutChoice, folder: Path, copy: Path, origin: Origin,
        words: list[str],
    ) -> None:  # fmt: skip
        self._runs, self._dropout, self._folder = runs, dropout, folder
        self._is_crash = judgement.crash is not None
        self._copy, self._origin, self._words = copy, origin, words
        self._sources = self._original_tree()
        self._tried = 0

    def run(self) -> dict[str, Any]:
        rewrites = self._origin.rewrites
        first_places = {
            r.code: (r.path, r.line) for r in sorted(rewrites, key=lambda r: (r.path, r.line), reverse=True)
        }
        codes = sorted(first_places, key=first_places.__getitem__)
        if not codes:
            return {"says": "the port has no rewrite: the two commands differ otherwise"}
        rules = find_rules()
        gone = [code for code in codes if code not in rules]
        if gone:
            raise UserError(
                f"the port was made with the rule {gone[0]}, which is not installed.", "Install it."
            )
        chosen = [rules[code] for code in codes]
        if self._differs([]):
            return self._found(
                None, None, "a copy without any rewrite differs too: the cause is none of them"
            )
        if not self._differs(chosen):
            return self._found(
                None,
                None,
                "the port made again is equal: the copy was edited since, or made with other settings",
            )
        number = _first_failing(len(chosen), lambda n: self._differs(chosen[:n]))
        guilty, before = chosen[number - 1], chosen[: number - 1]
        if before and self._differs([guilty]):
            before = []
        places = self._places(guilty)
        if len(places) > 1:
            last = _first_failing(
                len(places), lambda n: self._differs([*before, _OnlyAt(guilty, set(places[:n]))])
            )
        else:
            last = len(places)
        return self._found(guilty, places[last - 1] if places else None, "")

    def _original_tree(self) -> Path:
        """The folder of the original files; files that the port overwrote are restored from the undo store into a copy."""
        top = Path(self._origin.folder)
        if not top.is_dir():
            raise UserError(
                f"the original of this port is gone: {top}.", "Put it back, or leave --bisect away."
            )
        if not self._origin.saved:
            return top
        sources = self._runs.scratch / "sources"
        shutil.copytree(top, sources, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        for relative, saved in self._origin.saved.items():
            shutil.copyfile(saved, sources / relative)
        return sources

    def _paths(self) -> list[Path]:
        return [self._sources / Path(p).relative_to(self._origin.folder) for p in self._origin.paths]

    def _places(self, rule: Rule) -> list[tuple[str, str]]:
        """Path and text of each line that the rule rewrites, in order; equal lines of a file count as one place."""
        return list(dict.fromkeys(_key(finding) for finding in self._port([rule]).fixed))

    def _port(self, rules: Sequence[Rule]) -> Port:
        allow: tuple[Safety, ...] = ("safe", "unsafe") if self._origin.unsafe else ("safe",)
        selection = Selection(tuple(rules), frozenset({self._origin.target}))
        return make_port(find_files(self._paths()), selection, allow)

    def _differs(self, rules: Sequence[Rule]) -> bool:
        """Whether a copy with only these rewrites differs in the same way as the whole port."""
        self._tried += 1
        out = self._runs.scratch / f"copy-{self._tried}"
        write_copy(self._port(rules), self._paths(), find_files(self._paths()), out)
        runs = self._runs.of_another_port(self._command_in(out), f"copy {self._tried}")
        found = judge(runs, self._dropout)
        # Some rewrites work only together with others, so a copy that crashes says nothing about numbers.
        return found.difference is not None and (found.crash is not None) == self._is_crash

    def _command_in(self, out: Path) -> list[str]:
        """The port's command, with each path into the port changed to point into the copy."""
        top = self._copy if not self._origin.saved else Path(self._origin.folder)
        words = []
        for word in self._words:
            path = Path(self._folder, word)
            inside = path.exists() and path.resolve().is_relative_to(top.resolve())
            words.append(str(out / path.resolve().relative_to(top.resolve())) if inside else word)
        return words

    def _found(self, rule: Rule | None, place: tuple[str, str] | None, says: str) -> dict[str, Any]:
        tried = f"{count(self._tried, 'copy') if self._tried == 1 else f'{self._tried} copies'} judged"
        if rule is None:
            return {"rule": None, "file": None, "line": None, "says": says, "tried": self._tried}
        path, line = None, None
        if place is not None:
            path = Path(place[0]).relative_to(self._sources).as_posix()
            text = (self._sources / path).read_text(encoding="utf-8", errors="replace").splitlines()
            line = next((n for n, t in enumerate(text, 1) if t.strip() == place[1]), None)
        where = f" at {path}:{line}" if path else ""
        return {
            "rule": rule.code,
            "file": path,
            "line": line,
            "says": f"{rule.code} ({rule.name}){where} changes the numbers; {tried}",
            "tried": self._tried,
        }


class _OnlyAt(Rule):
    """A rule that rewrites only the given places."""

    def __init__(self, rule: Rule, places: set[tuple[str, str]]) -> None:
        self._rule, self._places = rule, places
        for name in ("code", "name", "needs", "safety", "words", "cure"):
            setattr(self, name, getattr(rule, name))

    @property
    def targets(self) -> tuple[str, ...]:
        return self._rule.targets

    def find(self, file: File) -> Iterator[Finding]:
        lines = file.source.text.splitlines()
        for finding in self._rule.find(file):
            text = lines[finding.line - 1].strip() if finding.line <= len(lines) else ""
            if (finding.path, text) in self._places:
                yield finding
            else:
                yield replace(finding, edits=())


def _key(finding: Finding) -> tuple[str, str]:
    lines = Path(finding.path).read_text(encoding="utf-8", errors="replace").splitlines()
    return (finding.path, lines[finding.line - 1].strip() if finding.line <= len(lines) else "")


def _first_failing(total: int, fails: Callable[[int], bool]) -> int:
    """The smallest n with fails(n), where fails(0) is known to be False and fails(total) to be True."""
    good, bad = 0, total
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (good, middle) if fails(middle) else (middle, bad)
    return bad
