"""Findings as one HTML page that needs nothing else: a summary, then each file's findings with their lines."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from portwright.port.finding import SAFETIES, Finding
from portwright.port.report import manual_minutes, summarise
from portwright.port.report_source import Sources
from portwright.port.rule import Rule

_STYLE = """
:root { --ink: #1c2330; --soft: #5a6577; --line: #dde3ec; --back: #ffffff; --code: #f4f6fa; --safe: #2e9e5b; --unsafe: #d59a12;
  --manual: #d0473f; }
@media (prefers-color-scheme: dark) { :root { --ink: #dde3ec; --soft: #98a4b5; --line: #2c3442; --back: #12161d; --code: #1b212b;
  --safe: #3fb871; --unsafe: #e0ad35; --manual: #e2675f; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem; color: var(--ink);
  background: var(--back); }
h1 { font-size: 1.4rem; margin: 0; } h1 + p { color: var(--soft); margin: .2rem 0 1.2rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: 1rem; }
.tile { border: 1px solid var(--line); border-radius: .6rem; padding: .7rem 1rem; }
.tile b { display: block; font-size: 1.7rem; line-height: 1.2; } .tile span { color: var(--soft); font-size: .9rem; }
.bar { display: flex; height: .7rem; border-radius: .35rem; overflow: hidden; margin: 1.2rem 0 .4rem; background: var(--line); gap: 2px; }
.bar i { display: block; } .key { color: var(--soft); font-size: .9rem; } .key em { font-style: normal; margin-right: 1.2rem; }
.key em::before, .mark::before { content: ""; display: inline-block; width: .65rem; height: .65rem; border-radius: 50%;
  margin-right: .4rem; background: currentColor; }
.safe { color: var(--safe); } .unsafe { color: var(--unsafe); } .manual { color: var(--manual); }
.bar .safe { background: var(--safe); } .bar .unsafe { background: var(--unsafe); } .bar .manual { background: var(--manual); }
table { border-collapse: collapse; margin-top: 1rem; } th { text-align: right; font-weight: 600; color: var(--soft); font-size: .9rem; }
th:first-child, td:first-child { text-align: left; padding-left: 0; } th, td { padding: .25rem .9rem; border-top: 1px solid var(--line); }
td { text-align: right; font-variant-numeric: tabular-nums; } tr:first-child th { border-top: 0; }
form { position: sticky; top: 0; background: var(--back); display: flex; flex-wrap: wrap; gap: .6rem; align-items: center; padding: .8rem 0;
  margin-top: 1.2rem; border-bottom: 1px solid var(--line); }
input, select { font: inherit; color: inherit; background: var(--code); border: 1px solid var(--line); border-radius: .4rem;
  padding: .3rem .6rem; } input { flex: 1 1 14rem; } output { color: var(--soft); font-size: .9rem; }
details { border-bottom: 1px solid var(--line); } summary { cursor: pointer; padding: .7rem 0; font: 600 .95rem ui-monospace, monospace;
  overflow-wrap: anywhere; } summary small { font: .85rem system-ui, sans-serif; color: var(--soft); margin-left: .6rem; }
article { padding: .1rem 0 1.1rem 1rem; } article p { margin: .15rem 0; } .at { color: var(--soft); font: .85rem ui-monospace, monospace; }
.mark { font-size: .85rem; margin-left: .8rem; } .for { color: var(--soft); font-size: .85rem; margin-left: .8rem; }
pre { background: var(--code); border-radius: .4rem; padding: .4rem .7rem; margin: .3rem 0; overflow-x: auto;
  font: .85rem/1.45 ui-monospace, monospace; } .cure { color: var(--soft); } [hidden] { display: none; }
.wide { overflow-x: auto; } select { max-width: 100%; } article p, h1 + p { overflow-wrap: anywhere; }
@media print { form { display: none; } details { break-inside: avoid; } }
"""
_SCRIPT = """
const form = document.forms[0], rows = [...document.querySelectorAll('article')];
function show() {
  const words = form.words.value.toLowerCase().split(/\\s+/).filter(Boolean);
  let seen = 0;
  for (const row of rows) {
    const fits = (!form.safety.value || row.dataset.safety === form.safety.value)
      && (!form.target.value || row.dataset.targets.split(' ').includes(form.target.value))
      && (!form.rule.value || row.dataset.rule === form.rule.value)
      && words.every(word => row.dataset.text.includes(word));
    row.hidden = !fits;
    seen += fits;
  }
  for (const file of document.querySelectorAll('details')) file.hidden = !file.querySelector('article:not([hidden])');
  form.querySelector('output').textContent = `${seen} of ${rows.length} shown`;
}
form.addEventListener('input', show);
form.addEventListener('submit', event => event.preventDefault());
show();
"""


def html_report(findings: Sequence[Finding], rules: Sequence[Rule]) -> str:
    names = {rule.code: rule.name for rule in rules}
    targets = sorted({target for f in findings for target in f.targets})
    told = summarise(findings)
    about = f"{told['findings']} findings in {told['files']} files" if findings else "No findings"
    sources = Sources(rules)
    body = [
        f"<h1>portwright check</h1><p>{about}{escape(', for ' + ', '.join(targets)) if targets else ''}</p>",
        _tiles(told),
        _bar(told) if findings else "",
        _by_target(findings, targets) if len(targets) > 1 else "",
    ]
    if findings:
        body.append(_filter(findings, targets, names))
        body += [
            _file(path, list(group), names, sources)
            for path, group in groupby(findings, key=lambda f: f.path)
        ]
        body.append(f"<script>{_SCRIPT}</script>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>portwright check</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>{"".join(body)}</body></html>\n'
    )


def _tiles(told: dict[str, int]) -> str:
    tiles = [
        (f"{told['share_fixed_automatically']} %", "fixed automatically by portwright port"),
        (f"{told['share_with_unsafe']} %", "with --unsafe, which can change results"),
        (f"{told['manual']}", "left to a person"),
        (f"{told['manual_minutes']} min", "of manual work, a rough guess"),
    ]
    inner = "".join(f'<div class="tile"><b>{value}</b><span>{label}</span></div>' for value, label in tiles)
    return f'<div class="tiles">{inner}</div>'


def _bar(told: dict[str, int]) -> str:
    parts = "".join(f'<i class="{s}" style="flex:{told[s]}"></i>' for s in SAFETIES if told[s])
    key = "".join(f'<em class="{s}">{told[s]} {s}</em>' for s in SAFETIES)
    return f'<div class="bar">{parts}</div><div class="key">{key}</div>'


def _by_target(findings: Sequence[Finding], targets: Sequence[str]) -> str:
    rows = [
        "<tr><th>target</th><th>findings</th><th>safe</th><th>unsafe</th><th>manual</th><th>minutes</th></tr>"
    ]
    for target in targets:
        own = [f for f in findings if target in f.targets]
        numbers = [len(own), *(sum(f.safety == s for f in own) for s in SAFETIES), manual_minutes(own)]
        rows.append(f"<tr><td>{escape(target)}</td>{''.join(f'<td>{n}</td>' for n in numbers)}</tr>")
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def _filter(findings: Sequence[Finding], targets: Sequence[str], names: dict[str, str]) -> str:
    codes = sorted({f.code for f in findings})
    rules = [(code, f"{code} {names.get(code, '')}".strip()) for code in codes]
    return (
        '<form><input name="words" type="search" placeholder="Filter by words" aria-label="Filter by words">'
        + _select("safety", "every safety", [(s, s) for s in SAFETIES])
        + _select("target", "every target", [(t, t) for t in targets])
        + _select("rule", "every rule", rules)
        + "<output></output></form>"
    )


def _select(name: str, everything: str, options: Sequence[tuple[str, str]]) -> str:
    listed = "".join(f'<option value="{escape(value)}">{escape(label)}</option>' for value, label in options)
    return (
        f'<select name="{name}" aria-label="{name}"><option value="">{everything}</option>{listed}</select>'
    )


def _file(path: str, findings: Sequence[Finding], names: dict[str, str], sources: Sources) -> str:
    count = (
        f"{len(findings)} finding{'' if len(findings) == 1 else 's'}, {manual_minutes(findings)} min by hand"
    )
    rows = "".join(_article(f, names, sources) for f in findings)
    return f"<details open><summary>{escape(path)}<small>{count}</small></summary>{rows}</details>"


def _article(finding: Finding, names: dict[str, str], sources: Sources) -> str:
    name = names.get(finding.code, "")
    text = f"{finding.path} {finding.code} {name} {finding.message} {finding.cure}".lower()
    line = sources.line_of(finding).strip()
    shown = f"<pre>{escape(line if len(line) <= 300 else line[:300] + ' …')}</pre>" if line else ""
    return (
        f'<article data-safety="{finding.safety}" data-targets="{escape(" ".join(finding.targets))}" data-rule="{escape(finding.code)}" '
        f'data-text="{escape(text)}"><p><span class="at">{finding.line}:{finding.column}</span> <b>{escape(finding.code)}</b> '
        f'{escape(name)}<span class="mark {finding.safety}">{finding.safety}</span>'
        f'<span class="for">{escape(", ".join(finding.targets))}</span></p><p>{escape(finding.message)}</p>{shown}'
        f'<p class="cure">{escape(finding.cure)}</p></article>'
    )
