"""The page about the audit of safe rules: each rule's own argument, the counts of its random test, and the faults that it found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from portwright.discover import find_rules
from portwright.port.explain import page
from portwright.port.legal_form import LegalForm
from portwright.port.rule import Rule

AUDIT = Path(__file__).parents[2] / "tests" / "audit"

_OF_FORMS = LegalForm.conditions
_TEXT = """# The audit of safe rules

A rewrite is safe if the program computes the same on every machine on which the original runs, with the same keys in state_dict. For each
rule that says so, this page has its argument and conditions, what a random test tried, and the faults that were found while it was audited.

Programs are drawn around what the rule looks for: with other names (those that a rewrite could want for itself too), other imports, in
functions, methods, comprehensions, lambdas and nested blocks, with inputs of several dtypes, layouts and shapes. Each is rewritten
with that rule alone, where nothing else is said, and run before and after. Compared are all names that it leaves, tensors bit by bit (up to rounding where
the rule's page says so), gradients, keys and values of state_dict, what it prints and raises, and the state of the random numbers.

- *Drawn* are the programs, *rewritten* those in which the rule changed something that it calls safe, and *ran* those of them whose original
  raises nothing. An original that raises an error proves nothing; the rewritten one must still raise the same, but for legal forms (PW312, PW320 to
  PW336), PW208, PW307 and PW344, which may take more than torch does.
- Faults are told in the rule's row whether the random test found them or a reader did; each is mended, and has a test.
- *Legal form* in a row: {conditions}
- Rules had faults in common: an import that a rewrite brings took a name that the file uses; a rewrite of two edits was made in part where a line
  is ignored.

`PYTHONPATH=tests python -m audit.harness 300 --write` draws anew; `make test` draws a few for each rule.

"""


def audit_page(head: str) -> str:
    rules = {rule.code: rule for rule in find_rules().values()}
    rows = {
        row["rule"]: row
        for path in sorted(AUDIT.glob("results*.json"))
        for row in json.loads(path.read_text())
    }
    safe = [rule for code, rule in sorted(rules.items()) if rule.safety == "safe"]
    lines = [
        "| rule | why it is equal, and when | drawn, rewritten, ran | faults found |",
        "| --- | --- | --- | --- |",
    ]
    lines += [_row(rule, rows.get(rule.code)) for rule in safe]
    lines += ["", "## Safe before, and no longer", "", "| rule | why |", "| --- | --- |"]
    lines += list(_gone(rows, rules, {rule.code for rule in safe}))
    text = _TEXT.replace("{conditions}", _OF_FORMS.partition(": ")[2].strip())
    return f"{head}{text}" + "\n".join(lines) + "\n"


def _row(rule: Rule, row: dict[str, Any] | None) -> str:
    counts, faults = "not drawn", ""
    if row is not None:
        counts = f"{row['drawn']}, {row['rewritten']}, {row['ran']}: {row['how']}"
        faults = "; ".join(row["faults"])
    return f"| [{rule.code}](rules/{rule.code}.md) {rule.name} | {_argument(rule)} | {_cell(counts)} | {_cell(faults)} |"


def _gone(rows: dict[str, Any], rules: dict[str, Rule], safe: set[str]) -> Iterator[str]:
    for code, row in sorted(rows.items()):
        if code not in safe:
            name = f"[{code}](rules/{code}.md) {rules[code].name}" if code in rules else code
            yield f"| {name} | {_cell('; '.join(row['faults']))} |"


def _argument(rule: Rule) -> str:
    """What the rule's page says of its safety, on one line."""
    text = (
        page(rule).partition("## Safety")[2].partition("\n## ")[0].replace(_OF_FORMS, "*Legal form*").strip()
    )
    return "<br>".join(
        _cell(" ".join(part.split())) for part in text.replace("\n- ", "\n\n- ").split("\n\n") if part
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
