"""The native CPU Adam beside torch's fused AdamW, by number of threads, in one run.

Every contestant updates as many parameters; bytes a parameter are what must go over the memory bus, so that GB/s compare. Torch's
kernel takes fp32 gradients and leaves fp32 weights. "torch, half in and out" adds what a bf16 device asks for: the gradient
widened before, the weight narrowed after.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import Claim, finish, interleave, paired_ratio

from portwright.runtime.streaming.native.adam import NativeAdam, load_native, usable_cores

HYPERPARAMETERS = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}
# gradient + read and written masters and moments + weight for the device
BYTES = {
    "torch": 4 + 24,
    "torch, half in and out": 2 + 4 + 4 + 24 + 4 + 2,
    "in place": 2 + 24 + 2,
    "ping-pong": 2 + 24 + 2,
    "bf16 moments": 2 + 8 + 8 + 2,
}


class Arrays:
    """What the contestants work on."""

    def __init__(self, num_parameters: int) -> None:
        self.grad_fp32 = torch.randn(1 << 16).repeat(-(-num_parameters // (1 << 16)))[:num_parameters]
        self.weight = self.grad_fp32.flip(0)
        self.exp_avg, self.exp_avg_sq, *self.others = (torch.zeros(num_parameters) for _ in range(5))
        self.grad = self.grad_fp32.bfloat16()
        self.half, *self.narrow = (torch.zeros_like(self.grad) for _ in range(3))


def make_contestants(native: NativeAdam, a: Arrays, num_threads: int) -> dict[str, Callable[[], Any]]:
    counter = torch.tensor(1.0)
    step = functools.partial(
        native.step,
        grad=a.grad,
        half_out=a.half,
        decoupled=True,
        step=3,
        num_threads=num_threads,
        **HYPERPARAMETERS,
    )
    state = {"weight": a.weight, "exp_avg": a.exp_avg, "exp_avg_sq": a.exp_avg_sq}
    in_place = {**state, "weight_out": a.weight, "exp_avg_out": a.exp_avg, "exp_avg_sq_out": a.exp_avg_sq}
    apart = {**state, **dict(zip(("weight_out", "exp_avg_out", "exp_avg_sq_out"), a.others, strict=True))}
    m, v = a.narrow
    narrow = {"exp_avg": m, "exp_avg_sq": v, "exp_avg_out": m, "exp_avg_sq_out": v}

    def torch_step() -> None:
        torch._fused_adamw_(
            [a.weight], [a.grad_fp32], [a.exp_avg], [a.exp_avg_sq], [], [counter],
            amsgrad=False, maximize=False, **HYPERPARAMETERS,
        )  # fmt: skip

    def torch_with_halves() -> None:
        a.grad_fp32.copy_(a.grad)
        torch_step()
        a.half.copy_(a.weight)

    return {
        "torch": torch_step,
        "torch, half in and out": torch_with_halves,
        "in place": lambda: step(**in_place),
        "ping-pong": lambda: step(**apart),
        "bf16 moments": lambda: step(**{**in_place, **narrow}),
    }


def timed(work: Callable[[], Any]) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return run


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--json", type=Path, default=None, metavar="FILE", help="write the figures to this file"
    )
    parser.add_argument(
        "--quick", action="store_true", help="few rounds and parameters, to see that it works"
    )
    parser.add_argument(
        "--params", type=int, default=None, metavar="N", help="how many parameters (default: 64 Mi)"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=None, help="numbers of threads to try")
    parser.add_argument("--bind", action="store_true", help="a core for each thread")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    native = load_native(lambda text: print(text, file=sys.stderr))
    if native is None:
        return 1
    cores = usable_cores()
    tried = arguments.threads or sorted(
        {n for n in (1, 2, 4, 8, 12, 16, 32, 64) if n < len(cores)} | {len(cores)}
    )
    num_parameters = arguments.params or (4 << 20 if arguments.quick else 64 << 20)
    num_rounds = 3 if arguments.quick else 5
    figures: dict[str, Any] = {"num_parameters": num_parameters, "bind": arguments.bind, "by_threads": {}}
    if arguments.bind:
        native.bind_threads(cores)
    arrays = Arrays(num_parameters)
    seconds: dict[str, list[float]] = {}
    for num_threads in tried:
        torch.set_num_threads(num_threads)
        contestants = make_contestants(native, arrays, num_threads)
        seconds = interleave({name: timed(work) for name, work in contestants.items()}, num_rounds)
        rows: dict[str, Any] = {}
        print(f"{num_threads} threads:")
        for name, times in seconds.items():
            rate = num_parameters / statistics.median(times)
            ratio = paired_ratio(seconds["torch"], times)
            bandwidth = rate * BYTES[name]
            rows[name] = {
                "Gparam/s": rate / 1e9,
                "GB/s": bandwidth / 1e9,
                "bytes": BYTES[name],
                "of torch": ratio.median,
            }
            print(
                f"  {name:26} {rate / 1e9:6.3f} Gparam/s  {BYTES[name]:3} B  {bandwidth / 1e9:6.1f} GB/s"
                f"  {ratio.median:5.2f} of torch"
            )
        figures["by_threads"][str(num_threads)] = rows
    claims = [
        Claim(
            "in place, half in and out, of torch's fp32 kernel's speed",
            paired_ratio(seconds["torch"], seconds["in place"]),
            0.95,
        ),
        Claim(
            "in place, of torch with the same halves in and out",
            paired_ratio(seconds["torch, half in and out"], seconds["in place"]),
            1.25,
        ),
    ]
    return finish(arguments, [] if arguments.quick else claims, figures, torch=torch.__version__)


if __name__ == "__main__":
    sys.exit(main())
