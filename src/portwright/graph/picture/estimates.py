"""The plan's numbers: each with its interval, its formula and what went into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portwright.graph.picture.document import Drawing, entries, mapping, mappings, read_interval
from portwright.graph.picture.text import NONE, clean, esc, number, show_number, show_share, show_size


def estimate_table(drawing: Drawing) -> str:
    estimates = {
        clean(name): entry
        for name, entry in mapping(drawing.plan.get("estimates")).items()
        if isinstance(entry, Mapping)
    }
    if not estimates:
        return '<p class="faint">The plan lists no estimate.</p>'
    rows = "".join(_row(name, entry) for name, entry in estimates.items())
    return (
        '<table class="estimates"><thead><tr><th scope="col">estimate</th><th scope="col">value and interval</th>'
        f'<th scope="col">how it was computed</th></tr></thead><tbody>{rows}</tbody></table>'
    )


def _row(name: str, entry: Mapping[str, Any]) -> str:
    inputs = "".join(f"<li><code>{esc(k)}</code> = {esc(v)}</li>" for k, v in _flatten(entry.get("inputs")))
    listed = "".join(f"<li>{esc(source)}</li>" for source in entries(entry.get("sources")) if source)
    more = ""
    if inputs or listed:
        more = f"<details><summary>inputs{' and sources' if listed else ''}</summary><ul>{inputs}{listed}</ul></details>"
    why = entry.get("interval_from")
    return (
        f'<tr><th scope="row" data-label="estimate"><code>{esc(name)}</code>'
        f'<div class="small faint">{esc(entry.get("unit") or "")}</div></th>'
        f'<td data-label="value"><strong>{esc(show_value(name, entry.get("value")))}</strong>'
        f'<div class="small">{esc(show_interval(name, read_interval(entry)))}</div></td>'
        f'<td data-label="formula"><p>{esc(entry.get("formula") or "no formula given")}</p>'
        + (f'<p class="small faint">Interval: {esc(why)}.</p>' if isinstance(why, str) and why else "")
        + f"{more}</td></tr>"
    )


def show_value(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return show_size(value)
    if name.endswith("utilization"):
        return show_share(value)
    return show_number(value)


def show_interval(name: str, interval: tuple[float, float] | None) -> str:
    if interval is None:
        return "no interval given"
    return f"{show_value(name, interval[0])} to {show_value(name, interval[1])}"


def _flatten(value: Any, before: str = "") -> list[tuple[str, str]]:
    """Nested inputs as `published.network = ...`; a plain number keeps all its digits."""
    found: list[tuple[str, str]] = []
    for key, inner in mapping(value).items():
        name = f"{before}{key}"
        if isinstance(inner, Mapping):
            found += _flatten(inner, f"{name}.")
        else:
            amount = number(inner)
            found.append((name, f"{inner:,}" if amount is not None else str(inner)))
    return found


def input_words(drawing: Drawing) -> str:
    """The batch that the step was captured with."""
    words = []
    for entry in mappings(drawing.plan.get("inputs")):
        sizes = ", ".join(map(str, entries(entry.get("shape"))))
        words.append(f"{clean(entry.get('dtype') or NONE)}[{clean(sizes)}]")
    return ", ".join(words) or NONE
