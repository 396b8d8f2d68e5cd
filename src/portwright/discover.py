"""Loads targets, rules and models by file name, and those of other packages by entry point."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from portwright.errors import UserError, suggest
from portwright.needs import Answer, check_needs

if TYPE_CHECKING:
    from portwright.port.rule import Rule
    from portwright.target import Target

_MODEL_FOLDERS = {"pytorch": "models", "tensorflow": "tensorflow/models"}
FRAMEWORKS = tuple(_MODEL_FOLDERS)


@cache
def find_targets() -> dict[str, Target]:
    """Every target by its name in capitals; each is one file in targets/, or an entry point `portwright.targets`."""
    found: dict[str, Target] = {}
    for module in pkgutil.iter_modules(importlib.import_module("portwright.targets").__path__):
        target: Target | None = getattr(
            importlib.import_module(f"portwright.targets.{module.name}"), "TARGET", None
        )
        if target is None:  # a file that several targets share
            continue
        if target.name.lower() != module.name:
            raise UserError(
                f"targets/{module.name}.py defines the target {target.name}.",
                "Name the file after the target.",
            )
        found[target.name] = target
    for point in entry_points(group="portwright.targets"):
        target = point.load()
        if target.name in found:
            raise UserError(
                f"two targets are named {target.name} ({point.value} is the second).", "Rename one."
            )
        found[target.name] = target
    for target in found.values():
        check_needs(target.needs, f"the target {target.name}")
    return found


def answers_of(name: str) -> Mapping[str, Answer]:
    """A target's answers to needs, by its name in small letters; empty for a name that only a rule knows."""
    target = find_targets().get(name.upper())
    return target.needs if target is not None else {}


@cache
def answer_of_device(device_type: str, need: str) -> Answer | None:
    """The answer to a need of the target whose tensors have this torch device type."""
    return next((t.needs.get(need) for t in find_targets().values() if device_type in t.device_types), None)


def host_target() -> str:
    """The name of the target that is this machine's own processor."""
    return next(name for name, target in find_targets().items() if target.torch_device == "cpu")


@cache
def targets_that_answer(needs: tuple[str, ...]) -> tuple[str, ...]:
    """The names, in small letters, of the targets that answer one of these needs."""
    return tuple(
        sorted(t.name.lower() for t in find_targets().values() if not t.needs.keys().isdisjoint(needs))
    )


def find_target(name: str) -> Target | None:
    """The target with this name, vendor or machine (csx, Cerebras, CS-2)."""
    return _targets_by_word().get(_plain(name))


def get_target(name: str) -> Target:
    target = find_target(name)
    if target is None:
        raise UserError(f"unknown target '{name}'.", suggest_target(name, find_targets()))
    return target


def suggest_target(name: str, valid: Iterable[str]) -> str:
    """Lists the valid targets, the nearest first; vendors' and machines' names count too."""
    words = _targets_by_word()
    names = {each.lower(): each for each in valid}
    nearest = difflib.get_close_matches(_plain(name), [*words, *names], n=1, cutoff=0.6)
    meant = words[nearest[0]].name.lower() if nearest and nearest[0] in words else _plain(name)
    return suggest(names.get(meant, name), names.values())


@cache
def _targets_by_word() -> dict[str, Target]:
    return {_plain(word): t for t in find_targets().values() for word in (*t.aliases, t.name)}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def peek_target(argv: Sequence[str]) -> Target | None:
    """The target that an unparsed command line names; None where it names none or asks for help."""
    if not argv or any(word in ("-h", "--help") for word in argv):
        return None
    if not argv[0].startswith("-"):
        return find_target(argv[0])
    given = {word.partition("=")[0] for word in argv}
    return next(
        (
            t
            for t in find_targets().values()
            for flag in t.flags
            if flag.chooses and given.intersection(flag.names)
        ),
        None,
    )


@cache
def find_rules() -> dict[str, Rule]:
    """Every porting rule by its code: one file in port/rules/, a row of legal_forms.py there, or an entry point `portwright.rules`."""
    found: dict[str, Rule] = {}
    for module in pkgutil.iter_modules(importlib.import_module("portwright.port.rules").__path__):
        defined = importlib.import_module(f"portwright.port.rules.{module.name}")
        rules = rules_of(defined)
        if module.name != "legal_forms" and [r.name.replace("-", "_") for r in rules] != [module.name]:
            raise UserError(
                f"port/rules/{module.name}.py defines {', '.join(r.name for r in rules) or 'no rule'}.",
                "Define one rule there, and name the file after it.",
            )
        for rule in rules:
            _add_rule(found, rule, module.name)
    for point in entry_points(group="portwright.rules"):
        loaded = point.load()
        _add_rule(found, loaded() if isinstance(loaded, type) else loaded, point.value)
    return dict(sorted(found.items()))


def rules_of(module: ModuleType) -> list[Rule]:
    """The rules that a module of port/rules/ defines: its rows, or its one class with a code."""
    own = [each for each in vars(module).values() if isinstance(each, type) and "code" in vars(each)]
    return [*getattr(module, "RULES", ()), *(each() for each in own if each.__module__ == module.__name__)]


def _add_rule(found: dict[str, Rule], rule: Rule, origin: str) -> None:
    check_needs(rule.needs, f"the rule {rule.name}")
    if not isinstance(rule.cure, str):
        raise UserError(
            f"the rule {rule.name} ({origin}) has a cure for each target.",
            "Write one text; a target's own words belong to its answer (Target.needs).",
        )
    if rule.code in found or any(rule.name == other.name for other in found.values()):
        raise UserError(
            f"two rules are called {rule.code} or {rule.name} ({origin} is the second).", "Rename one."
        )
    found[rule.code] = rule


def models_folder(framework: str = "pytorch") -> Path:
    return Path(__file__).parent / _MODEL_FOLDERS[framework]


def find_models(framework: str = "pytorch") -> dict[str, Path]:
    """Every reference model of a framework: a folder that has a run.py."""
    return {path.parent.name: path.parent for path in sorted(models_folder(framework).glob("*/run.py"))}


def find_all_models() -> dict[str, Path]:
    """Every reference model by the name that `portwright run` takes; those of TensorFlow are `tensorflow/NAME`."""
    others = [framework for framework in FRAMEWORKS if framework != FRAMEWORKS[0]]
    prefixed = {f"{each}/{name}": path for each in others for name, path in find_models(each).items()}
    return {**find_models(), **prefixed}
