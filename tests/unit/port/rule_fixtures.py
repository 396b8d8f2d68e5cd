"""The fixture pairs of rules: NAME.in.py, whose lines end `# expect: CODE SAFETY`, and NAME.out.py after all rewrites."""

from __future__ import annotations

import re
from pathlib import Path

from portwright.port.check import Selection, find
from portwright.port.patch import make_patch
from portwright.port.project import Project
from portwright.port.rule import Rule
from portwright.port.source import Source, decode

FOLDER = Path(__file__).parents[2] / "fixtures" / "rules"
_EXPECT = re.compile(r"# expect: (PW\d+) ([a-z ]+)$")


def names() -> list[str]:
    return sorted(path.name.removesuffix(".in.py") for path in FOLDER.glob("*.in.py"))


def load(name: str, end: str = "in") -> Source:
    path = FOLDER / f"{name}.{end}.py"
    return decode(path, path.read_bytes())


def project() -> Project:
    return Project(FOLDER)


def select(rule: Rule) -> Selection:
    return Selection((rule,), frozenset(rule.targets))


def mistakes(rule: Rule, name: str) -> list[str]:
    """Everything in which a rule differs from its fixture."""
    source = load(name)
    expected = {
        (number, code, safety)
        for number, line in enumerate(source.text.splitlines(), 1)
        for code, safeties in _EXPECT.findall(line)
        for safety in safeties.split()
    }
    found = {(f.line, f.code, f.safety) for f in find(source, project(), select(rule))}
    wrong = [f"line {line} should have {code} {safety}" for line, code, safety in sorted(expected - found)]
    wrong += [
        f"line {line} should not have {code} {safety}" for line, code, safety in sorted(found - expected)
    ]
    after = make_patch(source, project(), select(rule), ("safe", "unsafe")).after
    if after.data != load(name, "out").data:
        wrong.append("the rewritten text is not that of the .out.py")
    return wrong
