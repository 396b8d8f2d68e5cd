"""Drawings as SVG text: bars, charts over steps, and whole SVG files. Colours are classes of drawing.css."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from markupsafe import Markup

from portwright.report.page import read
from portwright.report.words import clean, fit

_WIDTH, _MARGIN, _LETTERS = 960, 24, 12  # of an SVG file


def draw(tag: str, *inside: str, **attributes: Any) -> Markup:
    """An SVG element; texts and values are escaped, numbers shortened, None and empty attributes left out."""
    written = Markup().join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), _value(value))
        for name, value in attributes.items()
        if value not in (None, "")
    )
    return Markup("<{0}{1}>{2}</{0}>").format(tag, written, Markup().join(map(clean, inside)))


def _value(value: Any) -> str:
    # Two digits are finer than any screen.
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else clean(value)


class Piece(NamedTuple):
    """A piece of a bar; its class gives the colour, its title is the tooltip and the legend's text."""

    amount: float
    style: str
    title: str
    link: str = ""  # anchor on the page


def bar(pieces: Sequence[Piece], whole: float = 0, style: str = "", mark: float = 0) -> Markup:
    """A bar that fills its place's width, without text, which would be distorted; a line is drawn at `mark`."""
    whole = whole or sum(piece.amount for piece in pieces) or 1
    x, parts = 0.0, [draw("rect", class_="ground", width=1000, height=10)]
    for piece in pieces:
        width = 1000 * piece.amount / whole
        drawn = draw("rect", draw("title", piece.title), class_=piece.style, x=x, width=width, height=10)
        # Not in the tab order: the keyboard reaches the row that the link leads to.
        parts.append(draw("a", drawn, href=f"#{piece.link}", tabindex="-1") if piece.link else drawn)
        x += width
    if mark:
        parts.append(draw("path", class_="mark", d=f"M{1000 * mark / whole:.2f} -2V12"))
    return stretched(
        1000, 10, f"bar {style}", ", ".join(piece.title.partition("\n")[0] for piece in pieces[:20]), *parts
    )


def stretched(width: int, height: int, style: str, label: str, *parts: str) -> Markup:
    """A drawing that is stretched to fill its place."""
    box = {"viewBox": f"0 0 {width} {height}", "preserveAspectRatio": "none"}
    return draw("svg", *parts, class_=style, **box, role="img", aria_label=label)


@dataclass
class Chart:
    """Values over steps. Coordinates are percentages, so that lines fill the page's width and text keeps its size."""

    label: str
    steps: int
    low: float
    high: float
    lines: list[Markup] = field(default_factory=list)
    marks: list[Markup] = field(default_factory=list)

    def x(self, step: float) -> float:
        return 100 * (step - 0.5) / self.steps

    def y(self, value: float) -> float:
        return 100 * (self.high - value) / (self.high - self.low)

    def grid(self, values: Iterable[float], show: Callable[[float], str]) -> None:
        for value in values:
            y = f"{self.y(value):.2f}%"
            self.marks.append(draw("line", class_="grid", x2="100%", y1=y, y2=y))
            self.marks.append(draw("text", show(value), x=-6, y=y, dy=4, text_anchor="end"))

    def line(self, points: Iterable[tuple[float, float]], style: str, tag: str = "polyline") -> None:
        text = " ".join(f"{self.x(step):.2f},{self.y(value):.2f}" for step, value in points)
        self.lines.append(draw(tag, class_=style, points=text))

    def dot(self, step: float, value: float, style: str, title: str, radius: float) -> None:
        x, y = f"{self.x(step):.2f}%", f"{self.y(value):.2f}%"
        self.marks.append(draw("circle", draw("title", title), class_=style, cx=x, cy=y, r=radius))

    def finish(self) -> Markup:
        """The drawing, with numbers under the first step and under about ten round steps."""
        every = next(e * 10**n for n in range(9) for e in (1, 2, 5) if self.steps <= 10 * e * 10**n)
        for step in sorted({1, *range(every, self.steps + 1, every)}):
            x = f"{self.x(step):.2f}%"
            self.marks.append(draw("text", str(step), x=x, y="100%", dy=18, text_anchor="middle"))
        lines = stretched(100, 100, "lines", "", *self.lines)
        return draw("svg", lines, *self.marks, class_="chart", role="img", aria_label=self.label)


def round_values(low: float, high: float) -> list[float]:
    """Up to five round numbers between `low` and `high`."""
    size = 10 ** math.floor(math.log10((high - low) / 4))
    step = next(size * m for m in (1, 2, 5, 10) if (high - low) / (size * m) <= 5)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def sheet(title: str, parts: Iterable[tuple[str, Markup, float]]) -> str:
    """An SVG file of parts from top to bottom, each a text and a drawing of the given height below it."""
    y, drawn = 0.0, []
    for words, part, height in [(title, Markup(), 0.0), *parts]:
        for line in textwrap.wrap(words, int(_WIDTH / (0.62 * _LETTERS))):
            y += 1.4 * _LETTERS
            drawn.append(draw("text", fit(line, _WIDTH, _LETTERS), y=y, font_size=_LETTERS))
        drawn.append(draw("svg", part, y=y + 6, width=_WIDTH, height=height, overflow="visible"))
        y += height + 10
    width, high = _WIDTH + 2 * _MARGIN, math.ceil(y) + 2 * _MARGIN
    paper = draw("rect", class_="paper", width=width, height=high)
    content = draw("g", *drawn, transform=f"translate({_MARGIN} {_MARGIN})")
    parts_of_it = (draw("title", title), draw("style", read("drawing.css")), paper, content)
    box = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width} {high}"}
    return f"{draw('svg', *parts_of_it, **box, width=width, height=high, role='img')}\n"


def legend(pieces: Sequence[Piece]) -> tuple[str, Markup, float]:
    """A part of a sheet with the colours and titles of pieces, four in a line."""
    drawn = Markup()
    for i, piece in enumerate(pieces):
        x, y = 240 * (i % 4), 18 * (i // 4)
        drawn += draw("rect", class_=piece.style, x=x, y=y, width=11, height=11)
        drawn += draw("text", fit(piece.title, 215, _LETTERS), x=x + 16, y=y + 10, font_size=_LETTERS)
    return "", drawn, 18 * math.ceil(len(pieces) / 4)
