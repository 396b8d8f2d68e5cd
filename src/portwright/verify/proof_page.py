"""A proof as one HTML page: nothing fetched, no script, readable in light and dark and on paper."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from portwright import __version__
from portwright.job.atomic import atomic_write_text
from portwright.verify.difference import Difference, count
from portwright.verify.proof import Proof
from portwright.verify.proof_charts import distance_panel, loss_curves
from portwright.verify.proof_text import (
    SETTLED,
    dropout_words,
    front_end_words,
    matched_words,
    subject,
    values_words,
)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_PANELS = {
    "loss": "loss",
    "gradient": "gradients, the worst parameter of each step",
    "update": "updates of the weights, the worst parameter",
    "buffer": "buffers, the worst",
}
_MOST_MATCHES = 400


def write_page(proof: Proof, path: Path) -> None:
    atomic_write_text(path, make_page(proof))


def make_page(proof: Proof) -> str:
    """The page as text: the verdict first, then the curves, the distances, the matches and what was run."""
    style = files(__package__).joinpath("proof.css").read_text(encoding="utf-8")
    title, kind, summary = _verdict(proof)
    parted = proof.first_difference.step if proof.first_difference else None
    sections = [
        _difference(proof.first_difference, proof) if proof.first_difference else "",
        _section(
            "Loss of each step",
            '<p class="legend"><span class="key original"></span>original <span class="key ported"></span>port'
            f"{' <span class=key-parted></span>where they part' if parted else ''}</p>"
            + loss_curves(proof.losses, parted),
        ),
        _distances(proof),
        _matches(proof),
        _front_end(proof),
        _conditions(proof),
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<header class="{kind}">
<p class="small">portwright verify</p>
<h1>{escape(title)}</h1>
<p>{escape(summary)}</p>
<p class="small">{escape(proof.place.says)}</p>
</header>
<main>
{"".join(sections)}
</main>
<footer class="small">Made by portwright {escape(__version__)}. Distances are relative, between linear sketches of whole tensors.</footer>
</body>
</html>
"""


def _verdict(proof: Proof) -> tuple[str, str, str]:
    if proof.place.on_target is False:
        return (
            "Not a proof",
            "bad",
            f"The two runs are {'equal' if proof.equal else 'not equal'}, but elsewhere than asked.",
        )
    if proof.equal:
        title = f"Equal over {count(proof.steps, 'step')}"
        settled = SETTLED[proof.settled_by or "dtype"]
        return title, "good", f"{settled[0].upper()}{settled[1:]}."
    found = proof.first_difference
    where = f" at step {found.step}: {subject(found)}" if found else ""
    return f"Not equal{where}", "bad", found.reason if found else ""


def _section(heading: str, body: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{body}</section>\n"


def _difference(found: Difference, proof: Proof) -> str:
    rows = [
        ("step", str(found.step)),
        ("quantity", found.quantity + (f", {found.option}" if found.option else "")),
        ("parameter", found.parameter or "none concerned"),
        ("module", found.module),
        ("values", values_words(found) or _sides(found)),
        ("diagnosis", found.diagnosis),
        (
            "decided by",
            {"dtype": "tolerance of the dtype", "noise": "measured noise"}.get(
                found.decided_by, found.decided_by
            ),
        ),
        ("place", found.line),
        ("likely rule", f"{found.rule}, {found.rule_reason}" if found.rule else None),
        ("bisected", proof.bisected["says"] if proof.bisected else None),
        ("also there", _others(found)),
    ]
    return _section("Where they part", _table([(name, value) for name, value in rows if value]))


def _sides(found: Difference) -> str:
    if isinstance(found.original, (list, dict)) or found.original is None:
        return ""
    return f"{found.original} in the original, {found.ported} in the port"


def _others(found: Difference) -> str:
    others = [name for name in found.parameters if name != found.parameter]
    return (
        f"{', '.join(others[:6])}{f' and {len(others) - 6} more' if len(others) > 6 else ''}"
        if others
        else ""
    )


def _distances(proof: Proof) -> str:
    panels = "".join(distance_panel(proof.distances, quantity, label) for quantity, label in _PANELS.items())
    if not panels:
        return ""
    rows = "".join(
        f"<tr><th scope=row>{escape(quantity)}</th><td class=num>{row['worst_distance']:.2e}</td><td class=num>{row['bound']:.2e}</td>"
        f"<td>{'measured noise' if row['decided_by'] == 'noise' else 'dtype'}</td><td class=num>{row['step']}</td>"
        f"<td><code>{escape(row['name'] or '—')}</code></td><td class=num>{row['compared']:,}</td></tr>"
        for quantity, row in proof.worst.items()
    )
    numbers = {"worst distance", "bound", "step", "compared"}
    head = "".join(
        f"<th scope=col{' class=num' if h in numbers else ''}>{h}</th>"
        for h in ("", "worst distance", "bound", "bound from", "step", "tensor", "compared")
    )
    noise = ""
    if proof.noise:
        noise = (
            f"<p class=small>Bounds from measured noise are {proof.noise['factor']:g} times what the original itself moved when its "
            f"initial weights were off by {proof.noise['relative']:.1e}.</p>"
        )
    if proof.float64:
        worst = ", ".join(f"{q} {row['worst_distance']:.1e}" for q, row in proof.float64.items())
        noise += f"<p class=small>Both runs repeated in float64: worst distances {escape(worst)}.</p>"
    return _section(
        "Distance of each step from the original, and its bound",
        f'<div class="panels">{panels}</div><div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{noise}',
    )


def _matches(proof: Proof) -> str:
    if not proof.matches:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(m['original'])}</code></td><td><code>{escape(', '.join(m['ported']))}</code></td>"
        f"<td>{escape(m['layout'])}</td><td>{escape(m['by'])}</td><td>{escape(m['initial'])}</td></tr>"
        for m in proof.matches[:_MOST_MATCHES]
    )
    head = "".join(
        f"<th scope=col>{h}</th>" for h in ("original", "port", "layout", "matched by", "initial values")
    )
    rest = len(proof.matches) - _MOST_MATCHES
    more = f"<p class=small>{rest} more are in the JSON.</p>" if rest > 0 else ""
    left = "".join(
        f"<p class=small>{words}: {escape(', '.join(names))}.</p>"
        for words, names in (("Only in the original", proof.missing), ("Only in the port", proof.unmatched))
        if names
    )
    return _section(
        "Tensors of both",
        f"<p>{escape(matched_words(proof.matches))}.</p>{left}<details><summary>All {len(proof.matches)} matches</summary>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{more}</details>',
    )


def _front_end(proof: Proof) -> str:
    if proof.front_end is None:
        return _section(
            "The vendor's front end", "<p>Was not asked: this proof is about what the code computes.</p>"
        )
    verdict = {k: v for k, v in proof.front_end.items() if k != "details" and v not in ("", None)}
    words = f"<p>{escape(front_end_words(proof.front_end))}.</p>"
    return _section(
        "The vendor's front end", words + _table([(k.replace("_", " "), str(v)) for k, v in verdict.items()])
    )


def _conditions(proof: Proof) -> str:
    rows: list[tuple[str, Any]] = []
    for who in ("original", "ported"):
        script = proof.scripts.get(who, {})
        versions = ", ".join(f"{k} {v}" for k, v in proof.versions.get(who, {}).items())
        rows += [
            (f"{who}: command", proof.commands.get(who, "")),
            (
                f"{who}: script",
                f"sha256 {script['sha256']}" if "sha256" in script else script.get("module", ""),
            ),
            (f"{who}: versions", versions),
            (f"{who}: optimizer", ", ".join(proof.optimizers.get(who, []))),
        ]
    rows += [
        ("steps", f"{proof.steps} of {proof.asked_steps} asked for"),
        ("seed", str(proof.seed)),
        ("dropout", dropout_words(proof) if proof.dropout == "off" else "drawn alike in both"),
        ("target asked for", proof.place.target or "none"),
        ("ran on", ", ".join(proof.place.ran_on.get("devices", []))),
    ]
    notes = "".join(f"<pre>{escape(note)}</pre>" for note in proof.notes)
    return _section(
        "What was run", _table([row for row in rows if row[1]]) + (f"<h3>Notes</h3>{notes}" if notes else "")
    )


def _table(rows: Sequence[tuple[str, Any]]) -> str:
    body = "".join(f"<tr><th scope=row>{escape(k)}</th><td>{escape(str(v))}</td></tr>" for k, v in rows)
    return f"<table class=facts><tbody>{body}</tbody></table>"
