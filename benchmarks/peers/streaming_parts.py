"""What benchmarks/streaming.py measures besides its table: depth, a state larger than the GPU, a cap, a trace, and what is expected."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from measure import Claim, Ratio
from streaming_gpt import Shape
from streaming_process import Course

GIB = 2**30
Figures = dict[str, Any]
# Keys of `optimizer` that change what a streamed step does, and which of the estimate's figures is about them.
IN_FORCE: dict[str, tuple[Figures, str]] = {
    "nothing": ({}, "share"),
    "clipping that never acts": ({"max_gradient_norm": 1e9}, "share"),
    "clipping that always acts": ({"max_gradient_norm": 1e-3}, "share_if_clipped"),
}


def peak_gib(row: Figures, run: Figures) -> float:
    peak = row.get("device_peak_bytes", run.get("told", {}).get("device_peak_bytes"))
    return float("nan") if peak is None else peak / GIB


def single(text: str, value: float, target: float, at_least: bool = True) -> Claim:
    return Claim(text, Ratio(value, value, value, 1), target, at_least)


def run_depth(
    course: Course, shape: Shape, steps: dict[int, int], names: list[str]
) -> tuple[list[Claim], Figures]:
    """The device's peak as layers are added; what is kept for backward is the only thing that may grow."""
    tokens = min(steps)
    rows: list[Figures] = []
    for offloads in (False, True):
        for layers in (8, 16, 32):
            deeper = Shape(layers, shape.width, shape.vocab, shape.length)
            options: Figures = {"offload_activations": offloads}
            if course.device == "cpu":
                options["device_memory"] = "1GiB"  # so that it is counted
            run = course.run("ours", deeper, {tokens: 1}, streaming=options)
            peak = None if "failed" in run else peak_gib(run["tokens"][str(tokens)], run)
            rows.append({"layers": layers, "offload_activations": offloads, "peak_gib": peak, "run": run})
            print(
                f"{layers} layers, activations {'on the host' if offloads else 'on the device'}: {peak:.4g} GiB"
                if peak is not None
                else f"{layers} layers: {run['failed']}",
                flush=True,
            )
    claims = []
    kept = tokens * shape.width * (2 if course.device == "cuda" else 4) / GIB  # a block's input
    for offloads in (False, True):
        peaks = {row["layers"]: row["peak_gib"] for row in rows if row["offload_activations"] is offloads}
        if any(peak is None or peak != peak for peak in peaks.values()):
            print(f"depth with offload_activations {offloads} is not judged: a run gave no peak")
            continue
        allowed = 0.0 if offloads else 24 * kept
        text = f"peak device memory of 32 layers to that of 8 {'' if offloads else 'and the inputs of 24 blocks'}"
        claims.append(single(text.strip(), peaks[32] / (peaks[8] + allowed), 1.05, at_least=False))
    return claims, {"rows": rows, "gib_kept_a_layer": kept, "tokens": tokens}


def run_oversize(
    course: Course, shape: Shape, steps: dict[int, int], names: list[str]
) -> tuple[list[Claim], Figures]:
    """More weights, gradients and moments than the GPU has memory; resident is tried as well, and must fail for memory."""
    tokens = min(steps)
    state = 16 * shape.num_parameters  # fp32: weight, gradient, two moments
    ours = course.run("ours", shape, {tokens: 4}, execution="auto", streaming={"state_dtype": "bf16"})
    figures: Figures = {"ours": ours, "resident_state_bytes": state, "parameters": shape.num_parameters}
    claims = []
    if course.device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        figures["device_bytes"] = total
        figures["resident"] = course.run("resident", shape, {tokens: 1})
        print(f"resident: {figures['resident'].get('failed', 'it fitted')}")
        claims.append(single("training state to the GPU's memory", state / total, 1.0))
    if "failed" in ours:
        print(f"ours: {ours['failed']}")
        return [single("steps of the oversized model", 0.0, 1.0)], figures
    row = ours["tokens"][str(tokens)]
    losses = row["losses"]
    claims += claim_chosen(ours, course.device)
    print(f"{shape.num_parameters / 1e9:.2f} billion weights, {state / GIB:.0f} GiB of training state: losses {losses}, "
          f"{tokens / statistics.median(row['seconds']):.0f} tok/s, peak {peak_gib(row, ours):.1f} GiB")  # fmt: skip
    claims.append(single("last loss to the first", losses[-1] / losses[0], 1.0, at_least=False))
    return claims, figures


def claim_chosen(run: Figures, device: str) -> list[Claim]:
    """What runconfig.execution: auto came to; a tiny model on a CPU fits, and has nothing to show."""
    chosen = run["told"]["outcome"]["execution"]
    print(f"execution: {chosen['mode']}, {chosen['why']}; expected {chosen['expected']}")
    return (
        [single("streaming was chosen by itself", float(chosen["mode"] == "streaming"), 1.0)]
        if device == "cuda"
        else []
    )


def run_capped(
    course: Course, shape: Shape, steps: dict[int, int], names: list[str]
) -> tuple[list[Claim], Figures]:
    """The table's model on 24 GiB of the GPU."""
    tokens = min(steps)
    cap = 24 * GIB
    run = course.run("ours", shape, {tokens: 4}, execution="auto", streaming={"device_memory": "24GiB"})
    if "failed" in run:
        print(f"ours: {run['failed']}")
        return [single("steps under the cap", 0.0, 1.0)], {"run": run}
    row = run["tokens"][str(tokens)]
    peak = peak_gib(row, run) * GIB
    print(
        f"capped at 24 GiB: {tokens / statistics.median(row['seconds']):.0f} tok/s, peak {peak / GIB:.1f} GiB, losses {row['losses']}"
    )
    used = row.get("device_used_bytes", 0)
    figures = {"run": run, "cap_bytes": cap, "resident_state_bytes": 16 * shape.num_parameters, "used": used}
    claims = [single("last loss to the first", row["losses"][-1] / row["losses"][0], 1.0, at_least=False)]
    claims += claim_chosen(run, course.device)
    if peak == peak:
        claims.append(single("peak device memory to the cap", peak / cap, 1.0, at_least=False))
    return claims, figures


def run_trace(
    course: Course, shape: Shape, steps: dict[int, int], names: list[str]
) -> tuple[list[Claim], Figures]:
    """Spans of two steps for each number of tokens."""
    from streaming_trace import describe

    figures: Figures = {}
    for tokens in steps:
        run = course.run("engine", shape, {tokens: 2}, trace=True)
        figures[str(tokens)] = run
        if "failed" in run:
            print(f"{tokens} tokens: {run['failed']}")
            continue
        print(f"{tokens} tokens a step: {describe(run['trace'])}", flush=True)
    return [], figures


def run_expected(
    course: Course, shape: Shape, steps: dict[int, int], names: list[str]
) -> tuple[list[Claim], Figures]:
    """The share of resident speed that a run expects, beside the one that it has; resident clips nothing, which costs it about 1%."""
    tokens = min(steps)
    runs = {"resident": course.run("resident", shape, {tokens: steps[tokens]})}
    for what, (optimizer, _) in IN_FORCE.items():
        runs[what] = course.run("ours", shape, {tokens: steps[tokens]}, optimizer=optimizer)
    figures: Figures = {"runs": runs, "tokens": tokens}
    if "failed" in runs["resident"]:
        return [single("resident's run that ended well", 0.0, 1.0)], figures
    resident = statistics.median(runs["resident"]["tokens"][str(tokens)]["seconds"])
    claims = []
    for what, (_, figure) in IN_FORCE.items():
        if "failed" in runs[what]:
            claims.append(single(f"runs with {what} in force that ended well", 0.0, 1.0))
            continue
        measured = resident / statistics.median(runs[what]["tokens"][str(tokens)]["seconds"])
        estimate = runs[what]["told"]["outcome"]["execution"]["expected"]
        if estimate is None:  # of a tiny model
            print(f"{what} in force: nothing expected, {measured:.2f} of resident speed measured", flush=True)
            continue
        expected = estimate[figure]
        print(
            f"{what} in force: {expected:.2f} of resident speed expected, {measured:.2f} measured", flush=True
        )
        if course.device == "cuda":
            text = f"measured speed to the expected one, {what} in force"
            claims += [
                single(text, measured / expected, 0.85),
                single(text, measured / expected, 1.15, at_least=False),
            ]
    return claims, figures
