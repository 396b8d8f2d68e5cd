"""What a GPT-2 head and its loss cost, with all the logits at once and a chunk at a time, in one run.

Hidden states of width 768, a vocabulary of 50257, forward and backward, in float32 and bfloat16. The plain loss is
F.cross_entropy(F.linear(...)), which is also the leanest way to write it: no widened copy of the logits. Memory is what a
step needs beyond the hidden states, the weight and the targets, gradients included; on a CPU it is the growth of a fresh
process's peak, on a GPU the allocator's. Claims are on memory; times are reported beside it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measure import Claim, Ratio, finish, interleave, paired_ratio
from torch import Tensor

from portwright.losses import chunked_cross_entropy

VOCAB = 50257
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Step = Callable[[Tensor, Tensor, Tensor], Tensor]


def plain_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight), targets)


LOSSES: dict[str, Step] = {"plain": plain_loss, "chunked": chunked_cross_entropy}


def make_inputs(
    num_tokens: int, width: int, vocab: int, dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(num_tokens, width, dtype=dtype, device=device, requires_grad=True)
    weight = (torch.randn(vocab, width, dtype=dtype, device=device) / width**0.5).requires_grad_()
    return hidden, weight, torch.randint(0, vocab, (num_tokens,), device=device)


def step(loss: Step, inputs: tuple[Tensor, Tensor, Tensor]) -> float:
    hidden, weight, _ = inputs
    value = loss(*inputs)
    value.backward()  # type: ignore[no-untyped-call]
    hidden.grad = weight.grad = None
    return value.item()


def peak_bytes_of_process() -> int:
    # getrusage would count what the parent held when it forked; the kernel's own mark begins with the program.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this kernel does not report VmHWM, so memory on the CPU cannot be measured here")


def extra_bytes_here(name: str, dtype: torch.dtype, num_tokens: int, width: int, device: str) -> int:
    """Peak beyond the inputs, of one step that is not the first the library takes."""
    step(LOSSES[name], make_inputs(8, 8, 64, dtype, device))
    inputs = make_inputs(num_tokens, width, VOCAB, dtype, device)
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(LOSSES[name], inputs)
        return torch.cuda.max_memory_allocated() - before
    before = peak_bytes_of_process()
    step(LOSSES[name], inputs)
    return peak_bytes_of_process() - before


def extra_bytes(name: str, type_name: str, num_tokens: int, width: int, device: str) -> int:
    if device == "cuda":
        torch.cuda.empty_cache()
        return extra_bytes_here(name, TYPES[type_name], num_tokens, width, device)
    # A process's peak never falls again, so each figure has its own.
    command = [sys.executable, __file__, "--child", name, type_name, str(num_tokens), str(width)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def timed(loss: Step, inputs: tuple[Tensor, Tensor, Tensor], device: str) -> float:
    start = time.perf_counter()
    step(loss, inputs)  # reads the loss, and so waits for forward
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(type_name: str, num_tokens: int, width: int, num_rounds: int, device: str) -> dict[str, Any]:
    extra = {name: extra_bytes(name, type_name, num_tokens, width, device) for name in LOSSES}
    inputs = make_inputs(num_tokens, width, VOCAB, TYPES[type_name], device)
    values = {name: step(loss, inputs) for name, loss in LOSSES.items()}
    seconds = interleave(
        {name: partial(timed, loss, inputs, device) for name, loss in LOSSES.items()}, num_rounds
    )
    ratio = paired_ratio(seconds["chunked"], seconds["plain"])
    return {
        "tokens": num_tokens,
        "width": width,
        "extra_bytes": extra,
        "loss": values,
        "median_seconds": {name: statistics.median(times) for name, times in seconds.items()},
        "time_ratio": {"median": ratio.median, "interval": [ratio.low, ratio.high], "pairs": ratio.num_pairs},
    }


def print_table(figures: dict[str, Any]) -> None:
    print(f"{'type':<10}{'loss':<10}{'extra MiB':>12}{'seconds':>12}{'value':>14}")
    for type_name, figure in figures.items():
        for name in LOSSES:
            megabytes, seconds = figure["extra_bytes"][name] / 2**20, figure["median_seconds"][name]
            print(f"{type_name:<10}{name:<10}{megabytes:>12.0f}{seconds:>12.4f}{figure['loss'][name]:>14.6f}")
        print(f"{type_name:<10}time, chunked to plain: {figure['time_ratio']['median']:.3f}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer tokens, a narrow head and few rounds, to see that it works",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--child", nargs=4, metavar=("LOSS", "TYPE", "TOKENS", "WIDTH"), help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda was asked for, and torch sees no GPU here")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    if arguments.child:
        name, type_name, child_tokens, child_width = arguments.child
        print(extra_bytes_here(name, TYPES[type_name], int(child_tokens), int(child_width), "cpu"))
        return 0
    num_tokens, width = (8192, 64) if arguments.quick else (16384, 768)
    num_rounds = {("cpu", True): 1, ("cpu", False): 5, ("cuda", True): 5, ("cuda", False): 30}[
        arguments.device, arguments.quick
    ]
    figures = {name: measure(name, num_tokens, width, num_rounds, arguments.device) for name in TYPES}
    print_table(figures)
    claims = []
    for type_name, figure in figures.items():
        share = figure["extra_bytes"]["chunked"] / figure["extra_bytes"]["plain"]
        text = f"extra memory of the chunked loss to the plain one ({type_name} {num_tokens} tokens width {width} {arguments.device})"
        claims.append(Claim(text, Ratio(share, share, share, 1), 0.25, at_least=False))
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu"
    return finish(arguments, claims, figures, torch=torch.__version__, device=device)


if __name__ == "__main__":
    sys.exit(main())
