"""One contestant of benchmarks/streaming.py in a process of its own; options come as JSON, figures go out as the last line.

Steps are timed by device events, one after each step, so that work that runs on into the next step counts where it delays
one. `settled_seconds` is the stretch from a quiet device to a quiet device and host, the last updates of weights included.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
import traceback
from typing import Any, Protocol

import torch
from streaming_gpt import Shape, make_batch
from streaming_marks import Marks
from torch import Tensor

CONTESTANTS = {
    "resident": ("streaming_torch", "Resident"),
    "fsdp2": ("streaming_torch", "Sharded"),
    "zero3": ("streaming_deepspeed", "Zero3"),
    "engine": ("streaming_ours", "Engine"),
}


class Contestant(Protocol):
    def step(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Issues one update, gives its loss on the device."""

    def settle(self) -> None:
        """Returns when every update issued is in the weights."""

    def close(self) -> dict[str, Any]:
        """Ends it; what it has to tell besides goes into the figures."""


def quieten(contestant: Contestant, device: str) -> None:
    contestant.settle()
    if device == "cuda":
        torch.cuda.synchronize()


def measure(
    contestant: Contestant, shape: Shape, num_tokens: int, first: int, options: dict[str, Any]
) -> dict[str, Any]:
    device, num_warm, num_timed = options["device"], options["warm"], options["steps"][str(num_tokens)]
    batches = [
        [part.to(device) for part in make_batch(shape, num_tokens, first + number)]
        for number in range(num_warm + num_timed)
    ]
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    losses = [contestant.step(*batch) for batch in batches[:num_warm]]
    quieten(contestant, device)
    marks, begun = Marks(device), time.perf_counter()
    marks.add()
    for batch in batches[num_warm:]:
        losses.append(contestant.step(*batch))
        marks.add()
    quieten(contestant, device)
    settled = time.perf_counter() - begun
    figures: dict[str, Any] = {
        "seconds": marks.seconds(),
        "settled_seconds": settled,
        "losses": [float(loss) for loss in losses],
        "host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        figures["device_peak_bytes"] = torch.cuda.max_memory_allocated()
        figures["device_used_bytes"] = total - free  # with what allocators keep, and the CUDA context
    return figures


def run(name: str, options: dict[str, Any]) -> dict[str, Any]:
    shape, device = Shape(**options["shape"]), options["device"]
    if name == "ours":  # has a loop of its own
        from streaming_run import run_whole

        return run_whole(shape, device, options)
    module, kind = CONTESTANTS[name]
    begun = time.perf_counter()
    contestant: Contestant = getattr(importlib.import_module(module), kind)(shape, device, options)
    if device == "cuda":
        torch.cuda.synchronize()
    setup = time.perf_counter() - begun
    rows, first = {}, 0
    for num_tokens in options["tokens"]:
        rows[str(num_tokens)] = measure(contestant, shape, num_tokens, first, options)
        first += options["warm"] + options["steps"][str(num_tokens)]
        told = rows[str(num_tokens)]
        print(f"{name}, {num_tokens} tokens: {told['seconds']} s", file=sys.stderr, flush=True)
    figures: dict[str, Any] = {"setup_seconds": setup, "tokens": rows}
    if options.get("trace"):
        from streaming_spans import record

        figures["trace"] = record(contestant, shape, options["tokens"][-1], first, options)
    return figures | {"told": contestant.close()}


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    name, options = sys.argv[1], json.loads(sys.argv[2])
    try:
        figures = run(name, options)
    except SystemExit as ending:  # a run of ours that is not good says why, and ends
        figures = {"failed": f"the run ended with status {ending.code}; its own message is in the log"}
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [type(error).__name__]
        figures = {"failed": f"{type(error).__name__}: {lines[0]}"[:400]}
    print(json.dumps(figures), file=answers, flush=True)
    os._exit(0 if "failed" not in figures else 1)  # libraries' own endings can hang, and the figures are out


if __name__ == "__main__":
    main()
