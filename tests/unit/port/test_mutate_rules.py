"""The tool that breaks rules: it finds what a fixture does not look at, and nothing else."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from unit.port import rule_fixtures

from portwright.discover import find_rules

PATH = Path(__file__).parents[3] / "tools" / "mutate_rules.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutate_rules", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutate_rules"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def fates(tool: ModuleType, code: str) -> dict[str, bool]:
    rule = find_rules()[code]
    return {m.what: tool.is_killed(tool.load(m, rule), PATH.parent) for m in tool.mutants(rule, fine=False)}


def test_every_kind_of_mutant_is_made_and_killed(tool: ModuleType) -> None:
    killed = fates(tool, "PW501")
    assert all(killed.values())
    kinds = {what.partition(":")[0] for what in killed}
    assert kinds >= {"negated", "dropped yield", "spoilt text", "words emptied"}


def test_a_mutant_that_the_fixture_does_not_see_survives(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = rule_fixtures.load

    def shortened(name: str, end: str = "in") -> object:
        """The fixture without its case of a device that is chosen by torch.accelerator."""
        source = plain(name, end)
        text = source.text
        for function in ast.parse(text).body:
            if isinstance(function, ast.FunctionDef) and function.name == "choose":
                text = text[: text.index("def choose")]
        return type(source)(source.path, text.encode())

    monkeypatch.setattr(rule_fixtures, "load", shortened)
    killed = fates(tool, "PW501")
    assert any(not fate and "spoilt text" in what for what, fate in killed.items())
    assert killed["words emptied"]


def test_the_rule_itself_is_not_changed(tool: ModuleType) -> None:
    rule = find_rules()["PW601"]
    for mutant in tool.mutants(rule, fine=True):
        assert tool.load(mutant, rule) is not rule
    assert not tool.is_killed(rule, PATH.parent)
