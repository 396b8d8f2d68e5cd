"""What an encoder layer costs in training: ours, a hand-fused SDPA block, torch.nn's and the model zoo's, in one run.

Forward and backward of one layer, batch first, relu, norms last, the same weights everywhere; without dropout and with
0.1 of it; without a mask, with padding (half of every other row) and causal; eager and
under torch.compile(fullgraph=True), which fails at a graph break. The SDPA block gets its mask in the form its kernel
wants, made beforehand; ours gets what users pass. Float32 on a CPU with one thread, in seconds of the processor; bfloat16
on a GPU. Before anything is timed the contestants must agree, and rows that are padded wholly must give finite results and
gradients. Memory is the peak of tensors in a step.

The model zoo's layer takes part where `--modelzoo` names a checkout of its release 1.6 (it materialises its masks, and has
no dropout between the two products).
"""

from __future__ import annotations

import argparse
import copy
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measure import Claim, Ratio, finish, interleave, paired_ratio
from torch import Tensor, nn

from portwright.layers import TransformerEncoderLayer

MASKS = ("none", "padding", "causal")
TARGET_TIME = 1.02
TARGET_MEMORY = 1.001  # allocators round sizes up


@dataclass(frozen=True)
class Shape:
    width: int
    heads: int
    feed_forward: int
    batch: int
    length: int
    dtype: torch.dtype
    num_rounds: int
    steps_a_round: int


SHAPES = {
    ("cpu", False): Shape(256, 4, 1024, 8, 128, torch.float32, 80, 1),
    ("cpu", True): Shape(128, 4, 256, 4, 64, torch.float32, 12, 2),
    # As many tokens as keep the device busy: on fewer, one times how fast Python launches kernels.
    ("cuda", False): Shape(1024, 16, 4096, 32, 512, torch.bfloat16, 60, 20),
    ("cuda", True): Shape(1024, 16, 4096, 16, 512, torch.bfloat16, 10, 10),
}


class SdpaBlock(nn.Module):
    """The layer as one would write it by hand around scaled_dot_product_attention."""

    def __init__(self, like: nn.TransformerEncoderLayer, heads: int, dropout: float) -> None:
        super().__init__()
        width = like.linear1.in_features
        self.heads = heads
        self.dropout_rate = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.qkv.weight, self.qkv.bias = like.self_attn.in_proj_weight, like.self_attn.in_proj_bias
        self.out, self.linear1, self.linear2 = like.self_attn.out_proj, like.linear1, like.linear2
        self.norm1, self.norm2 = like.norm1, like.norm2
        self.dropout, self.dropout1, self.dropout2 = (nn.Dropout(dropout) for _ in range(3))

    def forward(self, x: Tensor, keep: Tensor | None = None, is_causal: bool = False) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        dropout = self.dropout_rate if self.training else 0.0
        attended = F.scaled_dot_product_attention(
            q, k, v, attn_mask=keep, dropout_p=dropout, is_causal=is_causal
        )
        x = self.norm1(x + self.dropout1(self.out(attended.transpose(1, 2).reshape(batch, length, width))))
        normed: Tensor = self.norm2(x + self.dropout2(self.linear2(self.dropout(F.relu(self.linear1(x))))))
        return normed


def make_padding(shape: Shape, device: str) -> Tensor:
    """True where padded: half of the positions of every other row."""
    padding = torch.zeros(shape.batch, shape.length, dtype=torch.bool, device=device)
    padding[::2, shape.length // 2 :] = True
    return padding


def make_contestants(
    shape: Shape, dropout: float, mask: str, device: str, modelzoo: Path | None
) -> dict[str, tuple[nn.Module, dict[str, Any]]]:
    """The layers and what each is called with beside its input."""
    torch.manual_seed(0)
    common: dict[str, Any] = {"dropout": dropout, "batch_first": True, "device": device, "dtype": shape.dtype}
    theirs = nn.TransformerEncoderLayer(shape.width, shape.heads, shape.feed_forward, **common)
    ours = TransformerEncoderLayer(shape.width, shape.heads, shape.feed_forward, **common)
    ours.load_state_dict(theirs.state_dict())
    block = SdpaBlock(copy.deepcopy(theirs), shape.heads, dropout)
    padding = make_padding(shape, device)
    causal = nn.Transformer.generate_square_subsequent_mask(
        shape.length, device=torch.device(device), dtype=shape.dtype
    )
    arguments: dict[str, dict[str, dict[str, Any]]] = {
        "none": {"ours": {}, "sdpa": {}, "torch.nn": {}, "model zoo": {}},
        "padding": {
            "ours": {"src_key_padding_mask": padding},
            "sdpa": {"keep": ~padding[:, None, None, :]},
            "torch.nn": {"src_key_padding_mask": padding},
            "model zoo": {"src_mask": padding[:, None, None, :].to(torch.float16) * -1e4},
        },
        "causal": {
            "ours": {"is_causal": True},
            "sdpa": {"is_causal": True},
            "torch.nn": {"src_mask": causal, "is_causal": True},
            "model zoo": {"src_mask": (causal != 0).to(torch.float16) * -1e4},
        },
    }
    layers: dict[str, nn.Module] = {"ours": ours, "sdpa": block, "torch.nn": theirs}
    if modelzoo is not None:
        layers["model zoo"] = make_zoo_layer(modelzoo, shape, dropout, device, ours.state_dict())
    return {name: (layer, arguments[mask][name]) for name, layer in layers.items()}


def make_zoo_layer(
    checkout: Path, shape: Shape, dropout: float, device: str, state: dict[str, Tensor]
) -> nn.Module:
    """The zoo's own layer with our weights, which it holds as three matrices."""
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    try:
        from modelzoo.common.pytorch.layers.TransformerEncoderLayer import (  # type: ignore[import-not-found]
            TransformerEncoderLayer as ZooLayer,
        )
    except ImportError as error:
        raise SystemExit(
            f"--modelzoo {checkout}: release 1.6 cannot be imported from there: {error}"
        ) from error
    layer: nn.Module = ZooLayer(
        shape.width,
        shape.heads,
        shape.feed_forward,
        dropout,
        "relu",
        use_projection_bias_in_attention=True,
        use_ffn_bias_in_attention=True,
        use_ffn_bias=True,
    )
    renamed = {name: tensor for name, tensor in state.items() if name.startswith("norm")}
    for kind in ("weight", "bias"):
        for part, tensor in zip("qkv", state[f"self_attn.in_proj_{kind}"].chunk(3), strict=True):
            renamed[f"self_attn.proj_{part}_dense_layer.{kind}"] = tensor
        renamed[f"self_attn.proj_output_dense_layer.{kind}"] = state[f"self_attn.out_proj.{kind}"]
        renamed[f"ffn.ffn.0.linear_layer.{kind}"] = state[f"linear1.{kind}"]
        renamed[f"ffn.ffn.1.linear_layer.{kind}"] = state[f"linear2.{kind}"]
    layer.load_state_dict(renamed)
    return layer.to(device=device, dtype=shape.dtype)


def check(contestants: dict[str, tuple[nn.Module, dict[str, Any]]], x: Tensor, case: str) -> None:
    """Stops the run if the contestants do not compute the same, or if wholly padded rows spoil ours."""
    tolerance = 1e-4 if x.dtype == torch.float32 else 0.1
    outputs = {}
    for name, (layer, arguments) in contestants.items():
        outputs[name] = layer.eval()(x, **arguments).detach()
        layer.train()
    for name, output in outputs.items():
        # A quarter of the scores of bfloat16 may differ in their last bit; the mean says whether it is the same model.
        difference = (output.float() - outputs["sdpa"].float()).abs().mean().item()
        if not difference < tolerance:
            raise SystemExit(f"{case}: {name} differs from the SDPA block by {difference} on average")
    layer = contestants["ours"][0]
    padding = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    padding[0] = True
    leaf = x.detach().clone().requires_grad_()
    layer(leaf, src_key_padding_mask=padding).square().mean().backward()
    gradients = [leaf.grad, *(parameter.grad for parameter in layer.parameters())]
    if not all(gradient is not None and bool(torch.isfinite(gradient).all()) for gradient in gradients):
        raise SystemExit(f"{case}: rows that are padded wholly gave gradients that are not finite")
    layer.zero_grad(set_to_none=True)


def step(
    layer: Callable[..., Tensor],
    parameters: list[Tensor],
    x: Tensor,
    gradient: Tensor,
    arguments: dict[str, Any],
) -> None:
    for parameter in parameters:
        parameter.grad = None
    x.grad = None
    layer(x, **arguments).backward(gradient)  # type: ignore[no-untyped-call]


def timed(take_step: Callable[[], None], num_steps: int, device: str) -> float:
    if (
        device == "cpu"
    ):  # one thread, so its own seconds are the time; other processes of the machine do not count
        start = time.process_time()
        for _ in range(num_steps):
            take_step()
        return (time.process_time() - start) / num_steps
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(num_steps):
        take_step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / num_steps


def make_steps(
    contestants: dict[str, tuple[nn.Module, dict[str, Any]]], x: Tensor, compiled: bool
) -> dict[str, Callable[[], None]]:
    gradient = torch.randn_like(x)
    steps: dict[str, Callable[[], None]] = {}
    for name, (layer, arguments) in contestants.items():
        if compiled and name not in ("ours", "sdpa"):
            continue
        function = torch.compile(layer, fullgraph=True) if compiled else layer
        leaf = x.detach().clone().requires_grad_()
        steps[name] = partial(step, function, list(layer.parameters()), leaf, gradient, arguments)
    return steps


def measure_times(
    shape: Shape, dropout: float, mask: str, compiled: bool, device: str, modelzoo: Path | None
) -> dict[str, Any]:
    case = describe(dropout, mask, compiled)
    print(case, file=sys.stderr)
    torch._dynamo.reset()
    contestants = make_contestants(shape, dropout, mask, device, modelzoo)
    torch.manual_seed(1)
    x = torch.randn(shape.batch, shape.length, shape.width, device=device, dtype=shape.dtype)
    check(contestants, x, case)
    steps = make_steps(contestants, x, compiled)
    for take_step in steps.values():  # compiles, and lets allocators and kernels settle
        for _ in range(3):
            take_step()
    runs = {name: partial(timed, take_step, shape.steps_a_round, device) for name, take_step in steps.items()}
    seconds = interleave(runs, shape.num_rounds)
    ratios = {name: paired_ratio(seconds["ours"], seconds[name]) for name in seconds if name != "ours"}
    return {
        "case": case,
        "median_seconds": {name: statistics.median(times) for name, times in seconds.items()},
        "ratios": {
            name: {"median": ratio.median, "interval": [ratio.low, ratio.high], "pairs": ratio.num_pairs}
            for name, ratio in ratios.items()
        },
        "ratio": ratios["sdpa"],
    }


def describe(dropout: float, mask: str, compiled: bool = False) -> str:
    masked = {"none": "no mask", "padding": "padding", "causal": "causal"}[mask]
    return f"dropout {dropout:g} {masked} {'compiled' if compiled else 'eager'}"


def peak_bytes(name: str, shape: Shape, dropout: float, mask: str, device: str) -> int:
    """The most bytes of tensors that a step holds at once, beyond what is held before it."""
    layer, arguments = make_contestants(shape, dropout, mask, device, None)[name]
    x = torch.randn(
        shape.batch, shape.length, shape.width, device=device, dtype=shape.dtype, requires_grad=True
    )
    take_step = partial(step, layer, list(layer.parameters()), x, torch.ones_like(x), arguments)
    take_step()  # not the library's first
    layer.zero_grad(set_to_none=True)
    x.grad = None
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        take_step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    # A process's peak would hold the allocator's habits as well; the profiler sees each allocation and its end.
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        take_step()
    assert profile.profiler is not None
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    sizes: list[int] = [event.nbytes() for event in events]
    return max(itertools.accumulate(sizes))


def measure_memory(shape: Shape, dropout: float, mask: str, device: str) -> dict[str, Any]:
    peaks = {name: peak_bytes(name, shape, dropout, mask, device) for name in ("ours", "sdpa", "torch.nn")}
    return {"case": describe(dropout, mask), "peak_bytes": peaks, "ratio": peaks["ours"] / peaks["sdpa"]}


def print_tables(times: list[dict[str, Any]], memory: list[dict[str, Any]]) -> None:
    names = ("ours", "sdpa", "torch.nn", "model zoo")
    print(f"{'milliseconds a step':<34}" + "".join(f"{name:>12}" for name in names) + f"{'ours to sdpa':>28}")
    for row in times:
        cells = (row["median_seconds"].get(name) for name in names)
        columns = "".join(f"{'-' if cell is None else f'{cell * 1e3:.3f}':>12}" for cell in cells)
        print(f"{row['case']:<34}{columns}{row['ratio']!s:>28}")
    print(f"{'peak MiB of a step':<34}" + "".join(f"{name:>12}" for name in names[:3]))
    for row in memory:
        columns = "".join(f"{row['peak_bytes'][name] / 2**20:>12.2f}" for name in names[:3])
        print(f"{row['case']:<34}{columns}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument(
        "--quick", action="store_true", help="small, few rounds and fewer cases, to see that it works"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--modelzoo", type=Path, metavar="FOLDER", help="a checkout of the model zoo's release 1.6"
    )
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda was asked for, and torch sees no GPU here")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    device, quick = arguments.device, arguments.quick
    if device == "cpu":
        torch.set_num_threads(1)
    shape = SHAPES[device, quick]
    cases = [
        (dropout, mask, compiled) for compiled in (False, True) for dropout in (0.0, 0.1) for mask in MASKS
    ]
    if quick:
        cases = [case for case in cases if not case[2] or case == (0.0, "padding", True)]
    times = [measure_times(shape, *case, device, arguments.modelzoo) for case in cases]
    memory = [measure_memory(shape, dropout, mask, device) for dropout in (0.0, 0.1) for mask in MASKS]
    print_tables(times, memory)
    about = f"{device} {str(shape.dtype).removeprefix('torch.')} width {shape.width} batch {shape.batch} length {shape.length}"
    claims = [
        Claim(
            f"time of our encoder layer to the SDPA block's ({row['case']} {about})",
            row["ratio"],
            TARGET_TIME,
            False,
        )
        for row in times
    ]
    for row in memory:
        ratio = Ratio(row["ratio"], row["ratio"], row["ratio"], 1)
        text = f"peak memory of our encoder layer to the SDPA block's ({row['case']} {device})"
        claims.append(Claim(text, ratio, TARGET_MEMORY, at_least=False))
    figures = {"times": [{k: v for k, v in row.items() if k != "ratio"} for row in times], "memory": memory}
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return finish(arguments, claims, figures, torch=torch.__version__, device=name)


if __name__ == "__main__":
    sys.exit(main())
