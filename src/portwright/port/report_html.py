"""Findings as one HTML page that needs nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import groupby

from portwright.port.finding import SAFETIES, Finding
from portwright.port.report import manual_minutes
from portwright.port.rule import Rule

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1c2330; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.05rem; margin-top: 2rem; font-family: ui-monospace, monospace; }
.tiles { display: flex; gap: 1rem; flex-wrap: wrap; }
.tile { border: 1px solid #d5dbe5; border-radius: .5rem; padding: .5rem 1rem; min-width: 7rem; }
.tile b { display: block; font-size: 1.4rem; }
table { border-collapse: collapse; width: 100%; } td { border-top: 1px solid #e4e8ef; padding: .4rem .5rem; vertical-align: top; }
td.at { white-space: nowrap; font-family: ui-monospace, monospace; } .cure { color: #4a5568; }
.safe { background: #dcf5e3; } .unsafe { background: #fdf0cf; } .manual { background: #fbdcdc; }
.mark { border-radius: .3rem; padding: 0 .4rem; font-size: .85em; }
@media (prefers-color-scheme: dark) { body { background: #12161d; color: #dde3ec; } .cure { color: #a7b2c2; }
  .mark { color: #12161d; } td, .tile { border-color: #2c3442; } }
"""


def html_report(findings: Sequence[Finding], rules: Sequence[Rule]) -> str:
    names = {rule.code: rule.name for rule in rules}
    counts = Counter(f.safety for f in findings)
    share = round(100 * (counts["safe"] + counts["unsafe"]) / len(findings)) if findings else 100
    tiles = [
        ("findings", str(len(findings))),
        *((safety, str(counts[safety])) for safety in SAFETIES),
        ("can be rewritten", f"{share} %"),
        ("by hand, about", f"{manual_minutes(findings)} min"),
    ]
    body = "".join(f'<div class="tile"><b>{escape(value)}</b>{escape(label)}</div>' for label, value in tiles)
    sections = "".join(
        f"<h2>{escape(path)}</h2><table>{''.join(_row(f, names) for f in group)}</table>"
        for path, group in groupby(findings, key=lambda f: f.path)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>portwright check</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f'<h1>portwright check</h1><div class="tiles">{body}</div>{sections or "<p>No findings.</p>"}</body></html>\n'
    )


def _row(finding: Finding, names: dict[str, str]) -> str:
    return (
        f'<tr><td class="at">{finding.line}:{finding.column}</td>'
        f'<td class="at" title="{escape(names.get(finding.code, ""))}">{escape(finding.code)}</td>'
        f'<td>{escape(finding.message)}<div class="cure">{escape(finding.cure)}</div></td>'
        f'<td><span class="mark {finding.safety}">{finding.safety}</span></td><td>{escape(", ".join(finding.targets))}</td></tr>'
    )
