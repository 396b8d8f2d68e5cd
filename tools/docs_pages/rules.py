"""The pages of docs/rules/."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from portwright.port.explain import list_rules, page
from portwright.port.rule import GROUPS, Rule


def rule_pages() -> dict[str, str]:
    """Every page of docs/rules/, by its file name."""
    rules = list_rules()
    return {"README.md": index(rules), **{f"{rule.code}.md": page(rule) for rule in rules}}


def index(rules: Iterable[Rule]) -> str:
    """The list of all rules in Markdown, by group."""
    lines = ["# Rules", "", "`portwright explain CODE` prints one of these pages.", ""]
    lines += [
        "PW001 says that a file could not be checked, or not be written, and why. PW002 says that a rule failed on a file. PW003 and PW004 are "
        "about branches that `port --style branches` could not add, and did add. PW005 names a framework whose loop no style takes over.",
        "",
    ]
    listed = list(rules)
    for title in GROUPS.values():
        members = [rule for rule in listed if rule.group() == title]
        if not members:
            continue
        lines += [
            f"## {title[0].upper()}{title[1:]}",
            "",
            "| code | rule | targets | safety | what it does |",
            "| --- | --- | --- | --- | --- |",
        ]
        for rule in members:
            what = inspect.cleandoc(type(rule).__doc__ or "").partition("\n")[0].replace("|", "\\|")
            lines.append(
                f"| [{rule.code}]({rule.code}.md) | {rule.name} | {', '.join(rule.targets)} | {rule.safety} | {what} |"
            )
        lines.append("")
    return "\n".join(lines)
