"""A rule's page, made from its docstring: for `portwright explain` and docs/rules/."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from portwright.discover import find_rules
from portwright.port.rule import GROUPS, Rule


def page(rule: Rule) -> str:
    """The whole page in Markdown."""
    text = inspect.cleandoc(type(rule).__doc__ or "")
    facts = f"Targets: {', '.join(rule.targets)}. Safety: {rule.safety}. Group: {rule.group()}."
    return f"# {rule.code} {rule.name}\n\n{text.partition(chr(10))[0]}\n\n{facts}\n{text.partition(chr(10))[2]}\n"


ENGINE_PAGES = {
    "PW001": "# PW001 not-checked\n\nA file, or a cell of a notebook, could not be read, parsed or written; the message says why. The other files were "
    "checked.\n\nMend the file, check it with the Python that it is written for, or leave it out with exclude.\n",
    "PW002": "# PW002 rule-failed\n\nA rule raised an error on this file; the others were asked. That is a mistake in the rule: report the file to "
    "its authors, and use --ignore until it is mended.\n",
    "PW003": "# PW003 no-branch\n\n`port --style branches` did not add a branch to this file, or added one that refuses something when it runs; the message "
    "says what stands in the way, and the line is where. Nothing is changed in a file whose step is not understood.\n",
    "PW004": "# PW004 branch\n\nA part of the branch that `port --style branches` added: where the model is opened for the target, where the step "
    "runs, and what the host skips then.\n",
    "PW701": "# PW701 not-placed\n\n`port --style layout` found a statement of the script, or of its loop, that run() has no place for: the message has its "
    "first line. It is in none of the files.\n\nPut it where it belongs, in model.py, data.py or a callback of your own, or keep the script's loop with "
    "--style in-place.\n",
    "PW702": "# PW702 no-layout\n\nThe script's loop has another shape than run(), which makes one update of one network a step, from one loss of one batch: "
    "several optimizers or losses in turn, a state that is carried from step to step, a while loop. Nothing was written.\n\nUse --style in-place.\n",
    "PW703": "# PW703 not-said\n\nparams.yaml cannot say what the script does here, or only a run would tell the value; the layout was written without it.\n\n"
    "Set the key that the cure names in configs/params.yaml.\n",
}  # what no rule reports


def index(rules: Iterable[Rule]) -> str:
    """The list of all rules in Markdown, by group."""
    lines = ["# Rules", "", "`portwright explain CODE` prints one of these pages.", ""]
    lines += [
        "PW001 says that a file could not be checked, or not be written, and why. PW002 says that a rule failed on a file. PW003 and PW004 are "
        "about branches that `port --style branches` could not add, and did add.",
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


def list_rules() -> list[Rule]:
    return list(find_rules().values())


def describe(rule: Rule) -> dict[str, Any]:
    """A rule as JSON."""
    return {
        "code": rule.code,
        "name": rule.name,
        "targets": list(rule.targets),
        "safety": rule.safety,
        "group": rule.group(),
        "page": page(rule),
    }


def rule_pages() -> dict[str, str]:
    """Every page of docs/rules/, by its file name."""
    rules = list_rules()
    return {"README.md": index(rules), **{f"{rule.code}.md": page(rule) for rule in rules}}
