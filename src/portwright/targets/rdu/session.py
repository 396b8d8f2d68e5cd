"""A model in SambaFlow's hands: it trains on the device, and comes to the host to be evaluated and saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from portwright.data.loader import ResumableLoader
from portwright.errors import NonFiniteError, UnsupportedError, UserError
from portwright.runtime import metrics
from portwright.runtime.base_model import make_model, split_loss
from portwright.runtime.batches import name_outputs
from portwright.runtime.fixed_shape import FixedShapeFeed
from portwright.runtime.inputs import Inputs, explaining
from portwright.runtime.rng import capture_rng, restore_rng, seed_all, untouched_rng
from portwright.runtime.take_state import take_weights
from portwright.target import Event, JobSpec, Lowered, Shard, Stretch, World
from portwright.targets.rdu import optimizers
from portwright.targets.rdu.program import Program
from portwright.targets.rdu.settings import Settings
from portwright.targets.rdu.step import Step

_CPU = torch.device("cpu")


class RduSession:
    """Trains through SambaFlow's public API; evaluates and predicts on the host, as SambaNova's tutorials do."""

    def __init__(self, job: JobSpec, settings: Settings, world: World, note: Callable[[str], None]) -> None:
        self._job, self._settings, self._world, self._note = job, settings, world, note
        self._seed = job.params.runconfig.seed
        seed_all(self._seed)
        self._module = make_model(job.model_fn, job.params.values, None)
        self._inputs = Inputs(job, note, rank=world.rank, world_size=world.size)
        self._eval_loader: ResumableLoader | None = None
        self._losses: list[float] = []
        self._num_samples = 0
        self._program: Program | None = None
        if job.mode in ("train", "train_and_eval"):
            self._open_training()

    def _open_training(self) -> None:
        own = self._module.own_optimizer()
        if own is not None:
            raise UnsupportedError(
                f"the model brings its own optimizer, {type(own).__module__}.{type(own).__name__}, and an RDU trains with samba.optim's.",
                "Describe it in the section optimizer of params.yaml, and let get_optimizer() return None.",
            )
        spec = self._job.params.optimizer
        self._train_loader = self._inputs.open("train_input", repeat=True)
        self._feed = FixedShapeFeed(self._train_loader, "a PEF", self._note)
        if self._train_loader.batch_size is not None:
            self._settings.check_batch(self._train_loader.batch_size // self._world.size)
        step = Step(self._module)
        self._module.train()
        self._optimizers = optimizers.make_optimizers(
            import_module("sambaflow.samba"), self._module.net, spec, self._note
        )
        title = type(self._module.__dict__["user_model"]).__name__
        self._program = Program(step, self._optimizers, spec, self._settings, title, self._note)
        self._schedule = spec.schedule
        trained = {id(p) for o in self._optimizers for group in o.param_groups for p in group["params"]}
        self._trained: dict[Tensor, str] = {
            parameter: name
            for name, parameter in self._module.net.named_parameters()
            if id(parameter) in trained
        }

    def _training(self) -> Program:
        if self._program is None:
            raise UserError(f"mode {self._job.mode} does not train.", "Use --mode train.")
        return self._program

    # -- training ------------------------------------------------------------------------------------------

    def steps_in(self, num_epochs: int) -> int | None:
        if self._program is None or self._feed.full_batches is None:
            return None
        return self._feed.full_batches * num_epochs

    @property
    def steps_per_call(self) -> int:
        return 1

    def sample_batches(self, name: str, num_batches: int) -> list[Any]:
        with untouched_rng(_CPU):
            return self._inputs.first_batches(name, num_batches)

    def train(self, stretch: Stretch) -> Iterator[Event]:
        self._training()
        with explaining(self._train_loader):
            yield from self._train(stretch)

    def _train(self, stretch: Stretch) -> Iterator[Event]:
        step = stretch.first_step
        while step < stretch.last_step:
            rate = self._schedule(step)
            self._losses.append(self._update(step, rate))
            step += 1
            stopping = stretch.should_stop()
            if stretch.is_logged(step) or stopping:
                self._inputs.tell_notes(self._train_loader)
                values = {"loss": self._losses[-1], "learning_rate": rate}
                yield Event(
                    "log", step, {**values, "num_samples": float(self._num_samples)}, tuple(self._losses)
                )
                self._losses.clear()
            if stretch.is_boundary(step) or stopping:
                yield Event("boundary", step)
            if stopping:
                return

    def _update(self, step: int, rate: float) -> float:
        program = self._training()
        batch = self._feed.next_batch()
        self._num_samples += self._train_loader.last_counts[1]
        if not program.is_traced:
            program.trace(batch)
        loss = float(program.run(batch, rate))
        if self._job.params.runconfig.check_loss_values and not math.isfinite(loss):
            raise NonFiniteError(
                f"the loss is {loss} at step {step + 1}.",
                "Lower the learning rate, or look at the data; the same step on CPU says where it comes from.",
            )
        return loss

    # -- evaluation ----------------------------------------------------------------------------------------

    def evaluate(
        self, num_steps: int | None, on_step: Callable[[int], None] | None = None
    ) -> dict[str, float]:
        """Loss and metrics over the evaluation data, on the host; short last batches count by their samples."""
        loader = self._fresh_eval_loader()
        metrics.reset_all_metrics()
        total, num_samples = 0.0, 0
        with explaining(loader), self._on_the_host():
            for index, batch in enumerate(islice(loader, num_steps)):
                size = loader.last_counts[0]
                loss, _ = split_loss(self._module.call(batch))
                total += float(loss.double()) * size
                num_samples += size
                if on_step is not None:
                    on_step(index + 1)
        self._inputs.tell_notes(loader)
        if num_samples == 0:
            raise UserError("the evaluation saw no sample.", "Look at eval_input and runconfig.eval_steps.")
        return {"loss": total / num_samples, **metrics.compute_all_metrics(say=self._note)}

    def predict(self, num_steps: int | None) -> Iterator[Mapping[str, Tensor]]:
        loader = self._fresh_eval_loader()
        with explaining(loader), self._on_the_host():
            for batch in islice(loader, num_steps):
                outputs = self._module.predict(batch)
                yield {name: tensor.detach() for name, tensor in name_outputs(outputs)}

    def _fresh_eval_loader(self) -> ResumableLoader:
        if self._eval_loader is None:
            # At the same place of the same stream in every run, as torch's session does.
            with untouched_rng(_CPU):
                seed_all(self._seed)
                self._eval_loader = self._inputs.open("eval_input", repeat=False)
        return self._eval_loader

    @contextmanager
    def _on_the_host(self) -> Iterator[None]:
        """Evaluation mode with the device's weights, without gradients and without a trace on training."""
        if self._program is not None:
            self._program.to_host()
        with untouched_rng(_CPU), torch.no_grad():
            self._module.eval()
            try:
                yield
            finally:
                self._module.train()

    # -- the vendor's compiler -----------------------------------------------------------------------------

    def lower(self, phases: tuple[str, ...]) -> Lowered:
        """Compiles, and compares the loss of one batch on the device with the host's; writes no weights."""
        if self._program is None:
            return Lowered(("evaluation runs on the host: there is nothing to compile.",), {})
        batch = self._first_batch()
        self._program.trace(batch)
        with untouched_rng(_CPU):
            on_device = float(self._program.forward(batch))
        with untouched_rng(_CPU), torch.no_grad():
            on_host = float(split_loss(self._module.call(batch))[0])
        where = "emulated RDU" if self._settings.is_emulated else "RDU"
        lines = (
            f"PEF: {self._program.pef}",
            f"one batch: loss {on_device:.6g} on the {where} ({self._settings.precision}), {on_host:.6g} on the host",
        )
        details = {"pef": str(self._program.pef), "loss": on_device, "host_loss": on_host}
        return Lowered(lines, {**details, "precision": self._settings.precision})

    def compile(self, folder: Path, phases: tuple[str, ...]) -> Lowered:
        """Leaves a PEF in the folder of the settings, which is `folder` unless --output-folder names another."""
        if self._program is None:
            return Lowered(("evaluation runs on the host: there is nothing to compile.",), {})
        pef = self._program.compile(self._first_batch())
        what = "emulated PEF, which no RDU can run" if self._settings.is_emulated else "PEF"
        lines = (f"compiled an {what}: {pef}" if what[0] == "e" else f"compiled a {what}: {pef}",)
        return Lowered((*lines, f"train with it: python run.py RDU run --pef={pef} ..."), {"pef": str(pef)})

    def _first_batch(self) -> Any:
        batches = self.sample_batches("train_input", 1)
        if not batches:
            raise UserError("train_input gives no batch.", "Look at train_input.")
        return batches[0]

    # -- state ---------------------------------------------------------------------------------------------

    def state(self) -> Iterator[Shard]:
        if self._program is not None:
            self._program.to_host()
        for name, tensor in self._module.net.state_dict().items():
            if isinstance(tensor, Tensor):
                yield Shard(f"model/{name}", tensor.detach().clone())
        if self._program is not None:
            spec = self._job.params.optimizer
            for name, tensor in optimizers.read_state(self._optimizers, self._trained, spec):
                yield Shard(f"optimizer/{name}", tensor)
        for name, tensor in capture_rng(_CPU).items():
            yield Shard(f"rng/{self._world.rank}/{name}", tensor)

    def counters(self) -> dict[str, Any]:
        self._training()
        return {
            "data": self._train_loader.position(),
            "num_samples": self._num_samples,
            "unlogged_losses": list(self._losses),
            "scaler": None,
            "world_size": self._world.size,
        }

    def load_state(self, shards: Iterable[Shard], counters: Mapping[str, Any] | None) -> None:
        own = {k: v for k, v in self._module.net.state_dict().items() if isinstance(v, Tensor)}
        states, generators = take_weights(shards, own, self._note, rank=self._world.rank)
        if counters is not None and self._program is not None:
            optimizers.load_state(self._optimizers, self._trained, self._job.params.optimizer, states)
            self._train_loader.seek(counters["data"])
            self._feed.restart()
            self._num_samples = int(counters["num_samples"])
            self._losses[:] = counters.get("unlogged_losses", [])
            restore_rng(generators, _CPU)
        if self._program is not None:
            self._program.to_device()

    def close(self) -> None:
        if self._program is not None:
            self._feed.restart()
            self._train_loader.close()
        if self._eval_loader is not None:
            self._eval_loader.close()
