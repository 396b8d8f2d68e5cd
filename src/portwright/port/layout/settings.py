"""Settings of a script, sorted into the sections of params.yaml."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from portwright.port.layout.program import Setting, Var

Key = Setting | Var
SECTIONS = ("train_input", "eval_input", "model", "optimizer", "runconfig")


@dataclass
class Entry:
    key: str
    value: Any
    comment: str = ""
    sections: list[str] = field(default_factory=list)


class Settings:
    """Each setting's name, value and sections; `at` gives the text that reads it."""

    def __init__(self) -> None:
        self.entries: dict[Key, Entry] = {}
        self.fixed: dict[Key, str] = {}  # settings that are another section's: runconfig.seed
        self.own: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
        self.comments: dict[tuple[str, str], str] = {}

    def add(self, key: Key, value: Any, comment: str = "") -> None:
        if key not in self.entries:
            name = key.key if isinstance(key, Setting) else key.name
            self.entries[key] = Entry(
                name.lower() if name.isupper() else name, value, " ".join(comment.split())
            )

    def use(self, key: Key, section: str) -> None:
        entry = self.entries.get(key)
        if entry is None or key in self.fixed or section in entry.sections:
            return
        taken = {e.key for k, e in self.entries.items() if k != key and section in e.sections} | set(
            self.own[section]
        )
        while entry.key in taken:
            entry.key += "_"
        entry.sections.append(section)

    def at(self, key: Key, wanted: str, root: str = "params") -> str:
        """The expression that reads a setting, from `wanted` where it is there."""
        if key in self.fixed:
            section, _, name = self.fixed[key].partition(".")
            return f'{root}["{section}"]["{name}"]'
        entry = self.entries[key]
        if not entry.sections:
            return repr(entry.value)
        section = wanted if wanted in entry.sections else entry.sections[0]
        return f'{root}["{section}"]["{entry.key}"]'

    def write(self, head: list[str], sections: Sequence[str] = SECTIONS) -> str:
        """The text of params.yaml."""
        lines = [f"# {line}" for line in head]
        for section in sections:
            rows: list[str] = []
            for entry in self.entries.values():
                if section in entry.sections:
                    rows += _row(entry.key, entry.value, entry.comment)
            for name, value in self.own[section].items():
                rows += _row(name, value, self.comments.get((section, name), ""))
            lines += ["", f"{section}:" if rows else f"{section}: {{}}", *rows]
        return "\n".join(lines).lstrip("\n") + "\n"


def _row(name: str, value: Any, comment: str) -> list[str]:
    behind = f"  # {comment}" if comment else ""
    if isinstance(value, dict):
        return [f"  {name}:{behind}", *(f"    {key}: {show(inner)}" for key, inner in value.items())]
    return [f"  {name}: {show(value)}{behind}"]


def show(value: Any) -> str:
    """A value on one line of YAML that a safe loader reads back as it was."""
    if isinstance(value, float) and math.isfinite(value):
        return repr(value) if "e" not in repr(value) else yaml.safe_dump(value).split("\n")[0]
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").strip()
