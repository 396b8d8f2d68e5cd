"""A session through SambaFlow: it trains on the device, and evaluates and saves on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from portwright.base_model import make_model, split_loss
from portwright.errors import UnsupportedError, UserError
from portwright.runtime.compiled_session import CPU, CompiledSession, take_weights
from portwright.runtime.fixed_shape import FixedShapeFeed
from portwright.runtime.inputs import explaining
from portwright.runtime.world import World, read_launch
from portwright.target import JobSpec, Lowered, Shard
from portwright.targets.emulated import import_vendor
from portwright.targets.rdu import optimizers
from portwright.targets.rdu.program import Program, Step
from portwright.targets.rdu.section import Settings, read_settings
from portwright.watching.random_states import seed_all, untouched_rng
from portwright.watching.trees import name_outputs


class RduSession(CompiledSession):
    """Trains through SambaFlow's public API; evaluates and predicts on the host, as SambaNova's tutorials do."""

    def __init__(self, job: JobSpec, settings: Settings, world: World, note: Callable[[str], None]) -> None:
        super().__init__(job, note, rank=world.rank, world_size=world.size)
        self._settings = settings
        seed_all(self._seed)
        self._module = make_model(job.model_fn, job.params.values, None)
        self._program: Program | None = None
        if job.mode in ("train", "train_and_eval"):
            self._open_training()

    def _open_training(self) -> None:
        self._refuse_own_optimizer("an RDU trains with samba.optim's")
        spec = self._job.params.optimizer
        self._train_loader = self._inputs.open("train_input", repeat=True)
        self._feed = FixedShapeFeed(self._train_loader, "a PEF", self._note)
        if self._train_loader.batch_size is not None:
            self._settings.check_batch(self._train_loader.batch_size // self._world_size)
        step = Step(self._module)
        self._module.train()
        self._optimizers = optimizers.make_optimizers(
            import_module("sambaflow.samba"), self._module.net, spec, self._note
        )
        title = type(self._module.__dict__["user_model"]).__name__
        self._program = Program(step, self._optimizers, spec, self._settings, title, self._note)
        trained = {id(p) for o in self._optimizers for group in o.param_groups for p in group["params"]}
        self._trained: dict[Tensor, str] = {
            parameter: name
            for name, parameter in self._module.net.named_parameters()
            if id(parameter) in trained
        }

    def _update(self, step: int, rate: float) -> list[float]:
        assert self._program is not None
        assert self._feed is not None
        batch = self._feed.next_batch()
        self._num_samples += self._train_loader.last_counts[1]
        if not self._program.is_traced:
            self._program.trace(batch)
        return [float(self._program.run(batch, rate))]

    # -- evaluation ----------------------------------------------------------------------------------------

    def evaluate(
        self, num_steps: int | None, on_step: Callable[[int], None] | None = None
    ) -> dict[str, float]:
        """Loss and metrics over the evaluation data, on the host; short last batches count by their samples."""
        with explaining(self._fresh_eval_loader()), self._on_the_host():
            return self._average(self._evaluated(num_steps), on_step)

    def _evaluated(self, num_steps: int | None) -> Iterator[tuple[float, int]]:
        """The loss and the samples of each batch."""
        loader = self._fresh_eval_loader()
        for batch in islice(loader, num_steps):
            size = loader.last_counts[0]
            yield float(split_loss(self._module.call(batch))[0].double()), size
        self._inputs.tell_notes(loader)

    def predict(self, num_steps: int | None) -> Iterator[Mapping[str, Tensor]]:
        loader = self._fresh_eval_loader()
        with explaining(loader), self._on_the_host():
            for batch in islice(loader, num_steps):
                outputs = self._module.predict(batch)
                yield {name: tensor.detach() for name, tensor in name_outputs(outputs)}

    @contextmanager
    def _on_the_host(self) -> Iterator[None]:
        """Within, the host's model is in evaluation mode with the device's weights; training is not affected."""
        self._bring_weights_home()
        with untouched_rng(CPU), torch.no_grad():
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
        with untouched_rng(CPU):
            on_device = float(self._program.forward(batch))
        with untouched_rng(CPU), torch.no_grad():
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
        what = "an emulated PEF, which no RDU can run" if self._settings.is_emulated else "a PEF"
        lines = (f"compiled {what}: {pef}", f"train with it: python run.py RDU run --pef={pef} ...")
        return Lowered(lines, {"pef": str(pef)})

    def _first_batch(self) -> Any:
        batches = self.sample_batches("train_input", 1)
        if not batches:
            raise UserError("train_input gives no batch.", "Look at train_input.")
        return batches[0]

    # -- state ---------------------------------------------------------------------------------------------

    def _bring_weights_home(self) -> None:
        if self._program is not None:
            self._program.to_host()

    def _optimizer_state(self) -> Iterator[tuple[str, Tensor]]:
        yield from optimizers.read_state(self._optimizers, self._trained, self._job.params.optimizer)

    def load_state(self, shards: Iterable[Shard], counters: Mapping[str, Any] | None) -> None:
        states, generators = take_weights(shards, self._own_weights(), self._note, rank=self._rank)
        if self._program is None:
            return
        if counters is not None:
            optimizers.load_state(self._optimizers, self._trained, self._job.params.optimizer, states)
            self._go_on_from(counters, generators)
        self._program.to_device()


class RduBackend:
    """Opens sessions only through SambaFlow's public API, which the emulator has too."""

    def __init__(self, flags: Mapping[str, Any], note: Callable[[str], None]) -> None:
        _, self.emulates = import_vendor("sambaflow", flags)
        launch = read_launch()
        if launch.world_size > 1 and self.emulates is not None:
            raise UnsupportedError(
                f"RDU was started in {launch.world_size} processes, and several RDUs are not emulated.",
                "Start one process.",
            )
        self.world = World(launch, "cpu", None)
        self._flags, self._note = flags, note

    def open(self, job: JobSpec) -> RduSession:
        settings = read_settings(
            job, self._flags, self._note, num_processes=self.world.size, is_emulated=self.emulates is not None
        )
        return RduSession(job, settings, self.world, self._note)

    def close(self) -> None:
        self.world.close()
