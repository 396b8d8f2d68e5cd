"""Run by test_streaming_ranks.py in several processes: sharded streaming beside what it must equal, many cases in one start.

Arguments: the folder of the tests, the file for the results of each rank, and the cases.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, sys.argv[1])
from conformance import contract

from portwright import PyTorchBaseModel
from portwright.errors import PortwrightError
from portwright.runtime.backend import TorchBackend
from portwright.runtime.session import TorchSession
from portwright.runtime.streaming.session import StreamingSession
from portwright.runtime.streaming.sharded_engine import OrderedFetcher
from portwright.runtime.streaming.sharded_session import ShardedStreamingSession
from portwright.runtime.streaming.updates import Updates
from portwright.runtime.world import Launch, World
from portwright.target import JobSpec, Shard

NUM_STEPS = 4
BACKEND = TorchBackend("cpu", {}, lambda line: None)
WORLD = BACKEND.world
ALONE = World(Launch(), "cpu", None)


class Block(nn.Module):
    """One of each kind of weight that is split otherwise: odd sizes, turned memory, single numbers, frozen, shared, low rank."""

    def __init__(self, size: int, dropout: float, norm: type[nn.Module]) -> None:
        super().__init__()
        self.norm = norm(size)
        self.wide = nn.Linear(size, 3 * size + 1)
        self.back = nn.Linear(3 * size + 1, size)
        self.conv = nn.Conv2d(3, 5, 3, padding=1).to(memory_format=torch.channels_last)
        self.frozen = nn.Linear(size, size).requires_grad_(False)
        self.low, self.high = nn.Linear(size, 2, bias=False), nn.Linear(2, size, bias=False)
        self.again = self.low  # the same weight under two names
        self.gate = nn.Parameter(torch.tensor(0.5))
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1  # type: ignore[operator]
        y = self.back(torch.relu(self.wide(self.norm(x))))
        picture = y[:, :12].reshape(-1, 3, 2, 2).contiguous(memory_format=torch.channels_last)
        y = y + self.conv(picture).mean((1, 2, 3))[:, None]
        y = y + self.frozen(x) * self.gate + self.high(self.again(x))
        return x + self.dropout(y)


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0, norm: type[nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.first = nn.Linear(64, 17)
        self.blocks = nn.ModuleList([Block(17, dropout, norm) for _ in range(4)])
        self.last = nn.Linear(17, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x.flatten(1))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.last(x)
        return logits


class Tokens(nn.Module):
    """A small transformer whose last layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(17, 16)
        self.blocks = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(16, 2, 24, dropout=0.1, batch_first=True, norm_first=True)
                for _ in range(3)
            ]
        )
        self.last = nn.Linear(16, 17, bias=False)
        self.last.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding((x.flatten(1)[:, 20:36] * 16).long().clamp(0, 16))
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.last(x)
        return logits.mean(1)[:, :10]


class RareParts(Net):
    """A weight that is used now and then, by one process only, and one that never is."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.extra, block.never = nn.Linear(17, 17), nn.Linear(17, 17)  # type: ignore[assignment]
            block.forward = self._forward(block, block.forward)  # type: ignore[method-assign]
        self.outside, self.unused = nn.Linear(17, 17), nn.Linear(3, 3)

    @staticmethod
    def _forward(block: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
        # What a batch of zero samples of class 3 has no part in: the first half of the batch is the first process's.
        def forward(x: torch.Tensor) -> torch.Tensor:
            chosen = x[:, 0] > 1.0
            return plain(x) + (block.extra(x) * chosen[:, None] if bool(chosen.any()) else 0.0)  # type: ignore[no-any-return]

        return forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = x.flatten(1)[:, 10] > 0.9
        x = self.first(x.flatten(1))
        if bool(chosen.any()):
            x = x + self.outside(x) * chosen[:, None]
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.last(x)
        return logits


class OwnDraws(Net):
    """Made otherwise in every process."""

    def __init__(self) -> None:
        torch.manual_seed(100 + WORLD.rank)
        super().__init__(norm=nn.BatchNorm1d)


class Overflows(Net):
    """The gradients of the third step are not finite in the last process."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x.flatten(1))
        for block in self.blocks:
            x = block(x)
        self.calls += self.training
        if self.calls == 3 and self.training and WORLD.rank == WORLD.size - 1:
            x.register_hook(lambda grad: grad * float("inf"))
        logits: torch.Tensor = self.last(x)
        return logits


class Frozen(Net):
    """Only what is outside the layers is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks.requires_grad_(False)


class LooksIn(Net):
    """Uses a layer's weight outside that layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = super().forward(x)
        return logits + self.blocks[1].wide.weight.square().mean()


class Wanders(Net):
    """Calls its layers in another order in every step, so that what is asked for ahead is often wrong."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x.flatten(1))
        self.calls += self.training
        for index in ((0, 1, 2, 3), (2, 0, 3, 1), (3, 1, 0, 2))[self.calls % 3]:
            x = self.blocks[index](x)
        logits: torch.Tensor = self.last(x)
        return logits


class SkipsLayers(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x.flatten(1))
        for index, block in enumerate(self.blocks):
            if index != 1 + WORLD.rank:
                x = block(x)
        logits: torch.Tensor = self.last(x)
        return logits


def job_of(
    net: Callable[[], nn.Module], *overrides: str, spoil: Callable[[int], bool] | None = None
) -> JobSpec:
    job = contract.make_job(
        "train_and_eval",
        "train_input.drop_last=false",
        "train_input.batch_size=67",
        "runconfig.streaming.slots=2",
        *overrides,
    )

    class Model(PyTorchBaseModel):
        def __init__(self, params: dict[str, Any], device: torch.device | None = None) -> None:
            self.model, self.calls = net(), 0
            super().__init__(params=params, model=self.model, device=device)

        def __call__(self, data: Any) -> torch.Tensor:
            images, labels = data
            loss = nn.functional.cross_entropy(
                self.model(images.to(next(self.model.parameters()).dtype)), labels
            )
            self.calls += self.model.training
            return loss * float("nan") if spoil is not None and spoil(self.calls) else loss

    return dataclasses.replace(job, model_fn=Model)


def open_resident(job: JobSpec, alone: bool = False) -> TorchSession:
    return TorchSession(job, BACKEND.device, ALONE if alone else WORLD, lambda line: None)


def open_sharded(job: JobSpec) -> ShardedStreamingSession:
    return ShardedStreamingSession(job, BACKEND.device, WORLD, lambda line: None)


def losses(session: TorchSession, first: int = 0, last: int = NUM_STEPS) -> list[float]:
    return [loss for event in session.train(contract.stretch(first, last)) for loss in event.losses]


def difference(a: list[Shard], b: list[Shard]) -> float:
    mine = {shard.name: shard.tensor for shard in a if not shard.name.startswith("rng/")}
    other = {shard.name: shard.tensor for shard in b if not shard.name.startswith("rng/")}
    assert list(mine) == list(other), sorted(set(mine) ^ set(other))[:5]
    for name, tensor in mine.items():
        assert (tensor.shape, tensor.dtype) == (other[name].shape, other[name].dtype), name
    return max((mine[name].double() - other[name].double()).abs().max().item() for name in mine)


def equal(net: Callable[[], nn.Module], *overrides: str, alone: bool = False) -> dict[str, Any]:
    """A sharded session beside a resident one, through an evaluation and a resume by each of what the other has saved."""
    opening = (open_sharded, lambda job: open_resident(job, alone))
    found: dict[str, Any] = {}
    ran, saved = [], []
    for open_it in opening:  # one after the other, since they draw from the same generators
        session = open_it(job_of(net, *overrides))
        ran.append(losses(session))
        saved.append((list(session.state()), session.counters()))
        found.setdefault("evaluation", []).append(session.evaluate(3)["loss"])
        if isinstance(session, ShardedStreamingSession):
            found |= counted(session)
        session.close()
    found["losses"] = largest(*ran)
    found["state"] = difference(saved[0][0], saved[1][0])
    found["evaluation"] = abs(found["evaluation"][0] - found["evaluation"][1])
    ran, resumed = [], []
    for open_it, (shards, counters) in zip(opening, reversed(saved), strict=True):
        session = open_it(job_of(net, *overrides))
        session.load_state(shards, counters)
        ran.append(losses(session, NUM_STEPS, NUM_STEPS + 2))
        resumed.append(list(session.state()))
        session.close()
    found["losses_resumed"], found["state_resumed"] = largest(*ran), difference(*resumed)
    return found


def largest(a: list[float], b: list[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def counted(session: ShardedStreamingSession) -> dict[str, Any]:
    engine = session._engine
    assert engine._updates is not None
    return {
        "rolled_back": engine._updates.num_rolled_back,
        "late": engine._fetcher.num_late,
        "host_bytes": sum(unit.host.num_bytes for unit in engine.units),
        "whole_bytes": sum(entry.num_bytes for unit in engine.units for entry in unit.entries),
    }


def one_process_goes_on() -> dict[str, Any]:
    """Saved by all processes together, resumed by a streaming session of one, and the other way round."""
    make = lambda: job_of(Net, "optimizer.max_gradient_norm=0.3")  # noqa: E731
    whole = StreamingSession(make(), BACKEND.device, ALONE, lambda line: None)
    sharded = open_sharded(make())
    first = largest(losses(whole), losses(sharded))
    saved, counters = list(whole.state()), whole.counters()
    shards, other = list(sharded.state()), sharded.counters()
    whole.load_state(shards, other)
    sharded.load_state(saved, counters)
    a, b = losses(whole, NUM_STEPS, NUM_STEPS + 2), losses(sharded, NUM_STEPS, NUM_STEPS + 2)
    found = {
        "losses": max(first, largest(a, b)),
        "state": difference(list(whole.state()), list(sharded.state())),
    }
    whole.close()
    sharded.close()
    return found


def delayed(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """With threads that take their time, another one in every process."""
    drawn = random.Random(WORLD.rank)
    with contextlib.ExitStack() as stack:
        for kind, name in ((OrderedFetcher, "_fill"), (Updates, "_process"), (Updates, "_judge")):
            plain = getattr(kind, name)

            def late(*args: Any, plain: Callable[..., Any] = plain) -> Any:
                time.sleep(drawn.random() * 0.004)
                return plain(*args)

            setattr(kind, name, late)
            stack.callback(setattr, kind, name, plain)
        return run()


def refused(open_it: Callable[[], Any]) -> dict[str, Any]:
    try:
        session = open_it()
    except PortwrightError as error:
        return {"error": error.message, "cure": error.cure}
    try:
        losses(session)
    except PortwrightError as error:
        return {"error": error.message, "cure": error.cure, "held": unchanged(session)}
    finally:
        with contextlib.suppress(PortwrightError):
            session.close()
    return {"error": None}


def unchanged(session: ShardedStreamingSession) -> bool:
    """Whether all weights are those of two updates."""
    fresh = open_sharded(job_of(Net))
    list(losses(fresh, 0, 2))
    engines = session._engine, fresh._engine
    with contextlib.suppress(PortwrightError):
        session._engine.wait()
    fresh._engine.wait()
    kept = ([*(shard for shard, _ in engine.shards.values()), *engine.rest] for engine in engines)
    same = all(torch.equal(a, b) for a, b in zip(*kept, strict=True))
    fresh.close()
    return same


def overflowing() -> ShardedStreamingSession:
    return open_sharded(job_of(Overflows, "optimizer.max_gradient_norm=500"))


def spoilt(*overrides: str) -> ShardedStreamingSession:
    """The loss of the third step is not finite in the last process."""
    return open_sharded(
        job_of(Net, *overrides, spoil=lambda call: call == 3 and WORLD.rank == WORLD.size - 1)
    )


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": lambda: equal(Net),
    "alone": lambda: equal(Net, alone=True),
    "tokens": lambda: equal(Tokens, "optimizer.optimizer_type=SGD", "optimizer.momentum=0.9"),
    "batchnorm": lambda: equal(OwnDraws),
    "clipped": lambda: equal(Net, "optimizer.max_gradient_norm=0.3", alone=True),
    "clipped_dropout": lambda: equal(lambda: Net(0.2), "optimizer.max_gradient_norm=0.3"),
    "speculated": lambda: equal(Net, "optimizer.max_gradient_norm=500", alone=True),
    "accumulated": lambda: equal(
        Net, "optimizer.grad_accum_steps=3", "optimizer.max_gradient_norm=0.3", alone=True
    ),
    "scaled": lambda: equal(Overflows, "optimizer.loss_scaling_factor=dynamic", "optimizer.max_gradient_norm=0.3"),
    "clamped": lambda: equal(Net, "optimizer.max_gradient_value=0.01", alone=True),
    "bf16": lambda: equal(Net, "runconfig.precision=bf16"),
    "fp64": lambda: equal(Net, "runconfig.precision=fp64", "optimizer.max_gradient_norm=0.3", alone=True),
    "rare": lambda: equal(RareParts, "runconfig.precision=fp64", alone=True),
    "rare_accumulated": lambda: equal(
        RareParts, "optimizer.grad_accum_steps=2", "optimizer.max_gradient_norm=0.3", alone=True
    ),
    "wanders": lambda: delayed(
        lambda: equal(Wanders, "optimizer.max_gradient_norm=0.3", "runconfig.streaming.slots=3")
    ),
    "wanders_plain": lambda: delayed(lambda: equal(Wanders)),
    "one_process": one_process_goes_on,
    "disk": lambda: equal(Net, f"runconfig.streaming.store={Path.cwd()}", "optimizer.max_gradient_norm=0.3"),
    "disk_bf16": lambda: equal(
        Net, f"runconfig.streaming.store={Path.cwd()}", "runconfig.precision=bf16", "runconfig.streaming.device_memory=64MiB"
    ),
    "offloaded": lambda: equal(Net, "runconfig.streaming.offload_activations=true"),
    "Lamb": lambda: refused(lambda: open_sharded(job_of(Net, "optimizer.optimizer_type=Lamb"))),
    "fsdp": lambda: refused(lambda: open_sharded(job_of(Net, "runconfig.distributed=fsdp"))),
    "skips": lambda: refused(lambda: open_sharded(job_of(SkipsLayers))),
    "frozen": lambda: equal(Frozen, "optimizer.optimizer_type=Lamb", "optimizer.max_gradient_norm=0.3"),
    "looks_in": lambda: refused(lambda: open_sharded(job_of(LooksIn))),
    "spoilt": lambda: refused(spoilt),
    "spoilt_clipped": lambda: refused(lambda: spoilt("optimizer.max_gradient_norm=500")),
    "overflowing": lambda: refused(overflowing),
    **{
        name: lambda name=name: equal(Net, f"optimizer.optimizer_type={name}", "optimizer.weight_decay_rate=0")
        for name in ("SGD", "Adagrad", "RMSprop", "Adamax", "Lion", "NAdam", "RAdam", "Adadelta", "ASGD", "Rprop", "Adam")
    },
}  # fmt: skip

if __name__ == "__main__":
    results = {}
    for case in sys.argv[3:]:
        results[case] = CASES[case]()
        Path(f"{sys.argv[2]}.{WORLD.rank}").write_text(json.dumps(results))
    BACKEND.close()
