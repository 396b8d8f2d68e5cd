"""Where layers run: rectangles on a fabric, stages on chips, or, where nothing is placed, the order in which they pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from portwright.graph.picture.document import Box, Drawing, Layer, entries, read_document
from portwright.graph.picture.shapes import (
    ALARM,
    FAINT,
    GROUND,
    INK,
    LINE,
    Canvas,
    Segment,
    coordinate,
    kind_colours,
    rectangle,
)
from portwright.graph.picture.text import elide, esc, number, show_number, show_share, show_size, text_width

NOT_THE_VENDORS = "Estimated by portwright, not the vendor's output."
_ENLARGED_BELOW = 0.5  # of the fabric's width or height: a corner in which no name could be read


def wafer_svg(plan: Mapping[str, Any]) -> str:
    """A drawing of its own of where layers run; several targets stand one below the other."""
    drawings = read_document(plan)
    canvas = Canvas(960)
    for drawing in drawings:
        _draw(canvas, drawing)
        canvas.y += 24
    return canvas.finish(f"Where layers run: {', '.join(d.name for d in drawings)}")


def _draw(canvas: Canvas, drawing: Drawing) -> None:
    canvas.heading(place_heading(drawing))
    canvas.paragraph(f"{NOT_THE_VENDORS} {place_caption(drawing)}")
    canvas.y += 8
    colours = kind_colours(drawing.kinds)
    if drawing.is_placed:
        x, lowest = 0.0, 0.0
        for title, markup, width, height in fabric_panels(drawing, linked=False):
            canvas.text(x, canvas.y + 10, title, size=11.5, colour=FAINT)
            canvas.add(f'<g transform="translate({coordinate(x)} {coordinate(canvas.y + 20)})">{markup}</g>')
            x, lowest = x + width + 24, max(lowest, height)
        canvas.y += lowest + 24
    elif drawing.stages:
        for stage in drawing.stages:
            label, segments, whole, note = stage_bar(drawing, stage)
            canvas.text(0, canvas.y + 14, label, size=12, most=40)
            canvas.bar(segments, 270, 430, 20, whole)
            canvas.text(712, canvas.y + 14, note, size=11.5, colour=FAINT, most=40)
            canvas.y += 28
    else:
        for label, segments in strips(drawing):
            canvas.text(0, canvas.y + 14, label, size=12, most=60)
            canvas.bar(segments, 270, 690, 20, sum(s.amount for s in segments))
            canvas.y += 28
    canvas.legend((kind or "no kind", colours[kind]) for kind in drawing.kinds[:24])


def place_heading(drawing: Drawing) -> str:
    machine = drawing.machine.get("name")
    where = machine if isinstance(machine, str) and machine else drawing.name
    if drawing.is_placed:
        return f"Layers on the fabric of {where}"
    if drawing.stages:
        return f"Pipeline stages on {where}"
    if drawing.word("mode") == "weight_streaming":
        return f"Layers streamed through {where}"
    return f"Layers on {where}"


def place_caption(drawing: Drawing) -> str:
    """What the drawing shows, and what it does not."""
    if drawing.is_placed:
        columns, rows = drawing.fabric or (0, 0)
        used = sum(layer.box.width * layer.box.height for layer in drawing.layers if layer.box)
        return (
            f"{show_number(columns)} × {show_number(rows)} usable cores, {show_share(used / (columns * rows))} of them in "
            "rectangles. Areas are to scale; the vendor's compiler chooses its own places and shapes."
        )
    if drawing.stages and drawing.word("execution"):
        return (
            "Each row is one process with a device of its own; a piece is a layer, as wide as its share of the work. "
            "runconfig.pipeline.cuts sets other cuts."
        )
    if drawing.stages:
        return (
            "Each row is one chip; a piece is a layer, as wide as its share of the chip's tiles. The vendor's compiler chooses "
            "its own split."
        )
    if drawing.word("mode") == "weight_streaming":
        through = "device" if drawing.word("execution") else "chip"
        return (
            f"In weight streaming no layer has a place of its own: weights pass through the {through}, layer after layer, forward "
            "from left to right and backward from right to left. A piece is a layer."
        )
    return "All layers share this machine's memory and run one after another, from left to right; nothing is placed."


def describe(layer: Layer) -> str:
    """What a pointer over a layer shows."""
    lines = [f"{layer.name} ({layer.kind})" if layer.kind else layer.name]
    if layer.cores is not None:
        share = (
            f", {show_share(layer.share_of_fabric)} of the fabric"
            if layer.share_of_fabric is not None
            else ""
        )
        lines.append(f"{show_number(layer.cores)} cores{share}")
    if layer.box:
        lines.append(
            f"columns {layer.box.x:.0f} to {layer.box.x + layer.box.width - 1:.0f}, "
            f"rows {layer.box.y:.0f} to {layer.box.y + layer.box.height - 1:.0f}"
        )
    lines.append(f"{show_share(layer.share_of_work)} of the work, {show_number(layer.parameters)} parameters")
    lines.append(f"{show_size(layer.bytes)} in all")
    if layer.refused:
        lines.append(f"refused: {layer.refused}")
    return "\n".join(lines)


def fabric_panels(drawing: Drawing, linked: bool) -> list[tuple[str, str, float, float]]:
    """The whole fabric, and beside it the part in use where that is too small to read: title, SVG, width, height."""
    assert drawing.fabric is not None
    columns, rows = drawing.fabric
    boxes = [layer.box for layer in drawing.layers if layer.box]
    right = min(max(box.x + box.width for box in boxes), columns)
    bottom = min(max(box.y + box.height for box in boxes), rows)
    whole = Box(0, 0, columns, rows)
    size = f"the whole fabric, {columns:.0f} × {rows:.0f} cores"
    if right > _ENLARGED_BELOW * columns or bottom > _ENLARGED_BELOW * rows:
        return [_panel(drawing, size, whole, 620, 700, linked)]
    part = Box(0, 0, right, bottom)
    return [
        _panel(drawing, size, whole, 360, 460, False, part),
        _panel(drawing, f"the part in use, {right:.0f} × {bottom:.0f} cores", part, 460, 460, linked),
    ]


def _panel(
    drawing: Drawing,
    title: str,
    view: Box,
    widest: float,
    tallest: float,
    linked: bool,
    marked: Box | None = None,
) -> tuple[str, str, float, float]:
    scale = min(widest / view.width, tallest / view.height)
    width, height = view.width * scale, view.height * scale
    colours = kind_colours(drawing.kinds)
    parts = [rectangle(0, 0, width, height, GROUND, "ground", extra=f' stroke="{LINE}"')]
    # Refused ones last, so that no neighbour hides their outline.
    for layer in sorted(drawing.layers, key=lambda layer: bool(layer.refused)):
        if layer.box is not None:
            parts.append(_layer_markup(drawing, layer, layer.box, scale, colours, linked, marked is None))
    if marked is not None:
        parts.append(
            rectangle(
                0, 0, marked.width * scale, marked.height * scale, "none", "mark", extra=f' stroke="{INK}"'
            )
        )
    markup = (
        f'<svg class="fabric" width="{coordinate(width)}" height="{coordinate(height)}" '
        f'viewBox="0 0 {coordinate(width)} {coordinate(height)}" role="group" aria-label="{esc(title)}">{"".join(parts)}</svg>'
    )
    return title, markup, width, height


def _layer_markup(
    drawing: Drawing,
    layer: Layer,
    box: Box,
    scale: float,
    colours: Mapping[str, str],
    linked: bool,
    labelled: bool,
) -> str:
    x, y, width, height = box.x * scale, box.y * scale, box.width * scale, box.height * scale
    outline = (
        f' stroke="{ALARM}" stroke-width="2.5"' if layer.refused else ' stroke="#ffffff" stroke-width="0.75"'
    )
    style = "layer refused-layer" if layer.refused else "layer"
    markup = rectangle(x, y, width, height, colours[layer.kind], style, describe(layer), outline)
    markup += _label(layer, x, y, width, height) if labelled else ""
    if not linked:
        return markup
    group = drawing.group_of[layer.index]
    # Alike layers lead to the same row, so the keyboard stops at one of them.
    stop = "" if layer is group.first else ' tabindex="-1"'
    return (
        f'<a href="#{drawing.anchor(group)}" data-group="{drawing.anchor(group)}"{stop} '
        f'aria-label="{esc(describe(layer))}">{markup}</a>'
    )


def _label(layer: Layer, x: float, y: float, width: float, height: float) -> str:
    """Name and share where there is room, the name or its end alone where there is less, else nothing."""
    size = 11.0
    is_upright = height > 1.6 * width and text_width(_short_name(layer), size) > width - 6
    along, across = (height, width) if is_upright else (width, height)
    room = int((along - 8) / (0.62 * size))
    name = layer.name if text_width(layer.name, size) <= along - 8 else _short_name(layer)
    if text_width(name, size) > along - 8:
        name = elide(name, room) if room >= 6 and across >= 14 else ""
    if not name or across < 14 or text_width(name, size) > along - 8:
        return ""
    name = f"✕ {name}" if layer.refused and text_width(f"✕ {name}", size) <= along - 8 else name
    share = show_share(layer.share_of_fabric if layer.share_of_fabric is not None else layer.share_of_work)
    lines = [name]
    if across >= 32 and text_width(share, size) <= along - 8:
        lines.append(share)
    center_x, center_y = x + width / 2, y + height / 2
    turned = f' transform="rotate(-90 {coordinate(center_x)} {coordinate(center_y)})"' if is_upright else ""
    first = center_y - (len(lines) - 1) * 7 + 4
    return "".join(
        f'<text x="{coordinate(center_x)}" y="{coordinate(first + 14 * i)}" text-anchor="middle" font-size="{size:g}" '
        f'fill="#16181d"{" opacity=" + chr(34) + "0.75" + chr(34) if i else ""} pointer-events="none"{turned}>{esc(line)}</text>'
        for i, line in enumerate(lines)
    )


def _short_name(layer: Layer) -> str:
    """The last two words of a path, which tell a layer from its neighbours."""
    return ".".join(layer.name.split(".")[-2:]) if len(layer.name) > 14 else layer.name


def strips(drawing: Drawing) -> list[tuple[str, list[Segment]]]:
    """Layers in their order, by what they take: work, and weights that must come past or lie in memory."""
    verb = "weights, in the order they stream" if drawing.word("mode") == "weight_streaming" else "weights"
    found = [
        (
            "work, in the order of the step",
            [layer_segment(drawing, i, i.share_of_work) for i in drawing.layers],
        ),
        (verb, [layer_segment(drawing, i, i.memory.get("weights", 0.0)) for i in drawing.layers]),
    ]
    return [(label, segments) for label, segments in found if sum(s.amount for s in segments) > 0]


def layer_segment(drawing: Drawing, layer: Layer, amount: float) -> Segment:
    style = "piece refused-piece" if layer.refused else "piece"
    colour = kind_colours(drawing.kinds)[layer.kind]
    return Segment(amount, colour, describe(layer), style, drawing.anchor(drawing.group_of[layer.index]))


def stage_bar(drawing: Drawing, stage: Mapping[str, Any]) -> tuple[str, list[Segment], float, str]:
    """One stage: what it is called, its layers by tiles, the chip's tiles, and its memory in words."""
    members = [drawing.layers[i] for i in stage_layers(drawing, stage)]
    index = number(stage.get("index"))
    cores = [number(c) or 0.0 for c in entries(stage.get("cores_of"))]
    available = number(stage.get("cores_available")) or 0.0
    if len(cores) != len(members):
        cores, available = [layer.share_of_work for layer in members], 0.0
    whole = max(available, sum(cores))
    first, last = (members[0].name, members[-1].name) if members else ("no layer", "")
    holder = "process" if drawing.word("execution") else "chip"
    name = f"{holder} {index:.0f}: " if index is not None else ""
    named = f"{name}{elide(first, 30)}" + (f" … {elide(last, 30)}" if last and last != first else "")
    note = f"{show_size(stage.get('memory_bytes'))} of {show_size(stage.get('memory_available'))}"
    segments = [layer_segment(drawing, layer, c) for layer, c in zip(members, cores, strict=True)]
    return named, segments, whole, note


def stage_layers(drawing: Drawing, stage: Mapping[str, Any]) -> list[int]:
    wanted = [number(i) for i in entries(stage.get("layers"))]
    return [int(i) for i in wanted if i is not None and 0 <= i < len(drawing.layers)]
