"""Findings as SARIF 2.1.0, which code-review tools read."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from portwright import __version__
from portwright.port.finding import Finding
from portwright.port.rule import Rule

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif_report(findings: Sequence[Finding], rules: Sequence[Rule]) -> dict[str, Any]:
    """One run; each result says where, what and how to cure it."""
    known = {rule.code: rule for rule in rules}
    codes = sorted({*known, *(f.code for f in findings)})
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "portwright",
                        "semanticVersion": __version__,
                        "rules": [_descriptor(code, known.get(code)) for code in codes],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, codes) for finding in findings],
            }
        ],
    }


def _descriptor(code: str, rule: Rule | None) -> dict[str, Any]:
    if rule is None:
        return {"id": code, "shortDescription": {"text": "The file could not be checked."}}
    page = inspect.cleandoc(type(rule).__doc__ or rule.name)
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in rule.name.split("-")),
        "shortDescription": {"text": page.partition("\n")[0]},
        "fullDescription": {"text": page.partition("## Example")[0].replace("## Why", "").strip()},
        "help": {"text": page, "markdown": page},
        "properties": {"tags": [*rule.targets, rule.group()], "safety": rule.safety},
    }


def _result(finding: Finding, codes: Sequence[str]) -> dict[str, Any]:
    return {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": "error" if finding.safety == "manual" else "warning",
        "message": {"text": f"{finding.message}. {finding.cure}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(finding.path)},
                    "region": {"startLine": max(finding.line, 1), "startColumn": max(finding.column, 1)},
                }
            }
        ],
        "properties": {"safety": finding.safety, "targets": list(finding.targets)},
    }


def _uri(path: str) -> str:
    if PurePath(path).is_absolute():
        return PurePath(path).as_uri()
    return quote(os.fsencode(PurePath(path).as_posix()))
