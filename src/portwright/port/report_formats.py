"""Renders reports in each format."""

from __future__ import annotations

import json
import sys
from itertools import groupby
from pathlib import Path

from portwright.errors import UserError, suggest
from portwright.job.atomic import atomic_write_text
from portwright.port.entries import CheckResult
from portwright.port.finding import SAFETIES
from portwright.port.report import summarise, summary, text_report, verdict_line
from portwright.port.report_sarif import Sources, sarif_report

FORMATS = ("text", "json", "sarif", "html")


def write_report(result: CheckResult, format: str, out: Path | None = None) -> None:
    """Prints a report, or writes it to a file."""
    # A file's name may have bytes that are not UTF-8.
    text = render(result, format).encode("utf-8", "backslashreplace").decode("utf-8")
    if out is None:
        sys.stdout.write(text)
    else:
        atomic_write_text(out, text)
        print(f"{_printable(summary(result))}\nreport: {out}", file=sys.stderr)


def render(result: CheckResult, format: str) -> str:
    if format == "text":
        return _printable(text_report(result)) + "\n"
    if format == "json":
        return json.dumps(result.as_dict(), indent=2) + "\n"
    if format == "sarif":
        return json.dumps(sarif_report(result), indent=2) + "\n"
    if format == "html":
        return html_report(result)
    raise UserError(f"unknown format '{format}'.", suggest(format, FORMATS))


def _printable(text: str) -> str:
    """Escapes terminal control characters in foreign names and messages."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text
    )


def html_report(result: CheckResult) -> str:
    """Findings as one HTML page: a summary, then each file's findings with their lines."""
    from portwright.report import svg
    from portwright.report.page import render_page  # brings jinja2, which no other format needs

    findings, rules = result.findings, result.selection.rules
    totals = summarise(findings)
    about = f"{totals['findings']} findings in {totals['files']} files"

    def counts(target: str) -> list[int]:
        safeties = [f.safety for f in findings if target in f.targets]
        return [len(safeties), *map(safeties.count, SAFETIES)]

    return render_page(
        "check.html.j2",
        script=bool(findings),
        about=about if findings else summary(result).partition(".")[0],
        findings=findings,
        files=[(path, list(group)) for path, group in groupby(findings, key=lambda f: f.path)],
        entries=result.entries,
        targets=sorted({target for f in findings for target in f.targets}),
        names={rule.code: rule.name for rule in rules},
        pieces=[svg.Piece(totals[safety], safety, f"{totals[safety]} {safety}") for safety in SAFETIES],
        counts=counts,
        svg=svg,
        line_of=Sources(rules).line_of,
        verdict_line=verdict_line,
    )
