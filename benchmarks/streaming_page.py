"""Writes the section on weight streaming in docs/benchmarks.md from what benchmarks/streaming.py left in benchmarks/results.

python benchmarks/streaming_page.py [--results FOLDER] [--page FILE]; a part that has not been run is said to be missing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streaming import QUOTED, TARGETS, seconds_of
from streaming_parts import GIB, peak_gib
from streaming_trace import describe

HERE = Path(__file__).parent
HEADING = "## Weight streaming (benchmarks/streaming.py)"
NAMES = {
    "resident": "all resident: a plain loop, fused AdamW on the GPU",
    "ours": "**ours**, a run with `runconfig.execution: streaming`",
    "engine": "ours, the engine in a plain loop",
    "fsdp2": "FSDP2, CPUOffloadPolicy, fused CPU AdamW",
    "zero3": "DeepSpeed ZeRO-3, weights and optimizer offloaded",
}


def read(folder: Path, part: str) -> dict[str, Any] | None:
    path = folder / ("streaming.json" if part == "table" else f"streaming_{part}.json")
    document: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else None
    return document


def measured(folder: Path) -> str:
    """When the table's figures came, and with which commit."""
    words = ["git", "log", "-1", "--format=%as, commit %h", "--abbrev=7", "--", "streaming.json"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def write_table(document: dict[str, Any]) -> Iterator[str]:
    figures, machine = document["figures"], document["machine"]
    shape = figures["shape"]
    yield (
        f"One {machine['device']}, {measured(HERE / 'results')}, {machine['cores']} cores, torch {machine['torch']}. A GPT of {shape['layers']} blocks of width {shape['width']}, "
        f"{shape['parameters'] / 1e9:.2f} billion weights, sequence {shape['length']}, bf16 compute, fp32 AdamW, every block recomputed in backward. The "
        "same module, weights and tokens for all, each in a process of its own, one after the other in one run; medians of steps."
    )
    yield ""
    yield "| | tokens a step | tokens a second | of resident | target | peak GiB on the GPU | loss, first and last |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    tokens = sorted(
        {int(key) for runs in figures["runs"].values() for run in runs for key in run.get("tokens", {})}
    )
    for count in tokens:
        for name, runs in figures["runs"].items():
            yield f"| {NAMES[name]} | {count:,} | {_cells(figures, name, runs, count)} |"
    yield ""
    differing = [
        f"{name} {found[0]:.1e} at the first step and at most {found[1]:.1e}"
        for name, found in figures["loss_differences"].items()
        if found is not None and name != "resident"
    ]
    yield f"Losses beside resident's, relative: {'; '.join(differing)}."


def _cells(figures: dict[str, Any], name: str, runs: list[dict[str, Any]], count: int) -> str:
    done = [run for run in runs if "failed" not in run]
    if not done:
        quoted = QUOTED.get(name, {}).get(count)
        why = runs[0]["failed"] if runs else "not asked for"
        return f"not run: {why} | {'' if quoted is None else f'({quoted} in an earlier run)'} | | | "
    row = done[0]["tokens"][str(count)]
    speed = count / statistics.median(seconds_of(runs, count))
    ratio = figures["of_resident"].get(name, {}).get(str(count))
    share = f"{ratio['median']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]" if ratio else ""
    target = f"{TARGETS[count]}" if name == "ours" and count in TARGETS else ""
    losses = f"{row['losses'][0]:.4f}, {row['losses'][-1]:.4f}"
    return f"{speed:,.0f} | {share} | {target} | {peak_gib(row, done[0]):.1f} | {losses}"


def write_trace(document: dict[str, Any]) -> Iterator[str]:
    yield "What bounds a step, from a trace of two (docs/images, drawn by benchmarks/streaming_trace.py):"
    yield ""
    for count, run in document["figures"].items():
        if isinstance(run, dict) and "trace" in run:
            yield f"- {int(count):,} tokens: {describe(run['trace'])}."
            picture = f"images/streaming_{count}.png"
            if (HERE.parent / "docs" / picture).is_file():
                yield f"  ![Lanes of two steps of {int(count):,} tokens]({picture})"


def write_depth(document: dict[str, Any]) -> Iterator[str]:
    figures = document["figures"]
    yield f"Peak GiB on the GPU as layers are added, width {figures['shape']['width']}, {figures['tokens']:,} tokens:"
    yield ""
    yield "| layers | activations on the GPU | in host memory |"
    yield "| --- | --- | --- |"
    peaks = {(row["layers"], row["offload_activations"]): row for row in figures["rows"]}
    for layers in sorted({layers for layers, _ in peaks}):
        yield f"| {layers} | {_peak(peaks[layers, False])} | {_peak(peaks[layers, True])} |"
    yield ""
    yield f"A block's input, which is kept for backward, is {figures['gib_kept_a_layer']:.3f} GiB."


def _peak(row: dict[str, Any]) -> str:
    return f"{row['peak_gib']:.2f}" if row["peak_gib"] is not None else f"not run: {row['run']['failed']}"


def write_capped(document: dict[str, Any]) -> Iterator[str]:
    figures = document["figures"]
    yield from _one_run(figures["run"], figures["shape"], "The table's model with `device_memory: 24GiB`")


def write_oversize(document: dict[str, Any]) -> Iterator[str]:
    figures = document["figures"]
    state = figures["resident_state_bytes"] / GIB
    about = f"{figures['parameters'] / 1e9:.2f} billion weights, {state:.0f} GiB of training state, with bf16 moments"
    yield from _one_run(figures["ours"], figures["shape"], about)
    if "resident" in figures:
        yield f"All resident, the same model: {figures['resident'].get('failed', 'it fitted')}."


def _one_run(run: dict[str, Any], shape: dict[str, Any], about: str) -> Iterator[str]:
    if "failed" in run:
        yield f"{about}: {run['failed']}."
        return
    for count, row in run["tokens"].items():
        chosen = run["told"]["outcome"]["execution"]
        speed = int(count) / statistics.median(row["seconds"])
        losses = ", ".join(f"{loss:.3f}" for loss in row["losses"])
        yield (
            f"{about}, {int(count):,} tokens a step: {chosen['mode']} by `execution: auto`, {speed:,.0f} tokens a second, peak "
            f"{peak_gib(row, run):.1f} GiB on the GPU and {row['host_peak_bytes'] / GIB:.0f} GiB of host memory; losses {losses}."
        )


PARTS = {
    "table": write_table,
    "trace": write_trace,
    "depth": write_depth,
    "capped": write_capped,
    "oversize": write_oversize,
}


def write_section(folder: Path) -> str:
    blocks = [HEADING]
    for part, write in PARTS.items():
        document = read(folder, part)
        lines = list(write(document)) if document is not None else [f"Not measured yet: `--part {part}`."]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def replace_section(page: str, section: str) -> str:
    """The page with this section in place of the one of that heading, or at its end."""
    begin = page.find(HEADING)
    if begin < 0:
        return page.rstrip("\n") + "\n\n" + section
    end = page.find("\n## ", begin)
    return page[:begin] + section + ("" if end < 0 else page[end:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of the JSON files")
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs" / "benchmarks.md")
    arguments = parser.parse_args()
    arguments.page.write_text(replace_section(arguments.page.read_text(), write_section(arguments.results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
