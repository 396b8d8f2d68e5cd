"""What runs when in a few steps of a contestant: spans of the device's kernels and copies and of the host's threads.

On a GPU torch.profiler has the device's side; a kernel of a known name marks where a step ends. The host's side is what the contestant
notes by the wall clock, which the profiler's times follow too.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from streaming_gpt import Shape, make_batch

STEPS = 3  # the first is left out of the picture: the profiler starts in it
MARK_KERNEL = "spin_kernel"  # of torch.cuda._sleep
MOST_GAP_SECONDS = 20e-6  # between two kernels that are drawn as one
Span = tuple[float, float, str]


def record(
    contestant: Any, shape: Shape, num_tokens: int, first: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Lanes of spans in seconds from the end of the first step, which is where the window begins."""
    device = options["device"]
    batches = [[part.to(device) for part in make_batch(shape, num_tokens, first + n)] for n in range(STEPS)]
    marks: list[float] = []
    read_host = contestant.begin_spans()
    if device == "cuda":
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            for batch in batches:
                contestant.step(*batch)
                torch.cuda._sleep(1000)  # type: ignore[no-untyped-call]
            contestant.settle()
            torch.cuda.synchronize()
            quiet = time.time()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profile.export_chrome_trace(str(path))
            lanes, marks = read_device(json.loads(path.read_text()))
        offset = quiet - max(end for spans in lanes.values() for _, end, _ in spans)
    else:
        lanes, offset = defaultdict(list), 0.0
        for batch in batches:
            contestant.step(*batch)
            marks.append(time.time())
        contestant.settle()
    for lane, span in read_host():
        lanes[lane].append(span)
    if device != "cuda":  # the training's thread computes where it does not wait
        lanes["compute"] = between(lanes["waits"], marks[0], marks[-1])
    begin, end = marks[0], marks[-1]
    return {
        "lanes": {lane: clip(spans, begin, end) for lane, spans in sorted(lanes.items())},
        "steps": [mark - begin for mark in marks],
        "tokens": num_tokens,
        # How long after the device's last work the host saw it quiet: far from 0, the two clocks differ.
        "clock_offset_seconds": offset,
    }


def read_device(document: dict[str, Any]) -> tuple[dict[str, list[Span]], list[float]]:
    """Lanes and ends of steps from a trace of torch.profiler; the stream with the most kernels is the computation's."""
    base = document.get("baseTimeNanoseconds", 0) / 1e9
    lanes: dict[str, list[Span]] = defaultdict(list)
    kernels: dict[int, list[Span]] = defaultdict(list)
    marks: list[float] = []
    for event in document["traceEvents"]:
        kind, name = event.get("cat"), event.get("name", "")
        if kind not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        begin = base + event["ts"] / 1e6
        span = (begin, begin + event["dur"] / 1e6)
        if MARK_KERNEL in name:
            marks.append(span[1])
        elif "HtoD" in name or "DtoH" in name:
            lanes["up" if "HtoD" in name else "down"].append((*span, str(event["args"].get("bytes", ""))))
        else:
            kernels[event["args"].get("stream", 0)].append((*span, ""))
    if len(marks) != STEPS:
        raise RuntimeError(f"the profiler saw {len(marks)} of the {STEPS} marks between steps")
    streams = sorted(kernels, key=lambda stream: -sum(end - begin for begin, end, _ in kernels[stream]))
    for number, stream in enumerate(streams):
        lanes["device update" if number else "compute"] += kernels[stream]
    return lanes, sorted(marks)


def between(spans: list[Span], begin: float, end: float) -> list[Span]:
    """What the spans leave free; they are those of one thread and do not overlap."""
    edges = [begin, *(edge for span in sorted(spans) if begin <= span[0] < end for edge in span[:2]), end]
    return [(a, b, "") for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]


def clip(spans: list[Span], begin: float, end: float) -> list[list[Any]]:
    """Spans inside the window, in order; unnamed ones that almost touch become one."""
    result: list[list[Any]] = []
    for start, stop, name in sorted(spans):
        start, stop = max(start, begin) - begin, min(stop, end) - begin
        if stop <= start:
            continue
        if result and not name and not result[-1][2] and start - result[-1][1] < MOST_GAP_SECONDS:
            result[-1][1] = max(result[-1][1], stop)
        else:
            result.append([start, stop, name])
    return [[round(start, 6), round(stop, 6), name] for start, stop, name in result]
