"""One process of benchmarks/pipelining.py: trains the same model by our session and by torch's schedules used plainly.

A block's work is a wait of fixed length. Real work would make four processes compete for two cores, and idle time would be
what the operating system made of it. What is left of real computation is a small linear layer.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from portwright.job.params import load_params
from portwright.runtime.backend import TorchBackend
from portwright.target import JobSpec, Stretch

WIDTH, SAMPLES = 64, 4  # of a micro-batch
WAIT_SECONDS = 0.07  # of a block's forward pass; its backward pass is twice that
PARAMS = """
optimizer: {{optimizer_type: SGD, learning_rate: 0.01}}
runconfig:
  {{max_steps: 1000, log_steps: 0, checkpoint_steps: 0, seed: 0, execution: pipelined,
   pipeline: {{schedule: {schedule}, micro_batches: {micro}}}}}
"""
spans: list[tuple[str, float, float]] = []  # kind, start, end of each wait of this process


class Wait(torch.autograd.Function):
    """Gives a tensor as it is, and takes its time in both directions."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, forward_seconds: float, backward_seconds: float) -> Tensor:
        ctx.seconds = backward_seconds
        if forward_seconds and not isinstance(tensor, FakeTensor):
            wait("F", forward_seconds)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        wait("B", ctx.seconds)
        return grad, None, None


def wait(kind: str, seconds: float) -> None:
    start = time.perf_counter()
    time.sleep(seconds)
    spans.append((kind, start, time.perf_counter()))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.shift = nn.Parameter(
            torch.zeros(WIDTH)
        )  # the first block has a gradient to take, like all others

    def forward(self, x: Tensor) -> Tensor:
        x = Wait.apply(x + self.shift, WAIT_SECONDS, WAIT_SECONDS)  # type: ignore[no-untyped-call]
        # The gradient of the weight takes its own time, which a schedule may move.
        weight = Wait.apply(self.linear.weight, 0.0, WAIT_SECONDS)  # type: ignore[no-untyped-call]
        return x + torch.tanh(F.linear(x, weight, self.linear.bias))


def make_blocks(num_blocks: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(num_blocks)))


class WithLoss(nn.Module):
    def __init__(self, num_blocks: int) -> None:
        super().__init__()
        self.blocks = make_blocks(num_blocks)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.blocks(x), y)


def make_batch(num_micro: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (num_micro * SAMPLES, WIDTH)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def make_ours(
    backend: TorchBackend, schedule: str, num_micro: int, num_blocks: int
) -> Callable[[], list[float]]:
    """A session as a run opens it, with the batches, loss checks and stop questions of one; a call is a step."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "params.yaml"
        path.write_text(PARAMS.format(schedule=schedule, micro=num_micro))
        params = load_params(path)
    job = JobSpec(
        params, lambda _: WithLoss(num_blocks), lambda _: [make_batch(num_micro)] * 2, None, "train"
    )
    session = backend.open(job)
    step = 0

    def run() -> list[float]:
        nonlocal step
        events = list(session.train(Stretch(step, step + 1, 0, 0, lambda: False)))
        step += 1
        return [loss for event in events for loss in event.losses]

    return run


def make_plain(
    size: int, rank: int, schedule: str, num_micro: int, num_blocks: int
) -> Callable[[], list[float]]:
    """torch.distributed.pipelining as its documentation shows it; with one process, a loop over micro-batches."""
    from torch.distributed import pipelining

    blocks = make_blocks(num_blocks)
    x, y = make_batch(num_micro)
    if size == 1:
        optimizer = torch.optim.SGD(blocks.parameters(), lr=0.01)

        def run_alone() -> list[float]:
            total = 0.0
            for part, wanted in zip(x.chunk(num_micro), y.chunk(num_micro), strict=True):
                loss = F.mse_loss(blocks(part), wanted) / num_micro
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad()
            return [total]

        return run_alone
    kinds = {
        "gpipe": (pipelining.ScheduleGPipe, 1),
        "1f1b": (pipelining.Schedule1F1B, 1),
        "interleaved_1f1b": (pipelining.ScheduleInterleaved1F1B, 2),
        "zbv_zero_bubble": (pipelining.ScheduleZBVZeroBubble, 2),
    }
    kind, pieces_each = kinds[schedule]
    num_pieces = size * pieces_each
    each = num_blocks // num_pieces
    # A V: the last pieces lie with the first process again.
    numbers = (
        [rank, num_pieces - 1 - rank]
        if schedule == "zbv_zero_bubble"
        else list(range(rank, num_pieces, size))
    )
    own = [blocks[p * each : (p + 1) * each] for p in numbers]
    stages = [
        pipelining.PipelineStage(module, p, num_pieces, torch.device("cpu"))
        for p, module in zip(numbers, own, strict=True)
    ]
    runner = kind(stages if pieces_each > 1 else stages[0], num_micro, loss_fn=F.mse_loss)
    optimizer = torch.optim.SGD([p for module in own for p in module.parameters()], lr=0.01)
    is_first, is_last = 0 in numbers, num_pieces - 1 in numbers

    def run() -> list[float]:
        losses: list[Tensor] = []
        runner.step(
            *((x,) if is_first else ()),
            **({"target": y, "losses": losses} if is_last else {}),
        )
        optimizer.step()
        optimizer.zero_grad()
        return [float(torch.stack(losses).detach().mean())] if losses else []

    return run


def main() -> None:
    """Takes a folder for the results and a JSON list of set-ups: schedule, micro-batches, blocks, steps."""
    folder, setups = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)
    with contextlib.suppress(PermissionError, AttributeError):
        # Others' work on the machine must not hold up a process whose wait is over; it takes 6% of a core.
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    backend = TorchBackend("cpu", {}, lambda line: None)
    world = backend.world
    order = random.Random(0)
    found = []
    for setup in setups:
        schedule, num_micro, num_blocks = setup["schedule"], setup["micro"], setup["blocks"]
        contestants = {
            "ours": make_ours(backend, schedule, num_micro, num_blocks),
            "plain": make_plain(world.size, world.rank, schedule, num_micro, num_blocks),
        }
        rows: dict[str, list[Any]] = {name: [] for name in contestants}
        for number in range(setup["steps"] + 1):
            for name in order.sample(list(contestants), len(contestants)):
                world.barrier()
                spans.clear()
                start = time.perf_counter()
                losses = contestants[name]()
                row = {"start": start, "end": time.perf_counter(), "spans": list(spans), "losses": losses}
                if number:  # the first warms up
                    rows[name].append(row)
        found.append({**setup, "rows": rows})
        if world.is_main:
            print(f"{world.size} processes, {schedule}, {num_micro} micro-batches: done", file=sys.stderr)
    (folder / f"rank{world.rank}.json").write_text(json.dumps(found))
    backend.close()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
