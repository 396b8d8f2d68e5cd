"""What a training loop costs beside the mathematics: a plain PyTorch loop, ours, and the peers, in one run.

784-128-10 MLP, batch 64, SGD with momentum on torch's fused kernel, one thread, the same optimizer everywhere. Ours has
logging (JSONL and TensorBoard), NaN checks and a final checkpoint on; Lightning is measured with everything off and as it
comes. In-memory batches (a list) and a DataLoader over a TensorDataset. A second part asks what a checkpoint every 50
steps costs at a step of 20 ms or more.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
import torch
from measure import Claim, finish, interleave, paired_ratio, parse_arguments
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from portwright.job.logs import Console
from portwright.job.params import load_params
from portwright.job.signals import StopSignals
from portwright.runtime.backend import TorchBackend
from portwright.runtime.trainer import Outcome, Trainer
from portwright.target import JobSpec

torch.set_num_threads(1)
BATCH = 64
Batches = Callable[[], Any]


def make_model(sizes: tuple[int, ...] = (784, 128, 10)) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for size, next_size in pairwise(sizes):
        layers += [nn.Linear(size, next_size), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def make_data(num_batches: int, batch: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(num_batches * batch, 784, generator=generator), torch.randint(
        0, 10, (num_batches * batch,), generator=generator
    )


def make_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)


class InMemory:
    """Lightning takes a list for a list of loaders."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __iter__(self) -> Any:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def endless(batches: Any) -> Any:
    while True:
        yield from batches


def plain(batches: Batches, num_steps: int) -> float:
    model, loss_fn = make_model(), nn.CrossEntropyLoss()
    optimizer, source = make_sgd(model), endless(batches())
    started = time.perf_counter()
    for _ in range(num_steps):
        x, y = next(source)
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return num_steps / (time.perf_counter() - started)


class WithLoss(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.loss_fn = net, nn.CrossEntropyLoss()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.loss_fn(self.net(x), y)
        return loss


PARAMS = """
optimizer: {{optimizer_type: SGD, learning_rate: 0.01, momentum: 0.9}}
runconfig: {{max_steps: {steps}, log_steps: {log}, checkpoint_steps: {checkpoint}, max_checkpoints: 2, seed: 0}}
"""


def ours(
    batches: Batches,
    num_steps: int,
    checkpoint_steps: int | None = None,
    model: Callable[[], nn.Module] = make_model,
) -> float:
    """The whole trainer: session, log files, progress, NaN checks, checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "params.yaml"
        path.write_text(
            PARAMS.format(
                steps=num_steps,
                log=50,
                checkpoint=num_steps if checkpoint_steps is None else checkpoint_steps,
            )
        )
        params = load_params(path)
        backend = TorchBackend("cpu", {}, lambda text: None)
        session = backend.open(
            JobSpec(params, lambda _: WithLoss(model()), lambda _: batches(), None, "train")
        )
        with contextlib.redirect_stderr(io.StringIO()), StopSignals() as signals:
            outcome = Outcome("train", "CPU", folder)
            trainer = Trainer(
                session,
                params.runconfig,
                Path(folder),
                backend.world,
                signals,
                Console(level="INFO"),
                outcome,
            )
            trainer.train(evaluates=False)
        session.close()
        return num_steps / outcome.seconds


def fabric(batches: Batches, num_steps: int) -> float:
    from lightning.fabric import Fabric

    runner = Fabric(accelerator="cpu", devices=1)
    raw, loss_fn = make_model(), nn.CrossEntropyLoss()
    model, optimizer = runner.setup(raw, make_sgd(raw))
    given = batches()
    source = endless(runner.setup_dataloaders(given) if isinstance(given, DataLoader) else given)
    started = time.perf_counter()
    for _ in range(num_steps):
        x, y = next(source)
        loss = loss_fn(model(x), y)
        runner.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return num_steps / (time.perf_counter() - started)


def accelerate(batches: Batches, num_steps: int) -> float:
    from accelerate import Accelerator

    runner = Accelerator(cpu=True)
    raw, loss_fn = make_model(), nn.CrossEntropyLoss()
    given = batches()
    model, optimizer = runner.prepare(raw, make_sgd(raw))
    source = endless(runner.prepare(given) if isinstance(given, DataLoader) else given)
    started = time.perf_counter()
    for _ in range(num_steps):
        x, y = next(source)
        loss = loss_fn(model(x), y)
        runner.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return num_steps / (time.perf_counter() - started)


def lightning(batches: Batches, num_steps: int, everything: bool = False) -> float:
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.loss_fn = make_model(), nn.CrossEntropyLoss()
            self.started = self.ended = 0.0

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            x, y = batch
            loss: torch.Tensor = self.loss_fn(self.net(x), y)
            if everything:
                self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_sgd(self.net)

        def on_train_start(self) -> None:
            self.started = time.perf_counter()

        def on_train_end(self) -> None:
            self.ended = time.perf_counter()

    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        options: dict[str, Any] = (
            {}
            if everything
            else {
                "logger": False,
                "enable_checkpointing": False,
                "enable_progress_bar": False,
                "enable_model_summary": False,
            }
        )
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=1,
            max_steps=num_steps,
            max_epochs=-1,
            default_root_dir=folder,
            **options,
        )
        module = Module()
        given = batches()
        trainer.fit(module, given if isinstance(given, DataLoader) else InMemory(given))
        return num_steps / (module.ended - module.started)


def checkpoint_cost(quick: bool) -> tuple[dict[str, list[float]], float]:
    """Steps of 20 ms and more with and without a checkpoint every 50 steps."""
    sizes, batch = (784, 1024, 1024, 10), 512
    x, y = make_data(8, batch)
    batches = [(x[i : i + batch], y[i : i + batch]) for i in range(0, len(x), batch)]
    num_steps = 100 if quick else 300
    results = interleave(
        {
            "without": lambda: ours(lambda: batches, num_steps, 0, lambda: make_model(sizes)),
            "with": lambda: ours(lambda: batches, num_steps, 50, lambda: make_model(sizes)),
        },
        2 if quick else 9,
    )
    return results, 1000 / statistics.median(results["without"])


def main() -> int:
    arguments = parse_arguments(__doc__)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    num_steps, num_rounds = (400, 2) if arguments.quick else (2000, 11)
    x, y = make_data(200)
    in_memory = [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(x), BATCH)]
    sources: dict[str, Batches] = {
        "in-memory batches": lambda: in_memory,
        "DataLoader": lambda: DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True),
    }
    contestants: dict[str, Callable[[Batches, int], float]] = {
        "plain PyTorch loop": plain,
        "Portwright": ours,
        "Lightning Fabric": fabric,
        "Accelerate": accelerate,
        "Lightning, everything off": lightning,
        "Lightning default with self.log": lambda b, n: lightning(b, n, everything=True),
    }
    figures: dict[str, Any] = {}
    claims: list[Claim] = []
    for source_name, batches in sources.items():
        rates = interleave(
            {name: partial(f, batches, num_steps) for name, f in contestants.items()}, num_rounds
        )
        figures[source_name] = {
            name: {
                "steps_per_second": statistics.median(values),
                "ratio_to_plain": str(paired_ratio(values, rates["plain PyTorch loop"])),
            }
            for name, values in rates.items()
        }
        print(f"{source_name}:")
        for name, row in figures[source_name].items():
            print(f"  {name:<34}{row['steps_per_second']:>9.0f} steps/s   {row['ratio_to_plain']} of plain")
        ratio = paired_ratio(rates["Portwright"], rates["plain PyTorch loop"])
        claims.append(Claim(f"Portwright's loop against plain PyTorch with {source_name}", ratio, 0.97))
    results, step_ms = checkpoint_cost(arguments.quick)
    figures["checkpoint every 50 steps"] = {
        "step_milliseconds": step_ms,
        "steps_per_second": {k: statistics.median(v) for k, v in results.items()},
    }
    print(
        f"checkpoint every 50 steps, {step_ms:.1f} ms a step: {figures['checkpoint every 50 steps']['steps_per_second']}"
    )
    claims.append(
        Claim(
            "throughput with a checkpoint every 50 steps against none",
            paired_ratio(results["with"], results["without"]),
            0.98,
        )
    )
    import accelerate as accelerate_package
    import lightning as lightning_package

    return finish(
        arguments, claims, figures,
        torch=torch.__version__, lightning=lightning_package.__version__, accelerate=accelerate_package.__version__,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
