"""Ours as a user gets it, a contestant of benchmarks/streaming.py: `python run.py GPU --mode train` with runconfig.execution.

The loop is the run's own, so steps are timed from inside the model: from one call of it to the next, which is the same period.
"""

from __future__ import annotations

import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from streaming_gpt import ADAMW, GPT, Shape, fill_weights, make_batch
from streaming_marks import Marks
from torch import Tensor

from portwright.runtime.run import run


class MarkedGPT(GPT):
    """Notes when it is called, and the peak of memory between phases of the run."""

    watch: Watch | None = None

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        if self.watch is not None and ids.device.type != "meta" and torch.is_grad_enabled():
            self.watch.called(ids)
        return super().forward(ids, labels)


class Watch:
    """Divides the run into phases: `warm` and timed steps for each number of tokens, and one step more at the end."""

    def __init__(self, device: str, options: dict[str, Any]) -> None:
        self._device, self._marks, self._warm = device, Marks(device), options["warm"]
        self._lengths = [options["warm"] + options["steps"][str(tokens)] for tokens in options["tokens"]]
        self._starts = [sum(self._lengths[:number]) for number in range(len(self._lengths) + 1)]
        self.num_steps = self._starts[-1] + 1
        self._num_calls = 0
        self._peaks: list[dict[str, int]] = []
        self.first_call: float | None = None

    def called(self, ids: Tensor) -> None:
        if type(ids) is not Tensor:
            return  # a tensor without values: the model is only being planned
        if self.first_call is None:
            self.first_call = time.perf_counter()
        if self._num_calls in self._starts:
            self._turn()
        self._marks.add()
        self._num_calls += 1

    def _turn(self) -> None:
        """A phase is over, and the next begins; its memory was all asked for by now, whatever the device has yet to do."""
        if self._num_calls:
            self._peaks.append({"host_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024})
        if self._device != "cuda":
            return
        if self._num_calls:
            free, total = torch.cuda.mem_get_info()
            self._peaks[-1] |= {
                "device_peak_bytes": torch.cuda.max_memory_allocated(),
                "device_used_bytes": total - free,
            }
        torch.cuda.reset_peak_memory_stats()

    def figures(self, tokens: list[int], losses: list[float]) -> dict[str, Any]:
        if self._device == "cuda":
            torch.cuda.synchronize()
        seconds = self._marks.seconds()
        rows = {}
        for number, count in enumerate(tokens):
            begin, end = self._starts[number], self._starts[number + 1]
            rows[str(count)] = {
                "seconds": seconds[begin + self._warm : end],
                "losses": losses[begin:end],
                **self._peaks[number],
            }
        return rows


def run_whole(shape: Shape, device: str, options: dict[str, Any]) -> dict[str, Any]:
    """Figures of one run of the product; `options["execution"]` and `options["streaming"]` go into runconfig, `options["optimizer"]` beside AdamW's own."""
    watch = Watch(device, options)
    tokens = options["tokens"]
    batches: list[tuple[Tensor, Tensor]] = []
    for count in tokens:
        for _ in range(options["warm"] + options["steps"][str(count)]):
            batches.append(make_batch(shape, count, len(batches)))
    batches.append(make_batch(shape, tokens[-1], len(batches)))

    def build() -> GPT:
        with torch.device("meta"):
            net = MarkedGPT(shape)
        net = net.to_empty(device="cpu")
        fill_weights(net.named_parameters(), shape, device)
        net.watch = watch
        return net

    begun = time.perf_counter()
    built = [
        build()
    ]  # before the run, which watches what a constructor makes on the device: here, all the draws

    def model_fn(params: dict[str, Any]) -> GPT:
        return built.pop() if built else build()

    optimizer = {
        "optimizer_type": "AdamW",
        "learning_rate": ADAMW["lr"],
        "betas": list(ADAMW["betas"]),
        "eps": ADAMW["eps"],
        "weight_decay": ADAMW["weight_decay"],
        **options.get("optimizer", {}),
    }
    runconfig = {
        "max_steps": watch.num_steps,
        "log_steps": 0,
        "checkpoint_steps": 0,
        "precision": "bf16" if device == "cuda" else "fp32",
        "execution": options.get("execution", "streaming"),
        "streaming": options.get("streaming", {}),
    }
    caps = watch_caps() if device == "cpu" else []
    with tempfile.TemporaryDirectory() as folder:
        params = Path(folder) / "params.yaml"
        params.write_text(
            yaml.safe_dump({"model": {}, "train_input": {}, "optimizer": optimizer, "runconfig": runconfig})
        )
        target = "GPU" if device == "cuda" else "CPU"
        argv = [target, "--mode", "train", "--params", str(params), "--model_dir", str(Path(folder) / "run")]
        outcome = run(model_fn, lambda params: batches, argv=argv)
        log = (Path(folder) / "run" / "train" / "metrics.jsonl").read_text().splitlines()
    losses = [loss for entry in map(json.loads, log) for loss in entry.get("losses", [])]
    assert watch.first_call is not None
    return {
        "setup_seconds": watch.first_call - begun,
        "tokens": watch.figures(tokens, losses),
        "told": {"outcome": outcome} | ({"device_peak_bytes": caps[0].peak} if caps else {}),
    }


def watch_caps() -> list[Any]:
    """The caps that sessions make from now on: with device_memory set, one counts what a CPU would hold as the device."""
    from portwright.runtime.streaming import session

    made: list[Any] = []
    kind = vars(session)["DeviceCap"]

    def make(*args: Any) -> Any:
        made.append(kind(*args))
        return made[-1]

    vars(session)["DeviceCap"] = make
    return made
