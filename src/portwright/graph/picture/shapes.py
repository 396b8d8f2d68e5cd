"""The few shapes that all drawings are made of, as SVG text.

Colours stand in the attributes, so that a file of its own looks right wherever it is opened; the page's style sheet
overrules them by class, for the dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from portwright.graph.picture.text import elide, esc

INK, FAINT, LINE, PAPER, GROUND, ALARM = "#1d2129", "#5c6470", "#c9ced6", "#ffffff", "#f1f3f5", "#b3261e"
FONT = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif"

# Paul Tol's schemes, which people with any colour vision can tell apart: 'bright' for parts of a bar, 'light' under text.
PART_COLOURS = {
    "weights": "#4477aa",
    "weight_copies": "#66ccee",
    "gradients": "#ccbb44",
    "optimizer": "#aa3377",
    "activations": "#228833",
    "inputs": "#bbbbbb",
}
PART_NAMES = {
    "weights": "weights",
    "weight_copies": "copies of weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "inputs": "inputs",
}
HOW_COLOURS = {"native": "#4477aa", "decomposed": "#66ccee", "free": "#bbbbbb", "refused": "#cc3311"}
_KIND_COLOURS = ("#77aadd", "#eedd88", "#44bb99", "#ffaabb", "#bbcc33", "#99ddff", "#ee8866")
OTHER_COLOUR = "#dddddd"


@dataclass(frozen=True)
class Segment:
    """A piece of a bar."""

    amount: float
    colour: str
    title: str
    style: str = ""  # class
    link: str = ""  # anchor on the page


@lru_cache(maxsize=16)
def kind_colours(kinds: tuple[str, ...]) -> dict[str, str]:
    """A colour for each of the kinds that come first; the rest share one."""
    return {
        kind: _KIND_COLOURS[i] if i < len(_KIND_COLOURS) else OTHER_COLOUR for i, kind in enumerate(kinds)
    }


def coordinate(value: float) -> str:
    """Two digits are finer than any screen, and keep the file small."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def rectangle(
    x: float,
    y: float,
    width: float,
    height: float,
    fill: str,
    style: str = "",
    title: str = "",
    extra: str = "",
) -> str:
    attributes = "".join(
        f' {name}="{coordinate(value)}"'
        for name, value in (("x", x), ("y", y), ("width", max(width, 0.0)), ("height", max(height, 0.0)))
    )
    named = f' class="{esc(style)}"' if style else ""
    inside = f"><title>{esc(title)}</title></rect>" if title else "/>"
    return f'<rect{named}{attributes} fill="{fill}"{extra}{inside}'


def lay_out(segments: Iterable[Segment], width: float, whole: float) -> list[tuple[float, float, Segment]]:
    """Where each piece of a bar starts and how wide it is."""
    placed, x = [], 0.0
    for segment in segments:
        extent = width * segment.amount / whole if whole > 0 else 0.0
        if extent > 0:
            placed.append((x, extent, segment))
            x += extent
    return placed


def bar(segments: Sequence[Segment], label: str, whole: float | None = None, style: str = "") -> str:
    """A bar for the page: as wide as its place, without text, so that nothing in it is squeezed."""
    whole = whole if whole is not None else sum(s.amount for s in segments)
    pieces = []
    for x, extent, segment in lay_out(segments, 1000, whole):
        piece = rectangle(x, 0, extent, 10, segment.colour, segment.style, segment.title)
        # One stop for the keyboard is the row that it leads to; hundreds more would be a maze.
        pieces.append(f'<a href="#{segment.link}" tabindex="-1">{piece}</a>' if segment.link else piece)
    return (
        f'<svg class="bar {esc(style)}" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" '
        f'aria-label="{esc(label)}">{"".join(pieces)}</svg>'
    )


def _edge(segment: Segment) -> str:
    """Neighbours of one colour are told apart by a line."""
    return f' stroke="{PAPER}" stroke-width="0.75"' if "piece" in segment.style.split() else ""


class Canvas:
    """A drawing of its own, filled from top to bottom."""

    def __init__(self, width: float) -> None:
        self.width = width
        self.y = 0.0
        self._parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        colour: str = INK,
        anchor: str = "start",
        bold: bool = False,
        most: int = 200,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{coordinate(x)}" y="{coordinate(y)}" font-size="{coordinate(size)}" fill="{colour}" '
            f'text-anchor="{anchor}"{weight}>{esc(elide(text, most))}</text>'
        )

    def paragraph(self, text: str, *, size: float = 12, colour: str = FAINT) -> None:
        """Lines as wide as the drawing, under what is there."""
        most = int(self.width / (0.56 * size))
        line = ""
        for word in [*text.split(), ""]:
            if line and (not word or len(line) + 1 + len(word) > most):
                self.y += size * 1.45
                self.text(0, self.y, line, size=size, colour=colour, most=most + 4)
                line = ""
            line = f"{line} {word}".strip()
        self.y += size * 0.6

    def heading(self, text: str, *, size: float = 15) -> None:
        self.y += size * 1.6
        self.text(0, self.y, text, size=size, bold=True, most=int(self.width / (0.62 * size)))
        self.y += size * 0.5

    def bar(self, segments: Sequence[Segment], x: float, width: float, height: float, whole: float) -> None:
        self._parts.append(rectangle(x, self.y, width, height, GROUND))
        self._parts += [
            rectangle(
                x + start, self.y, extent, height, segment.colour, title=segment.title, extra=_edge(segment)
            )
            for start, extent, segment in lay_out(segments, width, whole)
        ]

    def legend(self, entries: Iterable[tuple[str, str]]) -> None:
        """Colours with their names, in as many lines as they take."""
        x, self.y = 0.0, self.y + 18
        for name, colour in entries:
            shown = elide(name, 40)
            extent = 26 + 6.9 * len(shown)
            if x and x + extent > self.width:
                x, self.y = 0.0, self.y + 18
            self._parts.append(rectangle(x, self.y - 9, 11, 11, colour))
            self.text(x + 16, self.y, shown, size=11.5, colour=FAINT)
            x += extent
        self.y += 10

    def add(self, markup: str) -> None:
        self._parts.append(markup)

    def finish(self, title: str) -> str:
        margin = 24
        width, height = coordinate(self.width + 2 * margin), coordinate(self.y + 2 * margin)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="{FONT}" role="img"><title>{esc(title)}</title>'
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>'
            f'<g transform="translate({margin} {margin})">{"".join(self._parts)}</g></svg>\n'
        )
