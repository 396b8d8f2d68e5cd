"""Drawings of a proof: two loss curves, and each quantity's distance beside its bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

_WIDTH, _HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 30
_FLOOR = 1e-17  # distances below are shown as zero


def loss_curves(losses: dict[str, list[list[float]]], parted_at: int | None) -> str:
    """The original's curve broad, the port's narrow on top of it, so that both are seen where they agree."""
    curves = {who: [_total(step) for step in steps] for who, steps in losses.items()}
    values = [v for curve in curves.values() for v in curve if v is not None]
    if not values:
        return "<p>No loss was recorded.</p>"
    low, high = min(values), max(values)
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
    pad = 0.06 * (high - low)
    low, high = low - pad, high + pad
    steps = max(len(curve) for curve in curves.values())

    def x(step: float) -> float:
        return _across(step, steps, _WIDTH)

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low)

    parts = [_grid(_ticks(low, high), y, _WIDTH, lambda v: f"{v:.4g}"), _step_axis(steps, x, _HEIGHT)]
    if parted_at is not None and 1 <= parted_at <= steps:
        parts.append(
            f'<line class="parted" x1="{x(parted_at):.1f}" x2="{x(parted_at):.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
        )
    for who in ("original", "ported"):
        for run in _runs(curves.get(who, [])):
            points = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in run)
            parts.append(f'<polyline class="{who}" points="{points}"/>')
            parts += [
                f'<circle class="{who}" cx="{x(s):.1f}" cy="{y(v):.1f}" r="{5 if who == "original" else 2.5}">'
                f"<title>step {s}: {v:.8g}</title></circle>"
                for s, v in run
                if steps <= 100
            ]
    return _svg(_WIDTH, _HEIGHT, "loss of each step in both runs", parts)


def distance_panel(rows: Sequence[dict[str, Any]], quantity: str, label: str) -> str:
    """One quantity: its worst distance in each step as dots, its bound as a line, on a logarithmic scale."""
    mine = [row for row in rows if row["quantity"] == quantity]
    if not mine:
        return ""
    width, height = 350, 200
    steps = max(int(row["step"]) for row in mine)
    shown = [d for row in mine for d in (row["distance"], row["bound"]) if d > _FLOOR]
    low = math.floor(math.log10(min(shown, default=1e-8))) - 1
    high = math.ceil(math.log10(min(max(shown, default=1.0), 1e6))) + 1

    def x(step: float) -> float:
        return _across(step, steps, width)

    def y(power: float) -> float:
        return _TOP + (height - _TOP - _BOTTOM) * (high - power) / (high - low)

    every = max(1, (high - low) // 5)
    parts = [
        _grid(list(range(low + 1, high + 1, every)), y, width, lambda p: f"1e{int(p)}"),
        f'<text class="tick" x="{_LEFT - 6}" y="{y(low) + 4:.1f}" text-anchor="end">0</text>',
        _step_axis(steps, x, height),
    ]
    bounds = [(row["step"], math.log10(max(row["bound"], 10.0**low))) for row in mine]
    line = " ".join(f"{x(s):.1f},{y(b):.1f}" for s, b in bounds)
    area = f"{x(1):.1f},{_TOP} {line} {x(bounds[-1][0]):.1f},{_TOP}"
    parts.append(f'<polygon class="beyond" points="{area}"/><polyline class="bound" points="{line}"/>')
    for row in mine:
        distance = row["distance"]
        power = min(float(high), math.log10(distance)) if distance > _FLOOR else float(low)
        kind = "over" if distance > row["bound"] else "within"
        name = f", {row['name']}" if row["name"] else ""
        title = f"step {row['step']}{name}: {distance:.3g} of {row['bound']:.3g} ({row['decided_by']})"
        parts.append(
            f'<circle class="{kind}" cx="{x(row["step"]):.1f}" cy="{y(power):.1f}" r="3.2"><title>{escape(title)}</title></circle>'
        )
    return f"<figure><figcaption>{escape(label)}</figcaption>{_svg(width, height, label, parts)}</figure>"


def _total(step: list[float]) -> float | None:
    return math.fsum(step) if step and all(map(math.isfinite, step)) else None


def _runs(curve: list[float | None]) -> list[list[tuple[int, float]]]:
    """Stretches of a curve without a gap: a step without a finite loss is one."""
    runs: list[list[tuple[int, float]]] = [[]]
    for step, value in enumerate(curve, 1):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((step, value))
    return [run for run in runs if run]


def _across(step: float, steps: int, width: int) -> float:
    inner = width - _LEFT - _RIGHT
    return _LEFT + inner * ((step - 0.5) / steps if steps > 1 else 0.5)


def _ticks(low: float, high: float) -> list[float]:
    size = 10 ** math.floor(math.log10((high - low) / 4))
    step = next(size * m for m in (1, 2, 5, 10) if (high - low) / (size * m) <= 5)
    first = math.ceil(low / step)
    return [n * step for n in range(first, math.floor(high / step) + 1)]


def _grid(values: Sequence[float], y: Any, width: int, show: Any) -> str:
    return "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>'
        f'<text class="tick" x="{_LEFT - 6}" y="{y(v) + 4:.1f}" text-anchor="end">{escape(show(v))}</text>'
        for v in values
    )


def _step_axis(steps: int, x: Any, height: int) -> str:
    every = next(
        e for e in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if steps / e <= 10 or e == 5000
    )
    marks = [s for s in range(1, steps + 1) if s == 1 or s % every == 0]
    if len(marks) > 1 and every > 1 and marks[1] - marks[0] < every / 2:
        marks.pop(1)
    return "".join(
        f'<text class="tick" x="{x(s):.1f}" y="{height - 10}" text-anchor="middle">{s}</text>' for s in marks
    )


def _svg(width: int, height: int, label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )
