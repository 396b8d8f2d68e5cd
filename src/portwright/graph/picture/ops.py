"""Ops that the target runs, and those that it refuses, with the lines that call them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portwright.graph.picture.document import Drawing, entries, holder_of, mapping, mappings
from portwright.graph.picture.shapes import HOW_COLOURS, Segment, bar
from portwright.graph.picture.source import breakable, excerpt, link
from portwright.graph.picture.text import NONE, clean, esc, number, show_number

_HOWS = {
    "native": "the target has a kernel",
    "decomposed": "runs as other ops",
    "free": "a view or bookkeeping, costs no kernel",
    "refused": "the target does not run it",
}
_SHOWN_REFUSALS = 50
_SHOWN_EXCERPTS = 200
_SHOWN_PLACES = 3


def ops_section(drawing: Drawing) -> str:
    return f"{_counts(drawing)}{_refused(drawing)}{_legal_forms(drawing)}{_all_ops(drawing)}"


def _counts(drawing: Drawing) -> str:
    given = mapping(mapping(drawing.plan.get("kernels")).get("ops"))
    counts = {clean(how): max(number(count) or 0.0, 0.0) for how, count in given.items()}
    total = sum(counts.values())
    if total <= 0:
        return '<p class="faint">The plan lists no op.</p>'
    ordered = sorted(counts, key=lambda how: list(_HOWS).index(how) if how in _HOWS else len(_HOWS))
    segments = [
        Segment(
            counts[how], HOW_COLOURS.get(how, "#999999"), f"{how}: {show_number(counts[how])}", f"how-{how}"
        )
        for how in ordered
    ]
    label = mapping(drawing.plan.get("kernels")).get("label")
    source = f" Kernel table: {esc(label)}." if isinstance(label, str) and label else ""
    legend = "".join(
        f'<li><span class="swatch how-{esc(how)}" style="background:{HOW_COLOURS.get(how, "#999999")}"></span>'
        f'<strong>{show_number(counts[how])}</strong> {esc(how)} <span class="faint">{esc(_HOWS.get(how, ""))}</span></li>'
        for how in ordered
    )
    return (
        f"<p>{show_number(total)} op calls in a step.{source}</p>"
        f'{bar(segments, ", ".join(f"{how} {counts[how]:.0f}" for how in ordered), style="tall")}<ul class="legend">{legend}</ul>'
    )


def _refused(drawing: Drawing) -> str:
    refused = mappings(drawing.plan.get("refused"))
    if not refused:
        words = (
            "No op is refused."
            if drawing.plan.get("supported") is not False
            else "The plan says that it is not supported, and lists no refusal."
        )
        return f'<p class="none-refused">{words}</p>'
    rows = [_refusal(drawing, entry, i < _SHOWN_EXCERPTS) for i, entry in enumerate(refused)]
    head = (
        '<thead><tr><th scope="col">op and module</th><th scope="col">why, and what to do</th>'
        '<th scope="col">where</th></tr></thead>'
    )
    shown = f'<table class="refused">{head}<tbody>{"".join(rows[:_SHOWN_REFUSALS])}</tbody></table>'
    rest = rows[_SHOWN_REFUSALS:]
    if rest:
        shown += (
            f'<details><summary>{len(rest):,} more refused places</summary><table class="refused">{head}'
            f"<tbody>{''.join(rest)}</tbody></table></details>"
        )
    return f"<h4>Refused: {len(refused):,} place{'s' if len(refused) != 1 else ''}</h4>{shown}"


def _refusal(drawing: Drawing, entry: Mapping[str, Any], with_excerpt: bool) -> str:
    count = number(entry.get("count"))
    others = [str(module) for module in entries(entry.get("repeats"))]
    module = str(entry.get("module") or "")
    again = ""
    if others:
        again = (
            f'<details class="repeats"><summary>and {len(others):,} more module{"s" if len(others) > 1 else ""}</summary>'
            f"{', '.join(f'<code>{breakable(o)}</code>' for o in others)}</details>"
        )
    group = drawing.group_of_path.get(holder_of(module, drawing.group_of_path))
    module_words = f"<code>{breakable(module)}</code>" if module else "the model itself"
    if group is not None:
        module_words = f'<a href="#{drawing.anchor(group)}">{module_words}</a>'
    facts = [str(entry.get("phase") or ""), f"{count:,.0f} calls" if count and count > 1 else ""]
    cure = str(entry.get("cure") or "")
    code = excerpt(entry.get("file"), entry.get("line")) if with_excerpt else ""
    return (
        f'<tr><td data-label="op"><span class="cross" aria-hidden="true">✕</span> <code class="op">{breakable(str(entry.get("op") or "the step"))}</code>'
        f'<div class="small">{module_words}{again}</div>'
        f'<div class="small faint">{esc(", ".join(f for f in facts if f))}</div></td>'
        f'<td data-label="why"><p>{esc(entry.get("reason") or "The plan gives no reason.")}</p>'
        + (f'<p class="cure"><strong>Instead:</strong> {esc(cure)}</p>' if cure else "")
        + f'</td><td data-label="where">{link(entry.get("file"), entry.get("line"))}{code}</td></tr>'
    )


def _legal_forms(drawing: Drawing) -> str:
    """What `--legalise` would take away from the refusals, or has taken."""
    gain = mapping(drawing.plan.get("legalise"))
    removed, of = number(gain.get("removed")), number(gain.get("of"))
    swaps = mappings(gain.get("swaps"))
    if not gain or removed is None or of is None or (not removed and not swaps):
        return ""
    verb = "has removed" if gain.get("applied") is True else "would remove"
    words = f"<code>--legalise</code> {verb} {show_number(removed)} of {show_number(of)} refusals"
    if not swaps:
        return f"<p>{words}.</p>"
    rows = "".join(
        f'<tr><td data-label="what"><code>{breakable(str(swap.get("what") or NONE))}</code>'
        f'<div class="small">{breakable(str(swap.get("module") or "the model itself"))}</div></td>'
        f'<td data-label="form"><code>{breakable(str(swap.get("form") or NONE))}</code></td>'
        f'<td data-label="why">{esc(swap.get("reason") or "")}'
        f"{_line_of(swap)}</td></tr>"
        for swap in swaps
    )
    return (
        f"<details><summary>{words}: {len(swaps):,} legal form{'s' if len(swaps) != 1 else ''}</summary>"
        '<table class="swaps"><thead><tr><th scope="col">instead of</th><th scope="col">legal form</th>'
        f'<th scope="col">why</th></tr></thead><tbody>{rows}</tbody></table></details>'
    )


def _line_of(swap: Mapping[str, Any]) -> str:
    return f"<div>{link(swap.get('file'), swap.get('line'))}</div>" if swap.get("file") else ""


def _all_ops(drawing: Drawing) -> str:
    ops = mappings(drawing.plan.get("ops"))
    if not ops:
        return ""
    rows = []
    for entry in ops:
        how = str(entry.get("how") or "")
        phases = ", ".join(map(str, entries(entry.get("phases"))))
        rows.append(
            f'<tr><td data-label="op"><code>{breakable(str(entry.get("op") or NONE))}</code></td>'
            f'<td data-label="how"><span class="how how-{esc(how)}">{esc(how or NONE)}</span></td>'
            f'<td class="num" data-label="calls">{show_number(entry.get("count"))}</td>'
            f'<td data-label="in">{esc(phases or NONE)}</td>'
            f'<td data-label="lines">{_places(entry)}</td></tr>'
        )
    return (
        f'<details class="all-ops"><summary>All {len(ops):,} ops of the step, and the lines that call them</summary>'
        f'<label class="filter" hidden>Filter <input type="search" autocomplete="off" placeholder="op, how or line"></label>'
        f'<table class="ops"><thead><tr><th scope="col">op</th><th scope="col">how</th><th scope="col" class="num">calls</th>'
        f'<th scope="col">in</th><th scope="col">lines</th></tr></thead><tbody>{"".join(rows)}</tbody></table></details>'
    )


def _places(entry: Mapping[str, Any]) -> str:
    places = mappings(entry.get("places"))
    shown = [f"<div>{link(p.get('file'), p.get('line'))}</div>" for p in places]
    if len(shown) <= _SHOWN_PLACES + 1:
        return "".join(shown) or NONE
    rest = "".join(shown[_SHOWN_PLACES:])
    return f"{''.join(shown[:_SHOWN_PLACES])}<details><summary>{len(shown) - _SHOWN_PLACES:,} more lines</summary>{rest}</details>"
