"""Every rule against its fixtures, its page, and a broken copy of itself."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from unit.port.rule_fixtures import FOLDER, load, mistakes, names, project, select

from portwright.discover import find_rules
from portwright.port.check import find
from portwright.port.explain import page
from portwright.port.finding import SAFETIES, Finding
from portwright.port.patch import make_patch
from portwright.port.project import Project
from portwright.port.rule import GROUPS, File, Rule
from portwright.port.source import Source

RULES = list(find_rules().values())
PREAMBLE = b"import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n"
SECTIONS = ("## Why", "## Example", "## Instead", "## Safety")
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


def fixture_of(rule: Rule) -> str:
    return rule.name.replace("-", "_")


def test_fixtures_and_rules_are_the_same_set() -> None:
    assert names() == sorted(fixture_of(rule) for rule in RULES)
    assert {p.name for p in FOLDER.iterdir() if p.is_file()} == {
        f"{n}.{e}.py" for n in names() for e in ("in", "out")
    }


@every_rule
def test_fixture(rule: Rule) -> None:
    assert mistakes(rule, fixture_of(rule)) == []


@every_rule
def test_a_rule_that_finds_nothing_fails_its_fixture(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(self: Rule, file: File) -> Iterator[Finding]:
        return iter(())

    monkeypatch.setattr(type(rule), "find", find_nothing)
    assert mistakes(rule, fixture_of(rule)) != []


@every_rule
def test_a_rule_that_rewrites_nothing_fails_its_fixture(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = type(rule).find

    def find_only(self: Rule, file: File) -> Iterator[Finding]:
        return (replace(f, edits=(), safety="manual") for f in whole(self, file))

    if rule.safety == "manual":
        assert not any(f.edits for f in find(load(fixture_of(rule)), project(), select(rule)))
        return
    monkeypatch.setattr(type(rule), "find", find_only)
    assert mistakes(rule, fixture_of(rule)) != []


@every_rule
def test_a_rule_that_finds_everything_fails_its_fixture(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fixtures hold what the rule must leave alone, or else it could report each call and pass."""

    def find_all(self: Rule, file: File) -> Iterator[Finding]:
        nodes = [node for node in ast.walk(file.tree.module) if isinstance(node, (ast.expr, ast.stmt))]
        return (self.report(file, node, "found") for node in nodes)

    monkeypatch.setattr(type(rule), "find", find_all)
    assert any("should not have" in wrong for wrong in mistakes(rule, fixture_of(rule)))


@every_rule
def test_fixture_is_stable_after_one_port(rule: Rule) -> None:
    after = load(fixture_of(rule), "out")
    assert make_patch(after, project(), select(rule), ("safe", "unsafe")).after.data == after.data


@every_rule
def test_description(rule: Rule) -> None:
    assert re.fullmatch(r"PW[1-6]\d\d", rule.code)
    assert rule.code[:3] in GROUPS
    assert rule.safety in SAFETIES
    assert set(rule.targets) <= {"csx", "ipu", "rdu"}
    assert rule.targets
    assert rule.cure_for(rule.targets).endswith((".", ")", "..."))
    text = page(rule)
    assert [s for s in SECTIONS if text.count(s) == 1] == list(SECTIONS)
    assert Path(inspect.getfile(type(rule))).stem == fixture_of(rule)


def examples(rule: Rule) -> dict[str, bytes]:
    found = re.findall(r"## (Example|Instead)\n```python\n(.*?)\n```", page(rule), re.DOTALL)
    return {kind: PREAMBLE + text.encode() + b"\n" for kind, text in found}


@every_rule
def test_page_shows_what_is_found_and_what_is_not(rule: Rule, tmp_path: Path) -> None:
    first_target = replace(select(rule), targets=frozenset(rule.targets[:1]))
    texts = examples(rule)
    bad, good = (Source(tmp_path / "x.py", texts[kind]) for kind in ("Example", "Instead"))
    assert {f.code for f in find(bad, Project(tmp_path), first_target)} == {rule.code}
    assert find(good, Project(tmp_path), first_target) == []


@every_rule
def test_words_are_in_the_fixture(rule: Rule) -> None:
    """A rule is asked only where one of its words occurs, so a finding without one would be lost."""
    assert any(word in load(fixture_of(rule)).text for word in rule.words)


def test_every_known_pattern_has_a_rule() -> None:
    codes = {rule.code for rule in RULES}
    rows = [line.split("\t") for line in (FOLDER.parent / "patterns.tsv").read_text().splitlines()[1:]]
    assert len(rows) == 60
    for pattern, listed in rows:
        assert set(listed.split()) <= codes, pattern
        assert listed, pattern


@pytest.mark.parametrize(("norm", "safety"), [("LayerNorm(3)", "safe"), ("BatchNorm1d(3)", "unsafe")])
def test_recomputation_of_batch_norms_is_left_as_it_is(norm: str, safety: str, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "from torch import nn\nfrom torch.utils.checkpoint import checkpoint\n\n\n"
        f"class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.norm = nn.{norm}\n\n"
        "    def forward(self, x):\n        return checkpoint(self.norm, x)\n"
    )
    rule = next(rule for rule in RULES if rule.code == "PW335")
    assert [f.safety for f in find(Source(path, path.read_bytes()), Project(tmp_path), select(rule))] == [
        safety
    ]


@pytest.mark.parametrize(
    ("hook", "safety"),
    [("", "safe"), ("layer.register_forward_hook(print)", "manual")],
    ids=["plain", "hooked"],
)
def test_layers_that_hooks_look_into_are_left(hook: str, safety: str, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        f"from torch import nn\n\nlayer = nn.TransformerEncoderLayer(8, 2, batch_first=True)\n{hook}\n"
    )
    rule = next(rule for rule in RULES if rule.code == "PW340")
    (finding,) = find(Source(path, path.read_bytes()), Project(tmp_path), select(rule))
    assert (finding.line, finding.safety) == (3, safety)
