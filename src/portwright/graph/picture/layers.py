"""The table of layers: what each one takes, the alike ones folded into a row."""

from __future__ import annotations

from portwright.graph.picture.document import Drawing, Group
from portwright.graph.picture.memory import largest_bytes, layer_segments
from portwright.graph.picture.shapes import Segment, bar, kind_colours
from portwright.graph.picture.source import breakable
from portwright.graph.picture.text import NONE, esc, show_number, show_share, show_size

_SHOWN_ROWS = 60


def layer_table(drawing: Drawing) -> str:
    if not drawing.groups:
        return '<p class="faint">The plan lists no layer.</p>'
    most_work = max(group.first.share_of_work * len(group.layers) for group in drawing.groups)
    rows = [_row(drawing, group, most_work) for group in drawing.groups]
    cores = "tiles" if drawing.stages else "cores"
    columns = [("layer", ""), ("parameters", "num"), ("work", ""), ("memory", "wide")]
    if _has_cores(drawing):
        columns.append((cores, "num"))
    if any(group.first.refused for group in drawing.groups):
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


def _has_cores(drawing: Drawing) -> bool:
    return any(layer.cores is not None for layer in drawing.layers)


def _row(drawing: Drawing, group: Group, most_work: float) -> str:
    layer, count = group.first, len(group.layers)
    each = ' <span class="faint">each</span>' if count > 1 else ""
    times = f' <span class="times" title="{count} layers alike">×{count:,}</span>' if count > 1 else ""
    colour = kind_colours(drawing.kinds)[layer.kind]
    stage = f" · chip {layer.stage}" if layer.stage is not None else ""
    work = layer.share_of_work * count
    title = f"{show_share(layer.share_of_work)} each" if count > 1 else show_share(work)
    cells = [
        f'<th scope="row" data-label="layer"><span class="swatch" style="background:{colour}"></span>'
        f'<code>{breakable(group.name)}</code>{times}<div class="small faint">{esc(layer.kind or NONE)}{stage}</div></th>',
        f'<td class="num" data-label="parameters">{show_number(layer.parameters)}{each}</td>',
        f'<td class="work" data-label="work">{show_share(work)}'
        f"{bar([Segment(work, colour, title, 'piece')], f'work: {show_share(work)}', most_work, 'thin')}</td>",
        f'<td class="wide" data-label="memory">{show_size(layer.bytes)}{each}'
        f"{bar(layer_segments(group), _memory_words(group), largest_bytes(drawing), 'thin')}</td>",
    ]
    if _has_cores(drawing):
        cells.append(f'<td class="num" data-label="cores">{_cores(group)}</td>')
    if any(g.first.refused for g in drawing.groups):
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
    shown = show_number(low) if low == high else f"{show_number(low)} to {show_number(high)}"
    return f"{shown}{' <span class=faint>each</span>' if len(group.layers) > 1 else ''}{share}"


def _memory_words(group: Group) -> str:
    return ", ".join(segment.title for segment in layer_segments(group)) or "no memory"
