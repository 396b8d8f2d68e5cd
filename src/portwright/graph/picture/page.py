"""One HTML page of a plan, and its drawings as files."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from portwright.graph.picture import figures
from portwright.graph.picture.drawing import Drawing, Json, read_document
from portwright.job.atomic import atomic_write_text
from portwright.report import svg, words
from portwright.report.page import render_page

_LEGEND = {
    "native": "the target has a kernel",
    "decomposed": "runs as other ops",
    "free": "a view or bookkeeping, costs no kernel",
    "refused": "the target does not run it",
}


def write_page(plan: Json, path: Path) -> Path:
    """Writes the page of a plan's JSON document, of one target or several, and says where it is."""
    atomic_write_text(path, make_page(plan))
    return path


def write_svgs(plan: Json, folder: Path) -> list[Path]:
    """Writes wafer.svg and memory.svg of one target into a folder."""
    atomic_write_text(folder / "wafer.svg", figures.wafer_svg(plan))
    atomic_write_text(folder / "memory.svg", figures.memory_svg(plan))
    return [folder / "wafer.svg", folder / "memory.svg"]


def make_page(plan: Json) -> str:
    """The page as text; the same plan gives the same page, as long as the source files it names stay the same."""
    ours = {"svg": svg, "figures": figures, "op_pieces": _op_pieces}
    told = {"value": _value, "between": _between, "inputs": _inputs, "address": _address, "excerpt": _excerpt}
    return render_page("plan.html.j2", script=True, drawings=read_document(plan), **ours, **told)


def _op_pieces(drawing: Drawing) -> list[svg.Piece]:
    counts = drawing.plan["kernels"]["ops"]
    ordered = sorted(counts, key=[*_LEGEND, *counts].index)
    return [
        svg.Piece(counts[how], f"how-{how}", f"{counts[how]:,} {how}: {_LEGEND.get(how, '')}")
        for how in ordered
    ]


def _value(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return words.size(value)
    return words.share(value) if name.endswith("utilization") else words.number(value)


def _between(name: str, estimate: Json) -> str:
    return " to ".join(_value(name, end) for end in estimate["interval"])


def _inputs(given: Json, before: str = "") -> Iterator[tuple[str, Any]]:
    """Nested inputs of a formula as `published.network`; numbers keep all their digits."""
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from _inputs(value, f"{before}{name}.")
        else:
            yield before + name, f"{value:,}" if type(value) in (int, float) else value


def _address(file: str) -> str:
    """The URL of a file; bytes of its name that are no UTF-8 are kept."""
    return "file://" + quote(file, errors="surrogateescape")


def _excerpt(file: str | None, line: int | None, around: int = 2, widest: int = 200) -> list[str]:
    """The line, marked, with its neighbours; nothing where it cannot be read. Only Python is shown: pages go elsewhere."""
    if not file or not file.endswith(".py") or line is None:
        return []
    try:
        text = words.clean(Path(file).read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):  # gone, forbidden, or no path at all (a null character)
        return []
    lines = text.removesuffix("\n").expandtabs(4).split("\n")
    if not 1 <= line <= len(lines):
        return []
    first = max(0, line - 1 - around)
    shown = textwrap.dedent("\n".join(lines[first : line + around])).split("\n")
    digits = len(str(first + len(shown)))
    numbered = [f"{i:>{digits}}  {words.elide(text, widest)}" for i, text in enumerate(shown, first + 1)]
    numbered[line - 1 - first] = Markup("<mark>{}</mark>").format(numbered[line - 1 - first])
    return numbered
