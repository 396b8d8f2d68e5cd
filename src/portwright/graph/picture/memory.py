"""Memory: against what the machine has, layer by layer, and over the course of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portwright.graph.picture.document import PARTS, Drawing, Group, read_document
from portwright.graph.picture.shapes import (
    FAINT,
    INK,
    LINE,
    PART_COLOURS,
    PART_NAMES,
    Canvas,
    Segment,
    bar,
    coordinate,
)
from portwright.graph.picture.text import elide, esc, show_share, show_size
from portwright.graph.picture.wafer import NOT_THE_VENDORS

_MOST_ROWS = 60  # of a drawing of its own; the page has them all

_LEFT, _WIDTH, _RIGHT = 250, 580, 842  # of the bars of a drawing of its own, and where their words begin


def memory_svg(plan: Mapping[str, Any]) -> str:
    """A drawing of its own of memory over layers and over the step; several targets stand one below the other."""
    drawings = read_document(plan)
    canvas = Canvas(960)
    for drawing in drawings:
        _draw(canvas, drawing)
        canvas.y += 24
    return canvas.finish(f"Memory over layers: {', '.join(d.name for d in drawings)}")


def _draw(canvas: Canvas, drawing: Drawing) -> None:
    canvas.heading(f"Memory of a step for {drawing.name}")
    canvas.paragraph(f"{NOT_THE_VENDORS} {capacity_words(drawing)}")
    canvas.y += 8
    needed, capacity = drawing.number("needed_bytes"), drawing.number("capacity_bytes")
    if needed is not None and capacity and capacity > 0:
        whole = 1.04 * max(needed, capacity)
        canvas.text(0, canvas.y + 15, "needed on the machine", size=12)
        canvas.bar(_need_segments(needed, capacity, whole), _LEFT, _WIDTH, 20, whole)
        at = coordinate(_LEFT + _WIDTH * capacity / whole)
        canvas.add(f'<path d="M{at} {coordinate(canvas.y - 3)}v26" stroke="{INK}" stroke-width="2"/>')
        canvas.text(_RIGHT, canvas.y + 15, f"capacity {show_size(capacity)}", size=12, most=20)
        canvas.y += 30
    segments = step_segments(drawing)
    if segments:
        canvas.text(0, canvas.y + 15, "the whole step, each at its most", size=12)
        total = sum(s.amount for s in segments)
        canvas.bar(segments, _LEFT, _WIDTH, 20, total)
        canvas.text(_RIGHT, canvas.y + 15, show_size(total), size=12)
        canvas.y += 30
    if drawing.groups:
        canvas.text(0, canvas.y + 12, "layer by layer, on a scale of its own", size=11.5, colour=FAINT)
        canvas.y += 22
    largest = largest_bytes(drawing)
    for group in drawing.groups[:_MOST_ROWS]:
        many = f" ×{len(group.layers)}" if len(group.layers) > 1 else ""
        canvas.text(0, canvas.y + 12, f"{elide(group.name, 34 - len(many))}{many}", size=11.5)
        canvas.bar(layer_segments(group), _LEFT, _WIDTH, 16, largest)
        canvas.text(
            _RIGHT, canvas.y + 12, show_size(group.first.bytes) + (" each" if many else ""), size=11.5
        )
        canvas.y += 21
    rest = drawing.groups[_MOST_ROWS:]
    if rest:
        more = sum(len(group.layers) for group in rest)
        held = sum(layer.bytes for group in rest for layer in group.layers)
        canvas.text(0, canvas.y + 12, f"and {more} more layers: {show_size(held)}", size=11.5, colour=FAINT)
        canvas.y += 21
    canvas.legend((PART_NAMES[part], PART_COLOURS[part]) for part in parts_used(drawing))
    course = step_course(drawing)
    if course is not None:
        canvas.heading("Activations alive over the step", size=13)
        _draw_course(canvas, course)


def _draw_course(canvas: Canvas, course: Course) -> None:
    top, height = canvas.y + 14, 150.0
    outline = course.path(canvas.width, height)
    canvas.text(0, top - 2, course.peak_words, size=11.5, colour=FAINT, most=120)
    canvas.add(
        f'<g transform="translate(0 {coordinate(top + 6)})">'
        f'<path d="{outline}" fill="{PART_COLOURS["activations"]}"/>'
        f'<path d="M0 {height:g}H{coordinate(canvas.width)}" stroke="{LINE}"/></g>'
    )
    base = top + height + 22
    canvas.text(0, base, "forward →", size=11.5, colour=FAINT)
    if course.num_forward < len(course.levels):
        turn = canvas.width * course.num_forward / len(course.levels)
        canvas.add(
            f'<path d="M{coordinate(turn)} {coordinate(top + 6)}V{coordinate(top + 6 + height)}" stroke="{INK}" '
            'stroke-dasharray="3 3"/>'
        )
        canvas.text(turn + 4, base, "backward →", size=11.5, colour=FAINT)
    canvas.y = base + 10


@dataclass(frozen=True)
class Course:
    """Bytes of activations alive while each layer runs: forward in order, then backward in the reverse."""

    levels: tuple[float, ...]
    names: tuple[str, ...]
    num_forward: int

    @property
    def peak(self) -> int:
        return max(range(len(self.levels)), key=lambda i: self.levels[i])

    @property
    def peak_words(self) -> str:
        way = "forward" if self.peak < self.num_forward else "backward"
        return f"most: {show_size(self.levels[self.peak])}, {way} in {elide(self.names[self.peak], 60)}"

    def path(self, width: float, height: float) -> str:
        """An outline of steps, one a layer, closed along the base line."""
        most, step = self.levels[self.peak], width / len(self.levels)
        points = [f"M0 {coordinate(height)}"]
        for i, level in enumerate(self.levels):
            points.append(f"V{coordinate(height - height * level / most)}H{coordinate((i + 1) * step)}")
        return "".join([*points, f"V{coordinate(height)}Z"])


def step_course(drawing: Drawing) -> Course | None:
    """None where the plan does not say what lives when."""
    # A layer without anything alive does not run in that direction.
    forward = [(layer.live_forward, layer.name) for layer in drawing.layers if layer.live_forward]
    backward = [
        (layer.live_backward, layer.name) for layer in reversed(drawing.layers) if layer.live_backward
    ]
    steps = [*forward, *backward]
    if not steps:
        return None
    return Course(tuple(level for level, _ in steps), tuple(name for _, name in steps), len(forward))


def step_segments(drawing: Drawing) -> list[Segment]:
    return _segments(drawing.memory)


def layer_segments(group: Group) -> list[Segment]:
    return _segments(group.first.memory)


def _segments(memory: Mapping[str, float]) -> list[Segment]:
    return [
        Segment(
            memory[part], PART_COLOURS[part], f"{PART_NAMES[part]}: {show_size(memory[part])}", f"part-{part}"
        )
        for part in PARTS
        if memory.get(part)
    ]


def parts_used(drawing: Drawing) -> list[str]:
    return [
        part
        for part in PARTS
        if drawing.memory.get(part) or any(group.first.memory.get(part) for group in drawing.groups)
    ]


def largest_bytes(drawing: Drawing) -> float:
    return max((group.first.bytes for group in drawing.groups), default=0.0)


def capacity_words(drawing: Drawing) -> str:
    """Needed against available, in words."""
    needed, capacity = drawing.number("needed_bytes"), drawing.number("capacity_bytes")
    mode = drawing.word("mode").replace("_", " ")
    how = f" in mode {mode}" if mode else ""
    if needed is None:
        return "The plan does not say what the step needs."
    if not capacity or capacity <= 0:
        return f"Needed{how}: {show_size(needed)}. The machine's capacity is not known."
    return f"Needed{how}: {show_size(needed)} of {show_size(capacity)}, {show_share(needed / capacity)}."


def gauge(drawing: Drawing) -> str:
    """What is needed against what there is, with a line at the capacity; '' where either is not known."""
    needed, capacity = drawing.number("needed_bytes"), drawing.number("capacity_bytes")
    if needed is None or needed < 0 or not capacity or capacity <= 0:
        return ""
    whole = 1.04 * max(needed, capacity)
    segments = _need_segments(needed, capacity, whole)
    at = 100 * capacity / whole
    side = "left" if at > 50 else "right"
    return (
        f'<div class="gauge">{bar(segments, capacity_words(drawing), whole)}'
        f'<span class="capacity {side}" style="left:{at:.2f}%"><span>capacity {esc(show_size(capacity))}</span></span></div>'
    )


def _need_segments(needed: float, capacity: float, whole: float) -> list[Segment]:
    # A sliver stays visible: nothing is not the same as little.
    within = max(min(needed, capacity), 0.002 * whole)
    segments = [Segment(within, "#4477aa", f"needed: {show_size(needed)}", "needed")]
    if needed > capacity:
        over = needed - capacity
        segments.append(Segment(over, "#cc3311", f"too much: {show_size(over)}", "over"))
    return segments


def course_figure(drawing: Drawing) -> str:
    """The course of a step for the page: the outline stretches, its words do not."""
    course = step_course(drawing)
    if course is None:
        return ""
    turn = 100 * course.num_forward / len(course.levels)
    backward = "<span>backward, last layer first →</span>" if turn < 100 else ""
    line = f'<path class="turn" d="M{turn * 10:.2f} 0V200" stroke="{INK}"/>' if turn < 100 else ""
    return (
        f'<figure class="course"><figcaption>Activations of the whole model alive while each layer runs; '
        f"{esc(course.peak_words)}.</figcaption>"
        f'<svg viewBox="0 0 1000 200" preserveAspectRatio="none" role="img" aria-label="{esc(course.peak_words)}">'
        f'<path class="part-activations" d="{course.path(1000, 200)}" fill="{PART_COLOURS["activations"]}"/>{line}</svg>'
        f'<div class="axis" style="grid-template-columns:{turn:.2f}% 1fr"><span>forward, first layer first →</span>{backward}</div>'
        f"</figure>"
    )
