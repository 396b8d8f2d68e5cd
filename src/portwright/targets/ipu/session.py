"""A session through PopTorch, which wraps the model once to train and once for each shape to evaluate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from portwright.base_model import make_model
from portwright.errors import UnsupportedError
from portwright.runtime.compiled_session import CPU, CompiledSession, count_updates, take_weights
from portwright.runtime.inputs import explaining
from portwright.runtime.world import Launch, World, read_launch
from portwright.target import JobSpec, Lowered, Shard
from portwright.targets.emulated import import_vendor
from portwright.targets.ipu import optimizers
from portwright.targets.ipu.options import make_options, read_settings
from portwright.targets.ipu.programs import Programs, refusals
from portwright.targets.ipu.step import PREFIX, Step, TrainingFeed, begin_blocks, join
from portwright.watching.random_states import seed_all, untouched_rng
from portwright.watching.trees import make_mover

_GENERATIONS = {1: "Mk1", 2: "Mk2", 21: "Bow"}


class IpuSession(CompiledSession):
    """Trains, evaluates and predicts through PopTorch's public API; `is_offline` only compiles, for other machines' IPUs."""

    def __init__(
        self, job: JobSpec, poptorch: Any, note: Callable[[str], None], *, is_offline: bool = False
    ) -> None:
        super().__init__(job, note)
        self._poptorch, self._is_offline = poptorch, is_offline
        self._settings = read_settings(job.params, note)
        self._batches_per_step = self._settings.batches_per_step
        self.steps_per_call = self._settings.section.device_iterations
        seed_all(self._seed)
        self._module = make_model(job.model_fn, job.params.values, None)
        if self._settings.is_half:
            self._module.net.half()
        self._cast = make_mover(CPU, torch.float16 if self._settings.is_half else None) or (
            lambda batch: batch
        )
        self._step = Step(self._module, lambda loss: poptorch.identity_loss(loss, reduction="none"))
        begin_blocks(poptorch, self._step, self._module.net, self._settings.section)
        self._programs = Programs(poptorch, self._step, self._settings, note, is_offline=is_offline)
        self._num_updates = 0
        self._training: Any = None
        self._pending_rng: list[int] | None = None
        if job.mode in ("train", "train_and_eval"):
            self._open_training()

    def _open_training(self) -> None:
        spec, section = self._job.params.optimizer, self._settings.section
        self._refuse_own_optimizer("PopTorch trains with its own")
        self._train_loader = self._inputs.open("train_input", repeat=True)
        self._calls = self._feed = TrainingFeed(
            self._train_loader, self._settings.batches_per_call, self._cast, self._note
        )
        with refusals(self._poptorch, "the optimizer"):
            self._optimizer = optimizers.make_optimizer(
                self._poptorch, self._module.net, spec, is_half=self._settings.is_half, note=self._note
            )
        self._rate = spec.schedule(0)
        if section.device_iterations > 1 and not spec.schedule.is_constant:
            self._note(
                f"ipu.device_iterations: {section.device_iterations} updates of a call have the learning rate of the first of them."
            )
        if section.output_mode != "all" and self._settings.batches_per_call > 1:
            what = "the mean over a call" if section.output_mode == "sum" else "that of a call's last batch"
            self._note(f"ipu.output_mode: {section.output_mode}: a logged loss is {what}.")
        self._step.train()
        self._module.train()
        options = make_options(self._poptorch, self._settings, trains=True, is_offline=self._is_offline)
        with refusals(self._poptorch, "the training step"):
            self._training = self._poptorch.trainingModel(self._step, options, optimizer=self._optimizer)
        self._trained = {
            name: parameter
            for name, parameter in self._module.net.named_parameters()
            if parameter.requires_grad
        }

    # -- training ------------------------------------------------------------------------------------------

    def _update(self, step: int, rate: float) -> list[float]:
        self._set_learning_rate(rate)
        call = self._calls.next_call()
        self._num_samples += call.num_samples
        with refusals(self._poptorch, "the training step"):
            if not self._training.isCompiled():
                with self._step.tracing_as("train", call.batch):
                    self._training.compile(*call.tensors)
            if self._pending_rng is not None:
                self._training.rng_state = self._pending_rng
                self._pending_rng = None
            result = self._training(*call.tensors)
        self._num_updates += self.steps_per_call
        return self._losses_of(result.detach().double().reshape(-1))

    def _losses_of(self, values: Tensor) -> list[float]:
        """The mean loss over each step's batches, as far as the output mode gives losses."""
        if self._settings.section.output_mode == "all":
            means: list[float] = values.reshape(self.steps_per_call, -1).mean(1).tolist()
            return means
        if self._settings.section.output_mode == "sum":
            return [values.sum().item() / self._settings.batches_per_call] * self.steps_per_call
        return [values.mean().item()] * self.steps_per_call

    def _set_learning_rate(self, rate: float) -> None:
        if rate == self._rate:
            return
        self._rate = rate
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        with refusals(self._poptorch, "the optimizer"):
            self._training.setOptimizer(self._optimizer)

    # -- evaluation ----------------------------------------------------------------------------------------

    def evaluate(
        self, num_steps: int | None, on_step: Callable[[int], None] | None = None
    ) -> dict[str, float]:
        """Loss and metrics over the evaluation data; short last batches count by their samples."""
        return self._average(self._evaluated(num_steps), on_step)

    def _evaluated(self, num_steps: int | None) -> Iterator[tuple[float, int]]:
        """Updates the metrics with each batch, and yields its loss and number of samples."""
        for traced, (loss, *inputs), size in self._run("eval", num_steps):
            traced.update_metrics(inputs)
            yield float(loss), size

    def predict(self, num_steps: int | None) -> Iterator[Mapping[str, Tensor]]:
        for traced, outputs, _ in self._run("predict", num_steps):
            yield dict(zip(traced.names, outputs, strict=True))

    def _run(self, phase: Any, num_steps: int | None) -> Iterator[Any]:
        """Runs a program on the evaluation data; yields each batch's trace, outputs and number of samples."""
        loader = self._fresh_eval_loader()
        self._free_the_ipus()
        with untouched_rng(CPU), torch.no_grad(), explaining(loader):
            batches = ((self._cast(batch), loader.last_counts[0]) for batch in islice(loader, num_steps))
            try:
                yield from self._programs.run(phase, batches)
            finally:
                self._programs.let_go()
        self._inputs.tell_notes(loader)

    def _is_on_device(self) -> bool:
        return bool(
            self._training is not None and self._training.isCompiled() and self._training.isAttachedToDevice()
        )

    def _bring_weights_home(self) -> None:
        if self._is_on_device():
            self._training.copyWeightsToHost()

    def _free_the_ipus(self) -> None:
        """Detaches the training program; weights and optimizer state go to the host."""
        if self._is_on_device():
            self._training.copyWeightsToHost()
            self._training.detachFromDevice()
        self._programs.forget_weights()

    # -- the vendor's compiler -------------------------------------------------------------------------------

    def lower(self, phases: tuple[str, ...]) -> Lowered:
        return self._compile(phases, None)

    def compile(self, folder: Path, phases: tuple[str, ...]) -> Lowered:
        folder.mkdir(parents=True, exist_ok=True)
        return self._compile(phases, folder)

    def _compile(self, phases: tuple[str, ...], folder: Path | None) -> Lowered:
        """Compiles each phase for its first batch, and with a folder leaves the executables there; no IPU is needed."""
        generation = _GENERATIONS[self._settings.section.offline_target]
        version = self._poptorch.__version__
        lines, rows = [], []
        for wanted in phases:
            trains = wanted == "train"
            batch = self._cast(self.sample_batches("train_input" if trains else "eval_input", 1)[0])
            num_batches = self._settings.batches_per_call if trains else self._settings.eval_iterations
            phase: Any = "predict" if self._job.mode == "predict" else wanted
            executor = self._training if phase == "train" else self._programs.get(phase, batch).executor
            tensors = join([batch] * num_batches)
            row: dict[str, Any] = {"step": phase, "batches_per_call": num_batches}
            with self._step.tracing_as(phase, batch), refusals(self._poptorch, f"the {phase} step"):
                if folder is None:
                    executor.compile(*tensors)
                else:
                    path = folder / f"{phase}.poptorch"
                    executor.compileAndExport(str(path), *tensors, export_model=False)
                    row |= {"file": str(path), "bytes": path.stat().st_size}
            rows.append(row)
            kept = f" into {row['file']}" if folder is not None else ""
            lines.append(
                f"the {phase} step compiles for {generation} IPUs (PopTorch {version}){kept}; {num_batches} batch(es) a call"
            )
        return Lowered(tuple(lines), {"accepted": True, "poptorch": str(version), "steps": rows})

    # -- state ---------------------------------------------------------------------------------------------

    def _optimizer_state(self) -> Iterator[tuple[str, Tensor]]:
        spec = self._job.params.optimizer
        yield from optimizers.read_state(self._optimizer, self._trained, spec, PREFIX, self._num_updates)

    def state(self) -> Iterator[Shard]:
        yield from super().state()
        drawn = self._pending_rng
        if drawn is None and self._training is not None and self._training.isCompiled():
            drawn = [int(number) for number in self._training.rng_state or ()]
        if drawn:
            # Unsigned 64-bit numbers, as the int64 of the same bits.
            signed = [number - 2**64 if number >= 2**63 else number for number in drawn]
            yield Shard("rng/0/ipu", torch.tensor(signed))

    def counters(self) -> dict[str, Any]:
        version = str(self._poptorch.__version__)
        return {**super().counters(), "num_updates": self._num_updates, "poptorch": version}

    def load_state(self, shards: Iterable[Shard], counters: Mapping[str, Any] | None) -> None:
        states, generators = take_weights(shards, self._own_weights(), self._note)
        self._programs.forget_weights()
        if self._is_on_device():  # else they are written when the program is attached
            self._training.copyWeightsToDevice()
        if counters is None or self._training is None:
            return
        optimizers.load_state(self._optimizer, self._trained, self._job.params.optimizer, PREFIX, states)
        self._num_updates = int(counters.get("num_updates", count_updates(states)))
        drawn, version = generators.pop("ipu", None), counters.get("poptorch")
        self._pending_rng = None if drawn is None else [number % 2**64 for number in drawn.tolist()]
        if version != self._poptorch.__version__:
            self._pending_rng = None
            self._note(
                f"the checkpoint is of {'another target' if version is None else f'PopTorch {version}'}: what the IPU draws at random, "
                "such as dropout, starts anew."
            )
        self._go_on_from(counters, generators)

    def close(self) -> None:
        self._programs.close()
        if self._training is not None:
            self._training.destroy()
        super().close()


class IpuBackend:
    """Opens sessions only through PopTorch's public API, which the emulator has too."""

    def __init__(self, flags: Mapping[str, Any], note: Callable[[str], None]) -> None:
        num_processes = read_launch().world_size
        if num_processes > 1:
            raise UnsupportedError(
                f"IPU was started in {num_processes} processes.",
                "Start one, and set ipu.replication_factor: PopTorch spreads a model over IPUs by itself.",
            )
        self.world = World(Launch(), "cpu", None)
        self.poptorch, self.emulates = import_vendor("poptorch", flags)
        self._flags, self._note = flags, note

    def open(self, job: JobSpec) -> IpuSession:
        is_offline = bool(self._flags.get("validate_only") or self._flags.get("compile_only"))
        return IpuSession(job, self.poptorch, self._note, is_offline=is_offline)

    def close(self) -> None:
        self.world.close()
