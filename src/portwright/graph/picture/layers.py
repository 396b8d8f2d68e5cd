"""The table of layers: what each one takes, the alike ones folded into a row."""

from __future__ import annotations

from dataclasses import dataclass

from portwright.graph.picture.document import Drawing, Group
from portwright.graph.picture.memory import largest_bytes, layer_segments
from portwright.graph.picture.shapes import Segment, bar, kind_colours
from portwright.graph.picture.source import breakable
from portwright.graph.picture.text import NONE, esc, show_number, show_share, show_size

_SHOWN_ROWS = 60


@dataclass(frozen=True)
class _Scale:
    """What all rows of a table share."""

    most_work: float
    most_bytes: float
    has_cores: bool
    has_refused: bool


def layer_table(drawing: Drawing) -> str:
    groups = drawing.groups
    if not groups:
        return '<p class="faint">The plan lists no layer.</p>'
    scale = _Scale(
        max(group.first.share_of_work * len(group.layers) for group in groups),
        largest_bytes(drawing),
        any(layer.cores is not None for layer in drawing.layers),
        any(group.first.refused for group in groups),
    )
    rows = [_row(drawing, group, scale) for group in groups]
    columns = [("layer", ""), ("parameters", "num"), ("work", ""), ("memory", "wide")]
    if scale.has_cores:
        columns.append(("tiles" if drawing.stages else "cores", "num"))
    if scale.has_refused:
        columns.append(("refused", "num"))
    head = "".join(f'<th scope="col" class="{style}">{name}</th>' for name, style in columns)
    table = f'<table class="layers"><thead><tr>{head}</tr></thead><tbody>'
    shown = f"{table}{''.join(rows[:_SHOWN_ROWS])}</tbody></table>"
    if len(rows) > _SHOWN_ROWS:
        shown += (
            f"<details><summary>{len(rows) - _SHOWN_ROWS:,} more rows</summary>"
            f"{table}{''.join(rows[_SHOWN_ROWS:])}</tbody></table></details>"
        )
    return shown


def _row(drawing: Drawing, group: Group, scale: _Scale) -> str:
    layer, count = group.first, len(group.layers)
    each = ' <span class="faint">each</span>' if count > 1 else ""
    times = f' <span class="times" title="{count} layers alike">×{count:,}</span>' if count > 1 else ""
    colour = kind_colours(drawing.kinds)[layer.kind]
    holder = "process" if drawing.word("execution") else "chip"
    stage = f" · {holder} {layer.stage}" if layer.stage is not None else ""
    work = layer.share_of_work * count
    title = f"{show_share(layer.share_of_work)} each" if count > 1 else show_share(work)
    cells = [
        f'<th scope="row" data-label="layer"><span class="swatch" style="background:{colour}"></span>'
        f'<code>{breakable(group.name)}</code>{times}<div class="small faint">{esc(layer.kind or NONE)}{stage}</div></th>',
        f'<td class="num" data-label="parameters">{show_number(layer.parameters)}{each}</td>',
        f'<td class="work" data-label="work">{show_share(work)}'
        f"{bar([Segment(work, colour, title, 'piece')], f'work: {show_share(work)}', scale.most_work, 'thin')}</td>",
        f'<td class="wide" data-label="memory">{show_size(layer.bytes)}{each}'
        f"{bar(layer_segments(group), _memory_words(group), scale.most_bytes, 'thin')}</td>",
    ]
    if scale.has_cores:
        cells.append(f'<td class="num" data-label="cores">{_cores(group)}</td>')
    if scale.has_refused:
        mark = f'<span class="cross">✕ {layer.refused:,}</span>{each}' if layer.refused else NONE
        style = "num" if layer.refused else "num nothing"
        cells.append(f'<td class="{style}" data-label="refused">{mark}</td>')
    return f'<tr id="{drawing.anchor(group)}" tabindex="-1">{"".join(cells)}</tr>'


def _cores(group: Group) -> str:
    """Alike layers may differ by a row of cores, as rectangles are whole."""
    found = [layer.cores for layer in group.layers if layer.cores is not None]
    if not found:
        return NONE
    low, high = min(found), max(found)
    shares = [layer.share_of_fabric for layer in group.layers if layer.share_of_fabric is not None]
    share = f'<div class="small faint">{show_share(sum(shares))} of the fabric</div>' if shares else ""
    each = ' <span class="faint">each</span>' if len(group.layers) > 1 else ""
    shown = show_number(low) if low == high else f"{show_number(low)} to {show_number(high)}"
    return f"{shown}{each}{share}"


def _memory_words(group: Group) -> str:
    return ", ".join(segment.title for segment in layer_segments(group)) or "no memory"
