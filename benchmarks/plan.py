"""What `portwright plan` costs, from a 111M GPT to GPT-3 175B at sequence 2048, and what torch.export takes for the same step.

Each plan is the command itself in a process of its own, imports included; memory is that process's peak. Layers of one size
are planned at three depths, which shows whether cost grows faster than depth. The peer is torch.export with its joint graph,
which is torch's own way to a whole training step; it runs beside our capture in one process, imports left out, on a GPT whose
head does not share the embedding's weights, because the joint export refuses a model where it does.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import Claim, Ratio, finish, interleave, paired_ratio, parse_arguments

HERE = Path(__file__).parent
TARGET = "csx"
INPUTS = {"ids": (1, 2048), "labels": (1, 2048)}
DEPTHS = {12: "gpt_111m", 96: "gpt_111m_96_layers", 384: "gpt_111m_384_layers"}
LARGEST = "gpt3_175b"
PEER_LAYERS = 12


def run_plan(model: str) -> dict[str, float]:
    """Seconds, processor seconds and peak bytes of one `portwright plan`."""
    command = [shutil.which("portwright", path=str(Path(sys.executable).parent)) or "portwright", "plan"]
    command += [f"{HERE / 'gpt.py'}:{model}", "--target", TARGET, "--json"]
    for name, shape in INPUTS.items():
        command += ["--input", f"{name}:int64[{','.join(map(str, shape))}]"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):  # 1: planned, and something does not fit
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{said}")
    return {
        "seconds": time.perf_counter() - start,
        "processor_seconds": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * 1024,
    }


def median_of(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def make_contestants() -> dict[str, Callable[[], float]]:
    import torch
    from gpt import GPT
    from torch._subclasses.fake_tensor import FakeTensorMode

    from portwright.graph.capturing.capture import capture
    from portwright.graph.inputs import TensorSpec

    def make() -> GPT:
        return GPT(PEER_LAYERS, 768, 12, ties=False)

    def ours() -> None:
        graph = capture(make, {name: TensorSpec(shape, "int64") for name, shape in INPUTS.items()})
        assert not graph.stops

    def peer() -> None:
        from torch.export.experimental import _export_forward_backward

        with FakeTensorMode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            batch = tuple(torch.empty(shape, dtype=torch.int64) for shape in INPUTS.values())
            exported = torch.export.export(make().train(), batch, strict=False)
        _export_forward_backward(exported)

    def timed(run: Callable[[], None]) -> Callable[[], float]:
        def call() -> float:
            start = time.process_time()
            run()
            return time.process_time() - start

        return call

    return {"capture": timed(ours), "torch.export": timed(peer)}


def main() -> int:
    arguments = parse_arguments(__doc__)
    num_runs = 1 if arguments.quick else 3
    figures: dict[str, Any] = {
        "target": TARGET,
        "sequence": 2048,
        "runs": num_runs,
        "load_average": round(os.getloadavg()[0], 1),  # of other work on the machine, which seconds include
    }
    for model in (*DEPTHS.values(), LARGEST):
        figures[model] = median_of([run_plan(model) for _ in range(num_runs)])
        row = figures[model]
        print(
            f"{model:<20}{row['seconds']:>8.1f} s{row['processor_seconds']:>8.1f} s of processor"
            f"{row['peak_bytes'] / 2**20:>8.0f} MiB"
        )
    times = {depth: figures[model]["processor_seconds"] for depth, model in DEPTHS.items()}
    # What a further layer costs between 96 and 384, against between 12 and 96.
    figures["growth"] = (times[384] - times[96]) / 288 / max((times[96] - times[12]) / 84, 1e-3)
    seconds = interleave(make_contestants(), 1 if arguments.quick else 5)
    ratio = paired_ratio(seconds["capture"], seconds["torch.export"])
    figures["peer"] = {
        "layers": PEER_LAYERS,
        "median_processor_seconds": {name: statistics.median(times) for name, times in seconds.items()},
    }

    def single(value: float) -> Ratio:
        return Ratio(value, value, value, 1)

    large, small = figures[LARGEST], figures[DEPTHS[12]]
    claims = [
        Claim("seconds to plan GPT-3 175B", single(large["seconds"]), 60, at_least=False),
        Claim("GB to plan GPT-3 175B", single(large["peak_bytes"] / 1e9), 4, at_least=False),
        Claim("seconds to plan a 111M GPT", single(small["seconds"]), 10, at_least=False),
        Claim("cost of a further layer, deep to shallow", single(figures["growth"]), 1.25, at_least=False),
        Claim("capture to torch.export with its joint graph", ratio, 1.0, at_least=False),
    ]
    import torch

    return finish(arguments, claims, figures, torch=torch.__version__)


if __name__ == "__main__":
    raise SystemExit(main())
