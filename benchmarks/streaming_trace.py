"""Draws what `benchmarks/streaming.py --part trace --json FILE` recorded: a lane for each resource, and what bounds the step.

python benchmarks/streaming_trace.py FILE PICTURE.svg [--tokens 16384]
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

Interval = tuple[float, float]
LANES = {  # of a trace, as they are drawn and told
    "compute": ("GPU computes", "the computation"),
    "up": ("copies up", "the bus"),
    "down": ("copies down", "the bus"),
    "update": ("CPU updates", "the CPU's optimizer"),
    "device update": ("GPU updates", "the optimizer's part on the GPU"),
    "waits": ("host waits", "the host"),
}
COLOURS = {
    "compute": "#4c8c4a",
    "up": "#3b7dd8",
    "down": "#8a63c9",
    "update": "#d9822b",
    "device update": "#b8a13a",
    "waits": "#999999",
}
BUSY_ENOUGH = 0.95  # a lane this busy is what bounds a step
WIDTH, LEFT, RIGHT, LANE_HEIGHT, TOP = 1100, 120, 60, 34, 46


@dataclass(frozen=True)
class Summary:
    """`idle_cover`: the share of the time in which nothing is computed that a lane is busy."""

    step_seconds: float
    busy: dict[str, float]
    idle_cover: dict[str, float]
    bound_by: str
    gb_per_second: dict[str, float]


def union(spans: list[list[Any]]) -> list[Interval]:
    merged: list[Interval] = []
    for begin, end, *_ in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def total(intervals: list[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def gaps(intervals: list[Interval], end: float) -> list[Interval]:
    """What `intervals` leave of the time from 0 to `end`."""
    edges = [0.0, *(edge for interval in intervals for edge in interval), end]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]


def overlap(first: list[Interval], second: list[Interval]) -> list[Interval]:
    both, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        begin, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if end > begin:
            both.append((begin, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return both


def summarise(trace: dict[str, Any]) -> Summary:
    """Busy shares, and the bound: the computation where it hardly pauses, else what is busy while it does."""
    steps, lanes = trace["steps"], {name: union(spans) for name, spans in trace["lanes"].items()}
    window = steps[-1]
    busy = {name: total(spans) / window for name, spans in lanes.items()}
    idle = gaps(lanes.get("compute", []), window)
    pause = total(idle)
    others = [name for name in lanes if name not in ("compute", "waits")]
    cover = {name: total(overlap(idle, lanes[name])) / pause if pause else 0.0 for name in others}
    if busy.get("compute", 0.0) >= BUSY_ENOUGH or not cover:
        bound_by = LANES["compute"][1]
    else:
        bound_by = LANES[max(cover, key=lambda name: cover[name])][1]
    rates = {}
    for name in ("up", "down"):
        sizes = [int(span[2]) for span in trace["lanes"].get(name, []) if span[2].isdigit()]
        if sizes and total(lanes[name]):
            rates[name] = sum(sizes) / total(lanes[name]) / 1e9
    return Summary(window / (len(steps) - 1), busy, cover, bound_by, rates)


def describe(trace: dict[str, Any]) -> str:
    found = summarise(trace)
    busy = ", ".join(f"{LANES[name][0]} {share:.0%}" for name, share in found.busy.items())
    pause = 1 - found.busy.get("compute", 0.0)
    during = ", ".join(f"{LANES[name][0]} {share:.0%}" for name, share in found.idle_cover.items())
    rates = "".join(f"; {LANES[name][0]} at {rate:.0f} GB/s" for name, rate in found.gb_per_second.items())
    return (
        f"{found.step_seconds:.3f} s a step, bound by {found.bound_by}; of the time: {busy}; "
        f"of the {pause:.0%} in which nothing is computed: {during}{rates}"
    )


def draw(trace: dict[str, Any], title: str) -> str:
    """An SVG that reads on light and on dark ground."""
    found, steps = summarise(trace), trace["steps"]
    names = [name for name in LANES if trace["lanes"].get(name)]
    scale = (WIDTH - LEFT - RIGHT) / steps[-1]
    bottom = TOP + LANE_HEIGHT * len(names)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 50}" font-family="sans-serif" font-size="12">',
        "<style>text{fill:#333}.rule{stroke:#999}@media(prefers-color-scheme:dark){text{fill:#ddd}.rule{stroke:#888}}</style>",
        f'<text x="10" y="20" font-size="15">{escape(title)}</text>',
        f'<text x="10" y="{bottom + 40}">{found.step_seconds:.3f} s a step, bound by {escape(found.bound_by)}</text>',
    ]
    for number, name in enumerate(names):
        y = TOP + LANE_HEIGHT * number
        parts.append(f'<text x="{LEFT - 8}" y="{y + 20}" text-anchor="end">{LANES[name][0]}</text>')
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{y + 20}">{found.busy[name]:.0%}</text>')
        for begin, end, label in trace["lanes"][name]:
            x, width = LEFT + begin * scale, max(0.3, (end - begin) * scale)
            told = f"<title>{escape(str(label))}</title>" if label else ""
            box = f'x="{x:.2f}" y="{y + 4}" width="{width:.2f}" height="{LANE_HEIGHT - 8}" fill="{COLOURS[name]}"'
            parts.append(f"<rect {box}>{told}</rect>" if told else f"<rect {box}/>")
    for step in steps:
        x = LEFT + step * scale
        parts.append(
            f'<line class="rule" stroke-dasharray="4 3" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom + 4}"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{step:.2f} s</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path, help="JSON of --part trace")
    parser.add_argument("picture", type=Path, help="the SVG to write")
    parser.add_argument(
        "--tokens", type=int, help="which of the recorded numbers of tokens (default: the first)"
    )
    arguments = parser.parse_args()
    figures = json.loads(arguments.file.read_text())["figures"]
    traces = {key: run["trace"] for key, run in figures.items() if isinstance(run, dict) and "trace" in run}
    if not traces:
        sys.exit(
            f"{arguments.file} has no trace; 'streaming.py --part trace --json {arguments.file}' records one"
        )
    chosen = str(arguments.tokens) if arguments.tokens is not None else next(iter(traces))
    if chosen not in traces:
        sys.exit(f"{arguments.file} has no trace of {chosen} tokens, only of {', '.join(traces)}")
    count = len(traces[chosen]["steps"]) - 1
    title = f"Weight streaming, {int(chosen):,} tokens a step: {count} steps"
    arguments.picture.write_text(draw(traces[chosen], title))
    print(describe(traces[chosen]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
