"""One HTML page of a plan: everything inside it, nothing fetched, and readable without its script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from portwright import __version__
from portwright.graph.picture.document import Drawing, entries, read_document
from portwright.graph.picture.estimates import estimate_table, input_words, show_interval, show_value
from portwright.graph.picture.layers import layer_table
from portwright.graph.picture.memory import (
    capacity_words,
    course_figure,
    gauge,
    memory_svg,
    parts_used,
    step_segments,
)
from portwright.graph.picture.ops import ops_section
from portwright.graph.picture.shapes import OTHER_COLOUR, PART_COLOURS, PART_NAMES, bar, kind_colours
from portwright.graph.picture.text import NONE, elide, esc, show_number, show_share, show_size
from portwright.graph.picture.wafer import (
    fabric_panels,
    place_caption,
    place_heading,
    stage_bar,
    strips,
    wafer_svg,
)
from portwright.job.rundir import atomic_write_text

_MOST_KINDS = 12  # in a legend


def write_page(plan: Mapping[str, Any], path: Path) -> Path:
    """Writes the page of a plan's JSON document, of one target or several, and says where it is."""
    path = Path(path)
    atomic_write_text(path, make_page(plan))
    return path


def write_svgs(plan: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes wafer.svg and memory.svg into a folder."""
    drawn = {"wafer.svg": wafer_svg(plan), "memory.svg": memory_svg(plan)}
    for name, markup in drawn.items():
        atomic_write_text(Path(folder) / name, markup)
    return [Path(folder) / name for name in drawn]


def make_page(plan: Mapping[str, Any]) -> str:
    """The page as text; the same plan gives the same page, as long as the source files it names stay the same."""
    drawings = read_document(plan)
    subject = next((d.word("subject") for d in drawings if d.word("subject")), "a model")
    made_by = next((d.word("made_by") for d in drawings if d.word("made_by")), f"portwright {__version__}")
    style = files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    script = files(__package__).joinpath("script.js").read_text(encoding="utf-8")
    title = f"Plan of {elide(subject, 80)} for {elide(', '.join(d.name for d in drawings), 60)}"
    sections = "".join(_section(drawing, len(drawings) > 1) for drawing in drawings)
    # The browser itself then refuses whatever the page should not do: fetch, or run a script that is not ours.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src '{_digest(script)}'; img-src data:"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{esc(title)}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the plan</a>
<header>
<h1>Plan of <span class="subject">{esc(subject)}</span></h1>
<p class="banner" role="note"><strong>Estimated by portwright, not the vendor’s output.</strong>
 Nothing here was measured, and no vendor’s compiler was asked: numbers come from the shapes of one captured step, each with its
 formula and an interval under “Estimates”. <span class="faint">Made by {esc(made_by)}.</span></p>
</header>
<main id="content">
{_comparison(drawings) if len(drawings) > 1 else ""}
{sections}
</main>
<script>
{script}</script>
</body>
</html>
"""


def _digest(script: str) -> str:
    """Of the text between the tags, line break included."""
    return "sha256-" + base64.b64encode(hashlib.sha256(f"\n{script}".encode()).digest()).decode()


def _comparison(drawings: Sequence[Drawing]) -> str:
    """All targets side by side, and the way to each."""
    tabs = "".join(f'<a href="#t{d.index}" data-target="t{d.index}">{esc(d.name)}</a>' for d in drawings)
    lines = {
        "runs": [_verdict(d) for d in drawings],
        "fits": [_fits(d) for d in drawings],
        "mode": [esc(d.word("mode").replace("_", " ") or NONE) for d in drawings],
        "needed": [esc(show_size(d.number("needed_bytes"))) for d in drawings],
        "capacity": [esc(show_size(d.number("capacity_bytes"))) for d in drawings],
        "largest batch": [esc(_largest_batch(d)) for d in drawings],
    }
    head = "".join(
        f'<th scope="col">{esc(d.name)}<div class="small faint">{esc(d.machine.get("name") or "")}</div></th>'
        for d in drawings
    )
    rows = "".join(
        f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for name, cells in lines.items()
    )
    return (
        f'<section class="comparison"><h2>Targets side by side</h2><div class="scroll" tabindex="0" role="region" '
        f'aria-label="targets side by side"><table class="targets"><thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>'
        f'<nav class="tabs" aria-label="targets">{tabs}</nav>'
    )


def _section(drawing: Drawing, is_one_of_several: bool) -> str:
    """One target from verdict to estimates."""
    anchor = f"t{drawing.index}"
    machine = drawing.machine.get("name")
    name = f"{drawing.name}: {machine}" if isinstance(machine, str) and machine else drawing.name
    return f"""<section class="target" id="{anchor}" aria-labelledby="{anchor}-name">
<h2 id="{anchor}-name">{esc(name)}</h2>
{_summary(drawing)}
{_lists(drawing)}
<section class="part"><h3>{esc(place_heading(drawing))}</h3>
<p class="faint">{esc(place_caption(drawing))}</p>
{_places(drawing)}</section>
<section class="part"><h3>Memory</h3>
<p>{_need(drawing)}</p>
{gauge(drawing)}
{_step_memory(drawing)}
{course_figure(drawing)}</section>
<section class="part"><h3>Layers</h3>
{_part_legend(drawing)}
{layer_table(drawing)}</section>
<section class="part"><h3>Ops</h3>
{ops_section(drawing)}</section>
<section class="part"><h3>Estimates</h3>
{estimate_table(drawing)}</section>
{"<p class='up'><a href='#content'>All targets</a></p>" if is_one_of_several else ""}
</section>
"""


def _summary(drawing: Drawing) -> str:
    mode = drawing.word("mode").replace("_", " ")
    facts = [
        ("runs", _verdict(drawing), ""),
        ("fits", _fits(drawing), ""),
        ("mode", esc(mode or NONE), drawing.word("why_mode")),
        _estimated(drawing, "parameters", "parameters"),
        _estimated(drawing, "operations a sample", "flops_per_sample"),
        _estimated(drawing, "needed", "needed_bytes"),
        (
            "batch",
            show_number(drawing.plan.get("batch_size")),
            f"largest that fits: {_largest_batch(drawing)}",
        ),
        ("captured with", esc(input_words(drawing)), drawing.word("optimizer")),
    ]
    if drawing.number("total_utilization") is not None:
        facts.append(_estimated(drawing, "fabric used", "total_utilization"))
    if drawing.number("estimated_deltat") is not None:
        facts.append(_estimated(drawing, "cycles a sample", "estimated_deltat"))
    return (
        '<dl class="facts">'
        + "".join(
            f'<div><dt>{name}</dt><dd>{value}<span class="small faint">{esc(note)}</span></dd></div>'
            for name, value, note in facts
        )
        + "</dl>"
    )


def _estimated(drawing: Drawing, label: str, name: str) -> tuple[str, str, str]:
    interval = drawing.interval(name)
    between = f"{show_interval(name, interval)}" if interval is not None else ""
    return label, esc(show_value(name, drawing.plan.get(name))), between


def _verdict(drawing: Drawing) -> str:
    supported = drawing.plan.get("supported")
    count = len(entries(drawing.plan.get("refused")))
    if supported is True:
        return '<span class="good">✓ every op</span>'
    if supported is False:
        return f'<span class="bad">✕ {count:,} place{"s" if count != 1 else ""} refused</span>'
    return "not known"


def _fits(drawing: Drawing) -> str:
    fits = drawing.plan.get("fits")
    if fits is True:
        return '<span class="good">✓ yes</span>'
    return '<span class="bad">✕ no</span>' if fits is False else "not known"


def _largest_batch(drawing: Drawing) -> str:
    value = drawing.number("largest_batch")
    if value is None:
        return "any" if drawing.plan.get("fits") is True else "not known"
    return show_number(value) if value else "none"


def _lists(drawing: Drawing) -> str:
    found = ""
    for title, key in (("What to change", "changes"), ("Notes", "notes")):
        items = drawing.words(key)
        if items:
            found += f'<div class="list"><h3>{title}</h3><ul>{"".join(f"<li>{esc(i)}</li>" for i in items)}</ul></div>'
    return found


def _places(drawing: Drawing) -> str:
    if drawing.is_placed:
        panels = "".join(
            f"<figure><figcaption>{esc(title)}</figcaption>{markup}</figure>"
            for title, markup, _, _ in fabric_panels(drawing, linked=True)
        )
        return f'<div class="panels">{panels}{_kind_legend(drawing)}</div>'
    if drawing.stages:
        rows = []
        for stage in drawing.stages:
            name, segments, whole, note = stage_bar(drawing, stage)
            work = stage.get("share_of_work")
            rows.append(
                _strip(
                    name,
                    bar(segments, name, whole, "tall"),
                    f"{note}; {show_value('utilization', work)} of the work",
                )
            )
        shown = "".join(rows)
    else:
        shown = "".join(
            _strip(label, bar(segments, label, style="tall"), "") for label, segments in strips(drawing)
        )
        shown = shown or '<p class="faint">The plan lists no layer with work or weights.</p>'
    return shown + _kind_legend(drawing)


def _strip(name: str, drawn: str, note: str) -> str:
    ended = f'<div class="small faint">{esc(note)}</div>' if note else ""
    return f'<div class="strip"><div class="name">{esc(name)}</div><div>{drawn}{ended}</div></div>'


def _step_memory(drawing: Drawing) -> str:
    segments = step_segments(drawing)
    if not segments:
        return ""
    listed = "".join(
        f'<li><span class="swatch part-{part}" style="background:{PART_COLOURS[part]}"></span>{PART_NAMES[part]} '
        f"<strong>{show_size(drawing.memory[part])}</strong></li>"
        for part in PART_NAMES
        if drawing.memory.get(part)
    )
    peak = drawing.memory.get("peak")
    words = f" Together they peak at {show_size(peak)}, as they peak at different moments." if peak else ""
    return (
        f'<p class="tight">The whole step, each part at its most.{words}</p>'
        f'{bar(segments, "memory of the whole step", style="tall")}<ul class="legend">{listed}</ul>'
    )


def _kind_legend(drawing: Drawing) -> str:
    """Colours of kinds, with how many layers each has and what they take."""
    colours, rows = kind_colours(drawing.kinds), []
    is_placed = drawing.is_placed
    for kind in drawing.kinds[:_MOST_KINDS]:
        members = [layer for layer in drawing.layers if layer.kind == kind]
        fabric = sum(layer.share_of_fabric or 0.0 for layer in members)
        rows.append(
            f'<tr><th scope="row"><span class="swatch" style="background:{colours[kind]}"></span>{esc(elide(kind or "no kind", 60))}</th>'
            f'<td class="num">{len(members):,}</td><td class="num">{show_share(sum(m.share_of_work for m in members))}</td>'
            + (f'<td class="num">{show_share(fabric)}</td></tr>' if is_placed else "</tr>")
        )
    if not rows:
        return ""
    notes = []
    if len(drawing.kinds) > _MOST_KINDS:
        notes.append(
            f'<p class="small faint"><span class="swatch" style="background:{OTHER_COLOUR}"></span>and '
            f"{len(drawing.kinds) - _MOST_KINDS} more kinds</p>"
        )
    if any(layer.refused for layer in drawing.layers):
        notes.append(
            '<p class="small faint"><span class="swatch outlined"></span>outlined: has a refused op</p>'
        )
    columns = ["layers", "work", *(["fabric"] if is_placed else [])]
    head = "".join(f'<th scope="col" class="num">{name}</th>' for name in columns)
    return (
        f'<div class="kinds"><table><thead><tr><th scope="col">kind</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
        f"{''.join(notes)}</div>"
    )


def _part_legend(drawing: Drawing) -> str:
    items = "".join(
        f'<li><span class="swatch part-{part}" style="background:{PART_COLOURS[part]}"></span>{PART_NAMES[part]}</li>'
        for part in parts_used(drawing)
    )
    folded = sum(len(group.layers) - 1 for group in drawing.groups)
    words = (
        "<p class='faint'>Layers that are alike and follow one another share a row (×).</p>" if folded else ""
    )
    return f'{words}<ul class="legend">{items}</ul>' if items else words


def _need(drawing: Drawing) -> str:
    """The plan's own words for what is needed, or ours where it has none."""
    why = drawing.word("why_fits")
    if not why:
        return esc(capacity_words(drawing))
    needed, capacity = drawing.number("needed_bytes"), drawing.number("capacity_bytes")
    share = (
        f" {show_share(needed / capacity)} of the capacity."
        if needed is not None and capacity and capacity > 0
        else ""
    )
    return f"{esc(why[0].upper() + why[1:])}.{share}"
