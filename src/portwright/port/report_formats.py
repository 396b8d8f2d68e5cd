"""The formats of a report, by name."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from portwright.errors import UserError, suggest
from portwright.job.atomic import atomic_write_text
from portwright.port.finding import Finding
from portwright.port.report import summarise, summary, text_report
from portwright.port.report_html import html_report
from portwright.port.report_sarif import sarif_report
from portwright.port.rule import Rule

FORMATS = ("text", "json", "sarif", "html")


def write_report(
    findings: Sequence[Finding], rules: Sequence[Rule], format: str, out: Path | None = None
) -> None:
    """Prints a report, or writes it to a file."""
    # A file's name may hold bytes that are no text.
    text = render(findings, rules, format).encode("utf-8", "backslashreplace").decode("utf-8")
    if out is None:
        sys.stdout.write(text)
    else:
        atomic_write_text(out, text)
        print(f"{summary(findings)}\nreport: {out}", file=sys.stderr)


def render(findings: Sequence[Finding], rules: Sequence[Rule], format: str) -> str:
    if format == "text":
        return text_report(findings) + "\n"
    if format == "json":
        rows = [f.as_dict() for f in findings]
        return json.dumps({"findings": rows, "summary": summarise(findings)}, indent=2) + "\n"
    if format == "sarif":
        return json.dumps(sarif_report(findings, rules), indent=2) + "\n"
    if format == "html":
        return html_report(findings, rules)
    raise UserError(f"unknown format '{format}'.", suggest(format, FORMATS))
