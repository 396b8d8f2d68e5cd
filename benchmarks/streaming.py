"""Tokens a second of a GPT whose weights are streamed from host memory, beside all resident, FSDP2's CPU offload and ZeRO-3's, in one run.

16 blocks of width 4096, 3.49 billion weights, sequence 2048, bf16 compute, fp32 AdamW, every block recomputed in backward; 16,384 and
65,536 tokens a step. All contestants train the same module from the same weights on the same tokens, one at a time, each in a process of its
own, in rounds until the time is up; their losses are compared. --part asks for what else is claimed: depth (peak device memory of 8, 16 and
32 layers), oversize (a training state larger than the GPU), capped (24 GiB of the GPU), trace (what runs beside what: benchmarks/streaming_trace.py draws it), expected (the speed that a run estimates, with
clipping in force and without, beside the speed it has).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import yaml
from measure import Claim, Ratio, finish, paired_ratio

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from streaming_gpt import Shape
from streaming_parts import (
    Figures,
    peak_gib,
    run_capped,
    run_depth,
    run_expected,
    run_oversize,
    run_trace,
    single,
)
from streaming_process import Course

CONTESTANTS = (
    "resident",
    "ours",
    "fsdp2",
    "zero3",
)  # "ours" is a whole run; "engine" is its engine in a plain loop
TARGETS = {16384: 0.72, 65536: 0.98}  # ours, of resident
AIMS = {16384: 0.85}
QUOTED = {  # of resident on the same kind of machine, in another run: shown only where a contestant did not run in this one
    "fsdp2": {16384: 0.43, 65536: 0.77},
    "zero3": {16384: 0.36, 65536: 0.68},
}
MOST_ROUNDS = 3
TIMED_STEPS = {16384: 8, 65536: 4}
# Relative difference of losses to resident's: the first, before any update, and any later one.
TOLERANCES = {"cuda": (2e-3, 2e-2), "cpu": (1e-5, 1e-4)}


def race(course: Course, shape: Shape, steps: dict[int, int], names: list[str]) -> dict[str, list[Figures]]:
    """Rounds of all contestants, every second one the other way round. ZeRO-3 compiles for long and runs once."""
    results: dict[str, list[Figures]] = {name: [] for name in names}
    for round_number in range(MOST_ROUNDS if course.device == "cuda" else 1):
        for name in reversed(names) if round_number % 2 else names:
            runs = results[name]
            if any("failed" in run for run in runs) or (name == "zero3" and runs):
                continue
            if not runs or course.has_time_for(name):
                runs.append(course.run(name, shape, steps))
    return results


def seconds_of(runs: list[Figures], num_tokens: int) -> list[float]:
    return [s for run in runs if "failed" not in run for s in run["tokens"][str(num_tokens)]["seconds"]]


def ratio_to_resident(results: dict[str, list[Figures]], name: str, num_tokens: int) -> Ratio | None:
    ours, peer = (seconds_of(results.get(who, []), num_tokens) for who in (name, "resident"))
    count = min(len(ours), len(peer))
    return paired_ratio(peer[:count], ours[:count]) if count else None


def differences(results: dict[str, list[Figures]], name: str) -> tuple[float, float] | None:
    """Relative differences of the losses to resident's: the first one, and the largest."""
    runs = [run for run in results.get(name, []) if "failed" not in run]
    expected = [run for run in results.get("resident", []) if "failed" not in run]
    if not runs or not expected:
        return None
    found = []
    for run in runs:
        for tokens, row in run["tokens"].items():
            pairs = zip(row["losses"], expected[0]["tokens"][tokens]["losses"], strict=True)
            found += [abs(ours / theirs - 1) for ours, theirs in pairs]
    return found[0], max(found, key=lambda value: (value != value, value))


def settled_speed(runs: list[Figures], num_tokens: int, num_steps: int) -> str:
    """Tokens a second from quiet to quiet, the last updates included; a run with a loop of its own cannot tell."""
    rows = [run["tokens"][str(num_tokens)] for run in runs]
    found = [num_tokens * num_steps / row["settled_seconds"] for row in rows if "settled_seconds" in row]
    return f"{statistics.median(found):.0f}" if found else "-"


def print_table(results: dict[str, list[Figures]], steps: dict[int, int]) -> None:
    print(
        f"{'':<10}{'tokens':>8}{'tok/s':>10}{'of resident':>24}{'settled':>9}{'peak GiB':>10}{'first loss':>12}{'last':>9}{'runs':>6}"
    )
    for num_tokens in steps:
        for name, runs in results.items():
            done = [run for run in runs if "failed" not in run]
            if not done:
                quoted = QUOTED.get(name, {}).get(num_tokens)
                said = "" if quoted is None else f"; {quoted} of resident was measured in an earlier run"
                print(
                    f"{name:<10}{num_tokens:>8}  not run: {runs[0]['failed'] if runs else 'not asked for'}{said}"
                )
                continue
            row = done[0]["tokens"][str(num_tokens)]
            speed = num_tokens / statistics.median(seconds_of(runs, num_tokens))
            settled = settled_speed(done, num_tokens, steps[num_tokens])
            ratio = ratio_to_resident(results, name, num_tokens) or ""
            print(
                f"{name:<10}{num_tokens:>8}{speed:>10.0f}{ratio!s:>24}{settled:>9}{peak_gib(row, done[0]):>10.1f}"
                f"{row['losses'][0]:>12.4f}{row['losses'][-1]:>9.4f}{len(done):>6}",
                flush=True,
            )


def claim_table(results: dict[str, list[Figures]], shape: Shape, device: str) -> Iterator[Claim]:
    if "ours" in results:
        ended_well = ["failed" not in run for run in results["ours"]]
        yield single("runs of ours that ended well", sum(ended_well) / len(ended_well), 1.0)
    for num_tokens, target in TARGETS.items():
        is_asked = device == "cuda" and shape == Shape() and bool(seconds_of_or_none(results, num_tokens))
        ratio = ratio_to_resident(results, "ours", num_tokens) if is_asked else None
        if ratio is not None:
            yield Claim(f"tokens a second, ours to resident ({num_tokens} tokens a step)", ratio, target)
    found = differences(results, "ours")
    if found is not None:
        for what, value, limit in zip(("first", "largest"), found, TOLERANCES[device], strict=True):
            yield single(f"{what} relative difference of a loss to resident's", value, limit, at_least=False)


def seconds_of_or_none(results: dict[str, list[Figures]], num_tokens: int) -> list[float]:
    runs = [run for run in results.get("ours", []) if str(num_tokens) in run.get("tokens", {})]
    return seconds_of(runs, num_tokens)


def run_table(
    course: Course, shape: Shape, steps: dict[int, int], names: list[str]
) -> tuple[list[Claim], Figures]:
    results = race(course, shape, steps, names)
    print_table(results, steps)
    for name in results:
        found = differences(results, name)
        if found is not None and name != "resident":
            print(
                f"{name}: losses differ from resident's by {found[0]:.1e} at the first step, {found[1]:.1e} at most"
            )
    ratios = {
        name: {str(tokens): ratio_to_resident(results, name, tokens) for tokens in steps} for name in results
    }
    figures = {
        "runs": results,
        "of_resident": {
            name: {tokens: vars(r) for tokens, r in row.items() if r is not None}
            for name, row in ratios.items()
        },
        "loss_differences": {name: differences(results, name) for name in results},
        "aims": AIMS,
        "quoted_not_measured_here": QUOTED,
    }
    return list(claim_table(results, shape, course.device)), figures


Part = Callable[[Course, Shape, dict[int, int], list[str]], tuple[list[Claim], Figures]]
PARTS: dict[str, tuple[Part, Shape]] = {
    "table": (run_table, Shape()),
    "depth": (run_depth, Shape(width=2048)),
    "oversize": (run_oversize, Shape(layers=46)),
    "capped": (run_capped, Shape()),
    "trace": (run_trace, Shape()),
    "expected": (run_expected, Shape()),
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--part", choices=sorted(PARTS), default="table")
    parser.add_argument(
        "--only", nargs="+", choices=(*CONTESTANTS, "engine"), default=list(CONTESTANTS), metavar="NAME"
    )
    parser.add_argument(
        "--tokens", type=int, nargs="+", help="tokens a step (default: 16384 65536; on a CPU 128 256)"
    )
    parser.add_argument("--layers", type=int, help="blocks of the model")
    parser.add_argument("--width", type=int, help="width of the model")
    parser.add_argument("--steps", type=int, help="timed steps, after two to warm up")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument(
        "--budget", type=float, default=520.0, help="seconds that all may take (default: 520)"
    )
    parser.add_argument(
        "--streaming", nargs="+", default=[], metavar="KEY=VALUE", help="keys of runconfig.streaming for ours"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model: to see that it works; speed is not judged on it"
    )
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; --device cpu runs everything on a tiny model")
    for name in ("layers", "width", "steps"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(arguments, name)}")
    arguments.quick = arguments.quick or arguments.device == "cpu"
    for item in arguments.streaming:
        if "=" not in item:
            parser.error(f"--streaming {item}: expected KEY=VALUE, such as update_on_device=0.3")
    pairs = (item.split("=", 1) for item in arguments.streaming)
    arguments.streaming = {key: yaml.safe_load(value) for key, value in pairs}
    return arguments


def choose_shape(arguments: argparse.Namespace) -> Shape:
    usual = PARTS[arguments.part][1]
    if arguments.quick:
        usual = Shape(layers=4, width=64, vocab=256, length=32)
        if arguments.part == "depth":  # inputs of less than a MiB are not worth moving to the host
            usual = Shape(width=256, vocab=256, length=128)
    return Shape(arguments.layers or usual.layers, arguments.width or usual.width, usual.vocab, usual.length)


def describe_machine(device: str) -> dict[str, str]:
    found = {"torch": torch.__version__, "device": device}
    if device == "cuda":
        found["device"] = torch.cuda.get_device_name()
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        found["driver"] = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return found


def main() -> int:
    arguments = parse_arguments()
    shape = choose_shape(arguments)
    quick_tokens = [1024] if arguments.part == "depth" else [128, 256]
    tokens = arguments.tokens or (quick_tokens if arguments.quick else list(TIMED_STEPS))
    for count in tokens:
        if count < shape.length or count % shape.length:
            sys.exit(f"--tokens {count}: it must be a multiple of the sequence, {shape.length}")
    steps = {count: arguments.steps or TIMED_STEPS.get(count, 4) for count in tokens}
    print(f"{shape.num_parameters / 1e9:.3f} billion weights, {shape}", flush=True)
    run_part, _ = PARTS[arguments.part]
    course = Course(arguments.device, arguments.budget, arguments.streaming)
    claims, figures = run_part(course, shape, steps, arguments.only)
    figures = {
        "streaming": arguments.streaming,
        "part": arguments.part,
        "shape": vars(shape) | {"parameters": shape.num_parameters},
        **figures,
    }
    return finish(arguments, claims, figures, **describe_machine(arguments.device))


if __name__ == "__main__":
    sys.exit(main())
