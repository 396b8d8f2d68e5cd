"""The one loader of targets, rules, models and sites: by file name, and by entry point for other packages'."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from portwright.errors import UserError, suggest

if TYPE_CHECKING:
    from portwright.port.rule import Rule
    from portwright.target import Target

_MODEL_FOLDERS = {"pytorch": "models", "tensorflow": "tensorflow/models"}
FRAMEWORKS = tuple(_MODEL_FOLDERS)


@cache
def find_targets() -> dict[str, Target]:
    """Every target by its name in capitals; each is one file in targets/, or an entry point `portwright.targets`."""
    import portwright.targets

    found: dict[str, Target] = {}
    for module in pkgutil.iter_modules(portwright.targets.__path__):
        target: Target | None = getattr(
            importlib.import_module(f"portwright.targets.{module.name}"), "TARGET", None
        )
        if target is None:  # what several targets share
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
    return found


def get_target(name: str) -> Target:
    targets = find_targets()
    if name.upper() not in targets:
        raise UserError(f"unknown target '{name}'.", suggest(name.upper(), targets))
    return targets[name.upper()]


def peek_target(argv: Sequence[str]) -> Target | None:
    """The target that a command line names, before it is parsed; None where it names none, or asks for help."""
    if not argv or any(word in ("-h", "--help") for word in argv):
        return None
    targets = find_targets()
    if not argv[0].startswith("-"):
        return targets.get(argv[0].upper())
    given = {word.partition("=")[0] for word in argv}
    return next(
        (t for t in targets.values() for flag in t.flags if flag.chooses and given.intersection(flag.names)),
        None,
    )


@cache
def find_rules() -> dict[str, Rule]:
    """Every porting rule by its code; each is one file in port/rules/, or an entry point `portwright.rules`."""
    import portwright.port.rules

    found: dict[str, Rule] = {}
    for module in pkgutil.iter_modules(portwright.port.rules.__path__):
        rule: Rule = importlib.import_module(f"portwright.port.rules.{module.name}").RULE
        if rule.name.replace("-", "_") != module.name:
            raise UserError(
                f"port/rules/{module.name}.py defines the rule {rule.name}.", "Name the file after the rule."
            )
        _add_rule(found, rule, module.name)
    for point in entry_points(group="portwright.rules"):
        loaded = point.load()
        _add_rule(found, loaded() if isinstance(loaded, type) else loaded, point.value)
    return dict(sorted(found.items()))


def _add_rule(found: dict[str, Rule], rule: Rule, origin: str) -> None:
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
