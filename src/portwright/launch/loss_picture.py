"""A picture of a job's loss as an SVG file: the curve, evaluations, and where it was started again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from portwright.errors import UserError
from portwright.job.atomic import atomic_write_text
from portwright.job.progress import format_value
from portwright.launch.progress import Progress, Training

_WIDTH, _HEIGHT = 860, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 24, 64, 52
_INK, _FAINT, _GRID = "#1d2129", "#5c6470", "#e3e6ea"
_CURVE, _DOTS, _MARK, _ALARM = "#4477aa", "#aa3377", "#ccbb44", "#cc3311"  # Paul Tol's, for all eyes
_FONT = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif"
_LOG_RATIO = 20.0

Scale = Callable[[float], float]


def write_picture(name: str, progress: Progress, path: Path) -> None:
    """Writes the picture to an .svg file, which any browser shows."""
    if path.suffix.lower() != ".svg":
        raise UserError(
            f"the picture cannot be written to '{path}'.",
            "It is an SVG file: give a name that ends with .svg.",
        )
    atomic_write_text(path, loss_picture(name, progress))


def loss_picture(name: str, progress: Progress) -> str:
    """The SVG; it says so where there is no loss yet."""
    training = progress.training
    series = [] if training is None else [(step, _bounded(loss)) for step, loss in training.series]
    points = [p for p in series if math.isfinite(p[1])]
    parts = [
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 26, name, 16, _INK, weight="600"),
    ]
    if training is None or not points:
        parts.append(_text(_LEFT, 52, "No loss has been logged.", 13, _FAINT))
        return _svg(name, parts)
    parts.append(_text(_LEFT, 46, _caption(training), 12, _FAINT))
    evaluated = [(step, _bounded(loss)) for step, loss in training.evaluated]
    values = [loss for _, loss in (*points, *evaluated)]
    y, ticks, is_log = _make_y(min(values), max(values))
    last = max(training.step, training.total or 0)
    x = _make_x(min(points[0][0], last), last)
    parts += _axes(x, y, ticks, points[0][0], last, is_log)
    parts += _restarts(training, x)
    for part in _stretches(series):
        line = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in part)
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{_CURVE}" stroke-width="1.8" stroke-linejoin="round"/>'
        )
        if len(part) == 1:
            parts.append(
                f'<circle cx="{x(part[0][0]):.1f}" cy="{y(part[0][1]):.1f}" r="2.5" fill="{_CURVE}"/>'
            )
    parts += [
        f'<circle cx="{x(step):.1f}" cy="{y(loss):.1f}" r="4" fill="{_DOTS}"><title>evaluation at step {step}: {loss:.6g}</title></circle>'
        for step, loss in evaluated
    ]
    parts += _alarm(training, x)
    return _svg(name, parts)


def _bounded(loss: float) -> float:
    """Within what can be added, divided and raised without overflow."""
    if not math.isfinite(loss):
        return loss
    return 0.0 if abs(loss) < 1e-300 else min(1e300, max(-1e300, loss))


def _caption(training: Training) -> str:
    words = [f"step {training.step}" + (f" of {training.total}" if training.total else "")]
    if training.loss is not None:
        words.append(f"loss {format_value(training.loss)}")
    if training.best_loss is not None:
        words.append(f"best {format_value(training.best_loss)} at step {training.best_step}")
    if training.evaluated:
        words.append("dots: evaluations")
    if training.resumed_at:
        words.append("dashed: started again")
    if training.emulated:
        words.append(f"emulated: {training.emulated}")
    return " · ".join(words)


def _make_x(first: int, last: int) -> Scale:
    spread = max(1, last - first)
    return lambda step: _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(1.0, max(0.0, (step - first) / spread))


def _make_y(low: float, high: float) -> tuple[Scale, list[float], bool]:
    is_log = low > 0 and high / low > _LOG_RATIO
    bottom, top = (math.log10(low), math.log10(high)) if is_log else (low, high)
    if not top / 2 - bottom / 2 > 0:
        half = abs(top) * 0.1 or 0.5
        bottom, top = bottom - half, top + half
    pad = 0.05 * (top - bottom)
    bottom, top = bottom - pad, top + pad

    def scale(value: float) -> float:
        at = math.log10(value) if is_log else value
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (at - bottom) / (top - bottom)

    if not is_log:
        return scale, round_ticks(bottom, top, 5), False
    powers = range(max(-300, math.floor(bottom)), min(300, math.ceil(top)) + 1)
    many = len(powers) > 4
    found = [
        m * 10.0**p
        for p in powers
        for m in ((1,) if many else (1, 2, 5))
        if bottom <= math.log10(m * 10.0**p) <= top
    ]
    return scale, found[:: max(1, len(found) // 8)], True


def round_ticks(low: float, high: float, most: int) -> list[float]:
    """At most about `most` round numbers between two."""
    spread = high - low
    if not (math.isfinite(spread) and spread > 0):
        return [low]
    size = 10.0 ** math.floor(math.log10(spread / most))
    each = next((size * m for m in (1, 2, 5, 10) if spread / (size * m) <= most), size * 10)
    return [n * each for n in range(math.ceil(low / each), math.floor(high / each) + 1)]


def _axes(x: Scale, y: Scale, ticks: Sequence[float], first: int, last: int, is_log: bool) -> list[str]:
    bottom = _HEIGHT - _BOTTOM
    parts = []
    for value in ticks:
        at = f"{y(value):.1f}"
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at}" y2="{at}" stroke="{_GRID}"/>')
        parts.append(_text(_LEFT - 8, y(value) + 4, f"{value:.4g}", 11, _FAINT, anchor="end"))
    for step in round_ticks(first, max(last, first + 1), 8):
        if step == int(step):
            parts.append(
                f'<line x1="{x(step):.1f}" x2="{x(step):.1f}" y1="{bottom}" y2="{bottom + 5}" stroke="{_FAINT}"/>'
            )
            parts.append(_text(x(step), bottom + 18, f"{int(step):,}", 11, _FAINT, anchor="middle"))
    parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}" stroke="{_FAINT}"/>')
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, "step", 12, _FAINT, anchor="middle"))
    label = "loss (logarithmic)" if is_log else "loss"
    middle = (_TOP + bottom) / 2
    parts.append(
        f'<text transform="translate(18 {middle:.0f}) rotate(-90)" text-anchor="middle" font-size="12" fill="{_FAINT}">{label}</text>'
    )
    return parts


def _restarts(training: Training, x: Scale) -> list[str]:
    return [
        f'<line x1="{x(step):.1f}" x2="{x(step):.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" stroke="{_MARK}" '
        f'stroke-width="1.5" stroke-dasharray="5 4"><title>started again after step {step}</title></line>'
        for step in training.resumed_at
    ]


def _alarm(training: Training, x: Scale) -> list[str]:
    step = training.non_finite_step
    if step is None:
        return []
    at = x(step)
    anchor = "end" if at > _WIDTH / 2 else "start"
    return [
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" stroke="{_ALARM}" stroke-width="1.5"/>',
        _text(
            at + (-6 if anchor == "end" else 6),
            _TOP + 12,
            f"not finite at step {step}",
            11,
            _ALARM,
            anchor=anchor,
        ),
    ]


def _stretches(series: Sequence[tuple[int, float]]) -> list[list[tuple[int, float]]]:
    """The curve without its gaps: a loss that is not finite is one."""
    parts: list[list[tuple[int, float]]] = [[]]
    for step, loss in series:
        if math.isfinite(loss):
            parts[-1].append((step, loss))
        else:
            parts.append([])
    return [part for part in parts if part]


def _text(
    x: float, y: float, text: str, size: int, colour: str, *, anchor: str = "start", weight: str = "400"
) -> str:
    shown = escape("".join(c if c.isprintable() else "?" for c in text))
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}">{shown}</text>'


def _svg(name: str, parts: Sequence[str]) -> str:
    label = escape("".join(c if c.isprintable() else "?" for c in name), quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-family="{_FONT}" role="img" aria-label="loss of {label}">\n' + "\n".join(parts) + "\n</svg>\n"
    )
