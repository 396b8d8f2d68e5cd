"""Drawings of a plan: where its layers run, and memory over layers and over the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from portwright.graph.picture.drawing import NOT_THE_VENDORS, Drawing, Json, describe, read_document
from portwright.report.svg import Piece, bar, draw, legend, sheet, stretched
from portwright.report.words import elide, fit, share, size

_ENLARGED_BELOW = 0.5  # of the fabric's width or height: a corner in which no name could be read
_LETTER_PIXELS = 11.0  # height
MOST_ROWS = 60  # before the rest is folded away
_NAMES = {
    "weights": "weights",
    "weight_copies": "copies of weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "inputs": "inputs",
}


def wafer_svg(plan: Json) -> str:
    """An SVG file of where one target runs the layers."""
    drawing = read_document(plan)[0]
    heading, caption = drawing.places
    parts = [*panels(drawing, linked=False), *rows(drawing, linked=False)]
    kinds = [Piece(0, style, kind) for kind, style in drawing.kinds.items()]
    return sheet(heading, [(f"{NOT_THE_VENDORS} {caption}", Markup(), 0), *parts, legend(kinds[:24])])


def rows(drawing: Drawing, linked: bool) -> Iterator[tuple[str, Markup, float]]:
    """For layers without places on a fabric: a bar of each stage, or of all layers in their order, with its title."""

    def draw_row(layers: Sequence[Json], amounts: Sequence[float], whole: float = 0) -> Markup:
        pieces = []
        for layer, amount in zip(layers, amounts, strict=True):
            link = drawing.group_of[layer["index"]].anchor if linked else ""
            pieces.append(Piece(amount, drawing.style_of(layer), describe(layer), link))
        return bar(pieces, max(whole, sum(amounts)), "tall")

    def work(layers: Sequence[Json]) -> list[float]:
        return [layer["share_of_work"] for layer in layers]

    layers = drawing.layers
    for stage in drawing.plan["stages"]:
        members = [layers[i] for i in stage["layers"]]
        names = dict.fromkeys(elide(members[i]["name"], 30) for i in (0, -1))
        held = f"{size(stage['memory_bytes'])} of {size(stage['memory_available'])}"
        told = f"{drawing.holder} {stage['index']}: {' … '.join(names)} · {held}; {share(stage['share_of_work'])} of the work"
        whole = stage["cores_available"] if stage["cores_of"] else 0
        yield told, draw_row(members, stage["cores_of"] or work(members), whole), 20
    if not drawing.plan["stages"] and not drawing.is_placed:
        streams = ", in the order they stream" if drawing.plan["mode"] == "weight_streaming" else ""
        yield "work, in the order of the step", draw_row(layers, work(layers)), 20
        weights = [layer["memory_bytes"]["weights"] for layer in layers]
        yield f"weights{streams}", draw_row(layers, weights), 20


def panels(drawing: Drawing, linked: bool) -> Iterator[tuple[str, Markup, float]]:
    """The whole fabric, and beside it the part in use where that is too small to read: title, drawing, height."""
    if not drawing.is_placed:
        return
    columns, rows = drawing.plan["fabric"]["columns"], drawing.plan["fabric"]["rows"]
    boxes = [layer["rectangle"] for layer in drawing.layers]
    right, bottom = (max(box[at] + box[by] for box in boxes) for at, by in (("x", "width"), ("y", "height")))
    title = f"the whole fabric, {columns} × {rows} cores"
    if right > _ENLARGED_BELOW * columns or bottom > _ENLARGED_BELOW * rows:
        yield _panel(drawing, title, (columns, rows), 620, linked)
    else:
        mark = draw("rect", class_="used", width=right, height=bottom)
        yield _panel(drawing, title, (columns, rows), 460, linked=False, mark=mark)
        yield _panel(drawing, f"the part in use, {right} × {bottom} cores", (right, bottom), 460, linked)


def _panel(
    drawing: Drawing, title: str, cores: tuple[int, int], most: int, linked: bool, mark: Markup | None = None
) -> tuple[str, Markup, float]:
    """Rectangles in units of cores; without names where a frame marks the part that is drawn larger."""
    scale = min(most / cores[0], 1.1 * most / cores[1])
    parts = [draw("rect", class_="ground", width=cores[0], height=cores[1])]
    # Refused ones last, so that no neighbour hides their outline.
    for layer in sorted(drawing.layers, key=lambda layer: bool(layer["refused"])):
        told, group = describe(layer), drawing.group_of[layer["index"]]
        drawn = draw("rect", draw("title", told), class_=drawing.style_of(layer), **layer["rectangle"])
        drawn += _label(layer, scale) if mark is None else ""
        if linked:
            # Layers of a group link to the same row, so the keyboard stops at the first alone.
            stop, anchor = None if layer is group.first else "-1", group.anchor
            drawn = draw("a", drawn, href=f"#{anchor}", data_group=anchor, tabindex=stop, aria_label=told)
        parts.append(drawn)
    height = cores[1] * scale
    box = {"width": cores[0] * scale, "height": height, "viewBox": f"0 0 {cores[0]} {cores[1]}"}
    drawn = draw("svg", *parts, mark or "", class_="fabric", **box, role="group", aria_label=title)
    return title, drawn, height


def _label(layer: Json, scale: float) -> Markup:
    """Name and share where there is room, the name or its end alone where there is less, else nothing."""
    x, y, width, height = (layer["rectangle"][side] * scale for side in ("x", "y", "width", "height"))
    name = ("✕ " if layer["refused"] else "") + layer["name"]
    end = ".".join(name.split(".")[-2:])  # tells a layer from its neighbours
    is_upright = height > 1.6 * width and fit(end, width - 6, _LETTER_PIXELS) != end
    along, across = (height - 8, width) if is_upright else (width - 8, height)
    if min(along, across) < 14:
        return Markup()
    lines = [name if fit(name, along, _LETTER_PIXELS) == name else fit(end, along, _LETTER_PIXELS)]
    if len(lines[0]) < min(6, len(end)):
        return Markup()
    lines += [share(layer["share_of_fabric"])] if across >= 32 and along > 5 * _LETTER_PIXELS else []
    place = f"translate({(x + width / 2) / scale:.2f} {(y + height / 2) / scale:.2f}) scale({1 / scale:.4f})"
    place += " rotate(-90)" if is_upright else ""
    drawn = Markup()
    for i, line in enumerate(lines):
        drawn += draw("text", line, dy=11 - 7 * len(lines) + 14 * i, transform=place, class_="label")
    return drawn


def memory_svg(plan: Json) -> str:
    """An SVG file of one target's memory over layers and over the step."""
    drawing = read_document(plan)[0]
    step = pieces(drawing.plan["memory_bytes"])
    parts: list[tuple[str, Markup, float]] = [(f"{NOT_THE_VENDORS} {drawing.need}", Markup(), 0)]
    if drawing.plan["capacity_bytes"]:
        parts.append(("needed, and a line at the capacity", gauge(drawing), 20))
    parts += [("the whole step, each part at its most", bar(step), 20), legend(step)]
    most = max((group.first["bytes"] for group in drawing.groups), default=0)
    for group in drawing.groups[:MOST_ROWS]:
        each = f" ×{len(group.layers)}, each" if len(group.layers) > 1 else ""
        drawn = bar(pieces(group.first["memory_bytes"]), most)
        parts.append((f"{elide(group.name, 60)}{each} {size(group.first['bytes'])}", drawn, 10))
    rest = [layer["bytes"] for group in drawing.groups[MOST_ROWS:] for layer in group.layers]
    if rest:
        parts.append((f"and {len(rest)} more layers: {size(sum(rest))}", Markup(), 0))
    return sheet(f"Memory of a step for {drawing.name}", [*parts, *course(drawing)])


def pieces(memory: Json) -> list[Piece]:
    return [
        Piece(memory[part], f"part-{part}", f"{name}: {size(memory[part])}")
        for part, name in _NAMES.items()
        if memory.get(part)
    ]


def needs(drawing: Drawing) -> list[Piece]:
    """What is needed, what of it is too much, and what there is."""
    needed, capacity = drawing.plan["needed_bytes"], drawing.plan["capacity_bytes"]
    # A small need stays visible, since it is not the same as none.
    within = max(min(needed, capacity), 0.002 * capacity)
    found = [Piece(within, "needed", f"needed: {size(needed)}")]
    if needed > capacity:
        found.append(Piece(needed - capacity, "over", f"too much: {size(needed - capacity)}"))
    return [*found, Piece(0, "mark", f"capacity: {size(capacity)}")]


def gauge(drawing: Drawing) -> Markup:
    """What is needed against what there is, with a line at the capacity."""
    capacity = drawing.plan["capacity_bytes"]
    return bar(needs(drawing), 1.04 * max(drawing.plan["needed_bytes"], capacity), mark=capacity)


def course(drawing: Drawing) -> list[tuple[str, Markup, float]]:
    """Bytes of activations alive while each layer runs, in words and drawn; nothing where the plan knows of none."""
    # A layer without anything alive does not run in that direction.
    steps = [
        (layer["live_bytes"][way], way, layer["name"])
        for way, layers in (("forward", drawing.layers), ("backward", drawing.layers[::-1]))
        for layer in layers
        if layer["live_bytes"][way]
    ]
    if not steps:
        return []
    most, way, name = max(steps, key=lambda step: step[0])
    told = f"most: {size(most)}, {way} in {elide(name, 60)}"
    width = 1000 / len(steps)
    turn = width * sum(way == "forward" for _, way, _ in steps)
    levels = "".join(f"V{200 - 200 * step[0] / most:.6g}H{i * width:.6g}" for i, step in enumerate(steps, 1))
    outline = draw("path", class_="part-activations", d=f"M0 200{levels}V200Z")
    line = draw("path", class_="turn", d=f"M{turn:.6g} 0V200") if turn < 1000 else ""
    says = "Activations of the whole model alive while each layer runs, forward and, behind the dashed line, backward; "
    return [(says + told, stretched(1000, 200, "course", told, outline, line), 150)]
