"""What an iteration of CosmicTagger's UResNet2D costs: ours and the public original, in one run.

The same weights and the same batch of synthetic events; an iteration is forward, focal loss, backward and Adam, with each
side's own loss. Before anything is timed, logits and losses must agree. On a CPU: float32, one thread, seconds of the
processor (the machine may be shared), and the peak of tensors in an iteration. On a GPU: bfloat16 by autocast on both
sides, the original as its loop runs it (contiguous, eager) against ours in channels_last, eager and compiled; images are
events of three planes.

The original is taken from $PORTWRIGHT_CORPUS/coreyjadams+CosmicTagger; nothing of it is in this repository.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import Claim, Ratio, finish, interleave, paired_ratio
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from unit.models.cosmic_folder import FOLDER, load, original, original_options

TARGET_TIME = 0.9
TARGET_MEMORY = 1.0


@dataclass(frozen=True)
class Shape:
    config: str
    downsample: int
    batch: int
    num_rounds: int
    steps_a_round: int = 1
    depth: int | None = None


SHAPES = {
    ("cpu", False): [Shape("uresnet2d", 2, 1, 7), Shape("a21", 2, 1, 9)],
    ("cpu", True): [Shape("uresnet2d", 4, 1, 5, depth=4)],
    ("cuda", False): [Shape("uresnet2d", 1, 4, 8, 3), Shape("a21", 1, 8, 8, 3)],
    ("cuda", True): [Shape("uresnet2d", 2, 2, 5, 2)],
}


@dataclass
class Contestant:
    network: nn.Module
    loss_of: Callable[[Any, Tensor], Tensor]
    optimizer: torch.optim.Optimizer


def read_options(shape: Shape) -> Any:
    params = load("utils").get_params(FOLDER / "configs" / f"{shape.config}.yaml")
    if shape.depth is not None:
        params["model"]["depth"] = shape.depth
    return load("uresnet_blocks").NetworkOptions(**params["model"])


def make_contestants(shape: Shape, device: str, names: tuple[str, ...]) -> dict[str, Contestant]:
    options = read_options(shape)
    torch.manual_seed(0)
    made = {}
    with original() as source:
        peer = source.uresnet2d.UResNet(original_options(options, source.config)).to(device)
        calculator = source.loss.LossCalculator(source.optimizer.LossBalanceScheme.focal)
    state = load("original_weights").state_from_original(peer.state_dict(), options)
    for name in names:
        if name == "original":
            network, loss_of = peer, partial(original_loss, calculator)
        else:
            network, loss_of = load("uresnet").UResNet(options).to(device), our_loss
            network.load_state_dict(state)
            if name == "ours compiled":
                network = torch.compile(network)  # type: ignore[assignment]
        made[name] = Contestant(network, loss_of, torch.optim.Adam(network.parameters(), 1e-5))
    return made


def our_loss(logits: Tensor, labels: Tensor) -> Tensor:
    loss: Tensor = load("plane_losses").plane_loss(logits, labels.transpose(0, 1).flatten(0, 1), "focal")
    return loss


def original_loss(calculator: Any, logits: Any, labels: Tensor) -> Tensor:
    loss: Tensor = calculator([plane.squeeze(1) for plane in labels.long().chunk(3, dim=1)], logits)
    return loss


def make_batch(shape: Shape, device: str) -> tuple[Tensor, Tensor]:
    size = (1280 >> shape.downsample, 2048 >> shape.downsample)
    events = load("synthetic_planes").SyntheticPlanes(shape.batch, size, 1, "benchmark")
    drawn = [events[index] for index in range(shape.batch)]
    images, labels = (torch.stack([event[key] for event in drawn]).to(device) for key in ("image", "label"))
    return images, labels


def precision(device: str) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast("cuda", torch.bfloat16) if device == "cuda" else contextlib.nullcontext()


def iterate(contestant: Contestant, images: Tensor, labels: Tensor, device: str) -> Tensor:
    contestant.optimizer.zero_grad()
    with precision(device):
        loss = contestant.loss_of(contestant.network(images), labels)
    loss.backward()
    contestant.optimizer.step()
    return loss.detach()


def timed(contestant: Contestant, images: Tensor, labels: Tensor, device: str, num_steps: int) -> float:
    """Seconds an iteration: of the processor on a CPU, since others may use it too; of the clock on a GPU."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    if device == "cuda":
        torch.cuda.synchronize()
    start = clock()
    for _ in range(num_steps):
        iterate(contestant, images, labels, device)
    if device == "cuda":
        torch.cuda.synchronize()
    return (clock() - start) / num_steps


def check(contestants: dict[str, Contestant], images: Tensor, labels: Tensor) -> None:
    """Logits in training mode, in double precision so that a wrong operation cannot hide behind rounding."""
    peer, ours = contestants["original"], contestants["ours"]
    with torch.no_grad():
        expected = copy.deepcopy(peer.network).double()(images.double())
        logits = copy.deepcopy(ours.network).double()(images.double())
    error = float((logits - torch.cat(expected)).abs().max() / torch.cat(expected).abs().max())
    losses = [float(peer.loss_of(expected, labels)), float(ours.loss_of(logits, labels))]
    if error > 1e-8 or abs(losses[1] / losses[0] - 1) > 1e-5:
        raise SystemExit(f"ours is not the original: logits differ by {error:.1e}, the losses are {losses}")


def peak_bytes(contestant: Contestant, images: Tensor, labels: Tensor, device: str) -> int:
    """The most bytes of tensors that an iteration holds beyond weights, moments and the batch."""
    iterate(contestant, images, labels, device)
    contestant.optimizer.zero_grad(set_to_none=True)
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        iterate(contestant, images, labels, device)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        iterate(contestant, images, labels, device)
    assert profile.profiler is not None
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in events))


def measure(shape: Shape, device: str, names: tuple[str, ...]) -> dict[str, Any]:
    contestants = make_contestants(shape, device, names)
    # In double precision a large image takes a GPU minutes, and a small one shows a wrong operation as well.
    check(
        contestants, *make_batch(replace(shape, downsample=2, batch=1) if device == "cuda" else shape, device)
    )
    images, labels = make_batch(shape, device)
    runs = {
        name: partial(timed, contestant, images, labels, device, shape.steps_a_round)
        for name, contestant in contestants.items()
    }
    seconds = interleave(runs, shape.num_rounds)
    peaks = {name: peak_bytes(contestant, images, labels, device) for name, contestant in contestants.items()}
    return {
        "case": f"{shape.config} {images.shape[2]} x {images.shape[3]} batch {shape.batch}",
        "median_seconds": {name: statistics.median(times) for name, times in seconds.items()},
        "images_per_second": {
            name: shape.batch / statistics.median(times) for name, times in seconds.items()
        },
        "peak_bytes": peaks,
        "ratios": {
            name: paired_ratio(seconds[name], seconds["original"]) for name in names if name != "original"
        },
    }


def make_claims(row: dict[str, Any], device: str) -> Iterator[Claim]:
    for name, ratio in row["ratios"].items():
        about = f"({row['case']} {device})"
        yield Claim(
            f"time of an iteration, {name} to the original {about}", ratio, TARGET_TIME, at_least=False
        )
        memory = row["peak_bytes"][name] / row["peak_bytes"]["original"]
        yield Claim(
            f"peak memory, {name} to the original {about}",
            Ratio(memory, memory, memory, 1),
            TARGET_MEMORY,
            at_least=False,
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="small and few rounds, to see that it works")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--config", help="only the shapes of this configuration, such as a21")
    parser.add_argument("--compile", action="store_true", help="ours compiled too; on a GPU it always is")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda was asked for, and torch sees no GPU here")
    if "PORTWRIGHT_CORPUS" not in os.environ:
        parser.error(
            "PORTWRIGHT_CORPUS names no folder with coreyjadams+CosmicTagger, the original to compare with"
        )
    return arguments


def main() -> int:
    arguments = parse_arguments()
    device = arguments.device
    if device == "cpu":
        torch.set_num_threads(1)
    names: tuple[str, ...] = ("original", "ours")
    status = report(arguments, names)
    if (
        arguments.compile or device == "cuda"
    ):  # compiling takes long: the figures without it are there already
        status = report(arguments, (*names, "ours compiled"))
    return status


def report(arguments: argparse.Namespace, names: tuple[str, ...]) -> int:
    device = arguments.device
    shapes = [s for s in SHAPES[device, arguments.quick] if arguments.config in (None, s.config)]
    rows = [measure(shape, device, names) for shape in shapes]
    print(f"{'':<34}{'':<16}{'seconds':>10}{'images/s':>10}{'peak MiB':>10}{'time to original':>26}")
    for row in rows:
        for name in names:
            cells = f"{row['median_seconds'][name]:>10.3f}{row['images_per_second'][name]:>10.2f}"
            memory = row["peak_bytes"][name] / 2**20
            ratio = row["ratios"].get(name, "")
            print(f"{row['case']:<34}{name:<16}{cells}{memory:>10.0f}{ratio!s:>26}", flush=True)
    claims = [claim for row in rows for claim in make_claims(row, device)]
    figures = {"rows": [{key: value for key, value in row.items() if key != "ratios"} for row in rows]}
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    return finish(arguments, claims, figures, torch=torch.__version__, device=name)


if __name__ == "__main__":
    sys.exit(main())
