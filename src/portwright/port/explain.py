"""Makes a rule's page from its docstring, for `portwright explain` and for docs/rules/ (tools/docs_pages/rules.py)."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain
from typing import Any

from portwright.discover import answers_of, find_rules, find_target, targets_that_answer
from portwright.needs import NEEDS
from portwright.port.config import find_rule
from portwright.port.rule import Rule


def page(rule: Rule) -> str:
    """The whole page in Markdown."""
    text = inspect.cleandoc(type(rule).__doc__ or "")
    facts = f"Targets: {', '.join(rule.targets)}. Safety: {rule.safety}. Group: {rule.group()}."
    shared = f"\n{rule.conditions}\n" if rule.conditions else ""
    answers = "\n".join(["", "## What targets say", *chain.from_iterable(map(_answers_to, rule.needs)), ""])
    return f"# {rule.code} {rule.name}\n\n{text.partition(chr(10))[0]}\n\n{facts}\n{text.partition(chr(10))[2]}\n{shared}{answers if rule.needs else ''}"


def _answers_to(need: str) -> Iterator[str]:
    """Lines for a need, and below it what each target does if it is not met; targets with the same answer share a line."""
    yield f"- `{need}`: {NEEDS[need]}"
    targets_of: dict[str, list[str]] = {}
    for target in targets_that_answer((need,)):
        targets_of.setdefault(answers_of(target)[need].says(), []).append(target)
    yield from (f"  - {', '.join(names)}: {words}." for words, names in targets_of.items())


def needs_page(needs: Iterable[str] = NEEDS) -> str:
    """Needs in Markdown: the meaning, the answers of targets, and the rules of each."""
    lines = [
        "# Needs",
        "",
        "A rule looks after a need; a target says what happens there where it is not kept.",
    ]
    for need in needs:
        looked_after = ", ".join(_rules_of(need)) or "a run itself, no rule"
        lines += ["", *_answers_to(need), f"  - looked after by: {looked_after}."]
    return "\n".join(lines) + "\n"


def _rules_of(need: str) -> list[str]:
    return [rule.code for rule in list_rules() if need in rule.needs]


def _describe_need(need: str) -> dict[str, Any]:
    answers = {target: asdict(answers_of(target)[need]) for target in targets_that_answer((need,))}
    return {"name": need, "meaning": NEEDS[need], "rules": _rules_of(need), "answers": answers}


def explain_word(word: str) -> tuple[dict[str, Any], str]:
    """Explains a need, the needs of a target, or a rule, by name; as JSON and as a page."""
    target, name = find_target(word), word.lower().replace("-", "_")
    needs = [name] if name in NEEDS else [need for need in NEEDS if target and need in target.needs]
    if needs:
        return {"needs": [_describe_need(need) for need in needs]}, needs_page(needs)
    rule = find_rule(word)
    return describe(rule), page(rule)


ENGINE_PAGES = {
    "PW001": "# PW001 not-checked\n\nA file, or a cell of a notebook, could not be read, parsed or written; the message says why. The other files were "
    "checked.\n\nMend the file, check it with the Python that it is written for, or leave it out with exclude.\n",
    "PW002": "# PW002 rule-failed\n\nA rule raised an error on this file; the others were asked. That is a mistake in the rule: report the file to "
    "its authors, and use --ignore until it is mended.\n",
    "PW003": "# PW003 no-branch\n\n`port --style branches` did not add a branch to this file, or added one that refuses something when it runs; the message "
    "says what stands in the way, and the line is where. Nothing is changed in a file whose step is not understood.\n",
    "PW004": "# PW004 branch\n\nA part of the branch that `port --style branches` added: where the model is opened for the target, where the step "
    "runs, and what the host skips then.\n",
    "PW005": "# PW005 loop-not-taken-over\n\nA framework owns the training loop, and neither the target nor a style of `port` takes that over: edits here do not make "
    "the script run there. `portwright check` says the same as its verdict.\n\nWrite the loop out, or move model and data to a new folder by hand.\n",
    "PW701": "# PW701 not-placed\n\n`port --style layout` found a statement of the script, or of its loop, that run() has no place for: the message has its "
    "first line. It is in none of the files.\n\nPut it where it belongs, in model.py, data.py or a callback of your own, or keep the script's loop with "
    "--style in-place.\n",
    "PW702": "# PW702 no-layout\n\nThe script's loop has another shape than run(), which makes one update of one network a step, from one loss of one batch: "
    "several optimizers or losses in turn, a state that is carried from step to step, a while loop. Nothing was written.\n\nUse --style in-place.\n",
    "PW703": "# PW703 not-said\n\nparams.yaml cannot say what the script does here, or only a run would tell the value; the layout was written without it.\n\n"
    "Set the key that the cure names in configs/params.yaml.\n",
}  # findings that no rule reports


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
        "needs": list(rule.needs),
        "page": page(rule),
    }
