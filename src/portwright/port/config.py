"""Reads `[tool.portwright]` in pyproject.toml, and selects rules and targets by it and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portwright.discover import find_rules, find_target, find_targets, suggest_target
from portwright.errors import UserError, suggest
from portwright.port.check import Selection
from portwright.port.project import find_root
from portwright.port.rule import Rule

_KEYS = ("select", "ignore", "targets", "exclude")


@dataclass(frozen=True)
class Config:
    """A project's settings for checks."""

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


def read_config(path: Path) -> Config:
    """The settings of the project that a path belongs to."""
    file = find_root(path) / "pyproject.toml"
    if not file.is_file():
        return Config()
    try:
        raw = file.read_bytes()
        if b"portwright" not in raw:
            return Config()
        text = raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(
            f"the settings in {file} cannot be read: {(reason or str(error)).lower()}.",
            "Mend it, or move it away.",
        ) from None
    tools = _load(file, text).get("tool", {})
    section = tools.get("portwright", {}) if isinstance(tools, dict) else {}
    if not isinstance(section, dict):
        raise UserError(f"{file}: tool.portwright is {section!r}.", "Write a section: [tool.portwright].")
    values: dict[str, tuple[str, ...]] = {}
    for key, value in section.items():
        if key not in _KEYS:
            raise UserError(f"{file} has an unknown key '{key}' in [tool.portwright].", suggest(key, _KEYS))
        if (
            isinstance(value, str)
            or not isinstance(value, list)
            or not all(isinstance(v, str) for v in value)
        ):
            raise UserError(
                f"{file}: {key} in [tool.portwright] is {value!r}.",
                f'Write a list of texts: {key} = ["..."].',
            )
        values[key] = tuple(value)
    return Config(**values)


def known_targets(rules: Iterable[Rule]) -> list[str]:
    """Every target that some rule names."""
    return sorted({target for rule in rules for target in rule.targets})


def make_selection(
    config: Config, targets: Sequence[str], select: Sequence[str], ignore: Sequence[str]
) -> Selection:
    """Selects by the command line, else by the project's settings, else all rules for all accelerators."""
    rules = find_rules()
    targets, select, ignore = (_split(words) for words in (targets, select, ignore))
    ruled = known_targets(rules.values())
    accelerators = known_targets(rule for rule in rules.values() if rule.framework == "torch")
    wanted = [_target_name(word, ruled) for word in targets or config.targets] or accelerators
    chosen = _codes(select or config.select, rules) if (select or config.select) else set(rules)
    ignored = frozenset(_codes([*ignore, *config.ignore], rules))
    asked = tuple(rule for code, rule in rules.items() if code in chosen - ignored)
    return Selection(asked, frozenset(wanted), ignored)


def _split(words: Sequence[str]) -> list[str]:
    """Splits lists at commas: `--target csx,ipu` means two targets."""
    return [part.strip() for word in words for part in word.split(",")]


def find_rule(name: str) -> Rule:
    """A rule by its code or its name."""
    rules = find_rules()
    for code, rule in rules.items():
        if name.upper() == code or name.lower() == rule.name:
            return rule
    raise UserError(
        f"unknown rule '{name}'.",
        suggest(
            name.upper() if name[:2].upper() == "PW" else name, [*rules, *(r.name for r in rules.values())]
        ),
    )


def _target_name(word: str, ruled: Sequence[str]) -> str:
    """The name of a target as rules write it; targets that no rule names are valid too."""
    target = find_target(word)
    name = target.name.lower() if target is not None else word.lower()
    if target is None and name not in ruled:
        valid = {*ruled, *(each.lower() for each in find_targets())}
        raise UserError(f"unknown target '{word}'.", suggest_target(word, valid))
    return name


def _codes(wanted: Sequence[str], rules: dict[str, Rule]) -> set[str]:
    """Codes of the rules given by code (PW201), by a prefix of codes (PW2), or by name."""
    found: set[str] = set()
    for word in wanted:
        matching = {c for c, r in rules.items() if c.startswith(word.upper()) or r.name == word.lower()}
        if not matching or not word:
            raise UserError(
                f"no rule is called '{word}'.",
                suggest(word.upper(), [*rules, *(r.name for r in rules.values())]),
            )
        found |= matching
    return found


def _load(file: Path, text: str) -> dict[str, Any]:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        try:
            import tomli as tomllib  # type: ignore[no-redef, import-not-found, unused-ignore]
        except ModuleNotFoundError:
            raise UserError(
                f"Python 3.10 cannot read {file} by itself.", "Install tomli, or use a newer Python."
            ) from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{file} is not TOML: {error}.", "Mend it.") from None
