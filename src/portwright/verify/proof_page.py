"""Renders a proof as one HTML page."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from markupsafe import Markup

from portwright.job.atomic import atomic_write_text
from portwright.report.page import render_page
from portwright.report.svg import Chart, round_values
from portwright.verify import proof_text
from portwright.verify.difference import Difference
from portwright.verify.proof import Proof

_PANELS = {
    "loss": "loss",
    "gradient": "gradients, the worst parameter of each step",
    "update": "updates of the weights, the worst parameter",
    "buffer": "buffers, the worst",
}
_FLOOR = 1e-17  # distances below are shown as zero


def write_page(proof: Proof, path: Path) -> None:
    atomic_write_text(path, make_page(proof))


def make_page(proof: Proof) -> str:
    title, summary = _verdict(proof)
    found, asked = proof.first_difference, proof.front_end
    return render_page(
        "proof.html.j2",
        proof=proof,
        headline=title,
        summary=summary,
        values=(proof_text.values_words(found) or _sides(found)) if found else "",
        curves=_loss_curves(proof.losses, found.step if found else None),
        panels=[chart for quantity in _PANELS if (chart := _distances(proof.distances, quantity))],
        matched=proof_text.matched_words(proof.matches),
        asked=proof_text.front_end_words(asked) if asked else "",
        dropout=proof_text.dropout_words(proof) if proof.dropout == "off" else "drawn alike in both",
    )


def _verdict(proof: Proof) -> tuple[str, str]:
    if proof.place.on_target is False:
        says = proof_text.headline(proof)
        return (
            "Not a proof",
            f"The two runs were made elsewhere than asked. Their comparison there says: {says}.",
        )
    if proof.equal:
        return _sentence(
            proof_text.headline(proof)
        ), f"{_sentence(proof_text.SETTLED[proof.settled_by or 'dtype'])}."
    if proof.first_difference is not None:
        return _sentence(proof_text.headline(proof)), proof.first_difference.reason
    return "Cannot tell", _sentence(proof.unsure)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _sides(found: Difference) -> str:
    if found.original is None or isinstance(found.original, list | dict):
        return ""
    return f"{found.original} in the original, {found.ported} in the port"


def _loss_curves(losses: dict[str, list[list[float]]], parted_at: int | None) -> Markup | None:
    """Draws the original's curve wide and the port's narrow on top, so that both are seen where they agree."""
    curves = {
        who: [math.fsum(step) if step and all(map(math.isfinite, step)) else None for step in steps]
        for who, steps in losses.items()
    }
    values = [value for curve in curves.values() for value in curve if value is not None]
    if not values:
        return None
    low, high = min(values), max(values)
    pad = 0.06 * (high - low) or 0.5
    chart = Chart("loss of each step in both runs", max(map(len, curves.values())), low - pad, high + pad)
    chart.grid(round_values(chart.low, chart.high), lambda value: f"{value:.4g}")
    if parted_at is not None and 1 <= parted_at <= chart.steps:
        chart.line([(parted_at, chart.low), (parted_at, chart.high)], "parted")
    for who, radius in (("original", 5), ("ported", 2.5)):
        run: list[tuple[float, float]] = []
        for step, value in enumerate([*curves.get(who, []), None], 1):
            if value is not None:
                run.append((step, value))
                if chart.steps <= 100:
                    chart.dot(step, value, who, f"step {step}: {value:.8g}", radius)
            elif run:  # a step without a finite loss is a gap
                chart.line(run, who)
                run = []
    return chart.finish()


def _distances(rows: list[dict[str, Any]], quantity: str) -> Chart | None:
    """Charts one quantity on a logarithmic scale: its worst distance in each step as dots, its bound as a line."""
    rows = [row for row in rows if row["quantity"] == quantity]
    if not rows:
        return None
    shown = [d for row in rows for d in (row["distance"], row["bound"]) if d > _FLOOR]
    low = math.floor(math.log10(min(shown, default=1e-8))) - 1
    high = math.ceil(math.log10(min(max(shown, default=1.0), 1e6))) + 1
    chart = Chart(_PANELS[quantity], max(row["step"] for row in rows), low, high)
    powers = range(low + 1, high + 1, max(1, (high - low) // 5))
    chart.grid([low, *powers], lambda power: "0" if power == low else f"1e{power}")
    bounds = [(row["step"], min(high, math.log10(max(row["bound"], 10.0**low)))) for row in rows]
    chart.line([(bounds[0][0], high), *bounds, (bounds[-1][0], high)], "beyond", "polygon")
    chart.line(bounds, "bound")
    for row in rows:
        power = min(float(high), math.log10(row["distance"])) if row["distance"] > _FLOOR else low
        name = f", {row['name']}" if row["name"] else ""
        title = f"step {row['step']}{name}: {row['distance']:.3g} of {row['bound']:.3g} ({row['decided_by']})"
        chart.dot(row["step"], power, "bad" if row["distance"] > row["bound"] else "within", title, 3.2)
    return chart
