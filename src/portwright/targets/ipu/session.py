"""A model in PopTorch's hands: wrapped once to train and once a shape to evaluate, its weights on the device in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from portwright.data.loader import ResumableLoader
from portwright.errors import NonFiniteError, UnsupportedError, UserError
from portwright.runtime import metrics
from portwright.runtime.base_model import make_model
from portwright.runtime.batches import make_mover
from portwright.runtime.inputs import Inputs, explaining
from portwright.runtime.rng import capture_rng, restore_rng, seed_all, untouched_rng
from portwright.runtime.take_state import count_updates, take_weights
from portwright.target import Event, JobSpec, Lowered, Shard, Stretch
from portwright.targets.ipu import optimizers
from portwright.targets.ipu.blocks import begin_blocks
from portwright.targets.ipu.feed import TrainingFeed
from portwright.targets.ipu.options import make_options, read_settings
from portwright.targets.ipu.programs import Programs, refusals
from portwright.targets.ipu.step import PREFIX, Step

_CPU = torch.device("cpu")


class IpuSession:
    """Trains, evaluates and predicts through PopTorch's public API; `is_offline` compiles alone, for IPUs elsewhere."""

    def __init__(
        self, job: JobSpec, poptorch: Any, note: Callable[[str], None], *, is_offline: bool = False
    ) -> None:
        self._job, self._poptorch, self._note, self._is_offline = job, poptorch, note, is_offline
        self._seed = job.params.runconfig.seed
        self._settings = read_settings(job.params, note)
        seed_all(self._seed)
        self._module = make_model(job.model_fn, job.params.values, None)
        if self._settings.is_half:
            self._module.net.half()
        self._prepare = make_mover(_CPU, torch.float16 if self._settings.is_half else None) or _unchanged
        self._step = Step(self._module, lambda loss: poptorch.identity_loss(loss, reduction="none"))
        begin_blocks(poptorch, self._step, self._module.net, self._settings.section)
        self._programs = Programs(poptorch, self._step, self._settings, note, is_offline=is_offline)
        self._inputs = Inputs(job, note)
        self._eval_loader: ResumableLoader | None = None
        self._losses: list[float] = []
        self._num_samples, self._num_updates = 0, 0
        self._training: Any = None
        self._pending_rng: list[int] | None = None
        if job.mode in ("train", "train_and_eval"):
            self._open_training()

    def _open_training(self) -> None:
        spec, section = self._job.params.optimizer, self._settings.section
        own = self._module.own_optimizer()
        if own is not None:
            raise UnsupportedError(
                f"the model brings its own optimizer, {type(own).__module__}.{type(own).__name__}, and PopTorch trains with its own.",
                "Describe it in the section optimizer of params.yaml, and let get_optimizer() return None.",
            )
        self._train_loader = self._inputs.open("train_input", repeat=True)
        self._feed = TrainingFeed(
            self._train_loader, self._settings.batches_per_call, self._prepare, self._note
        )
        with refusals(self._poptorch, "the optimizer"):
            self._optimizer = optimizers.make_optimizer(
                self._poptorch, self._module.net, spec, is_half=self._settings.is_half, note=self._note
            )
        self._schedule, self._rate = spec.schedule, spec.schedule(0)
        if section.device_iterations > 1 and not self._schedule.is_constant:
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

    def steps_in(self, num_epochs: int) -> int | None:
        if self._training is None or self._feed.full_batches is None:
            return None
        num_steps = self._feed.full_batches * num_epochs // self._settings.batches_per_step
        return num_steps - num_steps % self.steps_per_call

    @property
    def steps_per_call(self) -> int:
        return self._settings.section.device_iterations

    def sample_batches(self, name: str, num_batches: int) -> list[Any]:
        with untouched_rng(_CPU):
            return self._inputs.first_batches(name, num_batches)

    def train(self, stretch: Stretch) -> Iterator[Event]:
        with explaining(self._train_loader):
            yield from self._train(stretch)

    def _train(self, stretch: Stretch) -> Iterator[Event]:
        step = stretch.first_step
        while step < stretch.last_step:
            self._set_learning_rate(step)
            losses = self._update(step)
            self._losses += losses
            step += self.steps_per_call
            self._num_updates += self.steps_per_call
            stopping = stretch.should_stop()
            if stretch.is_logged(step) or stopping:
                self._inputs.tell_notes(self._train_loader)
                values = {"loss": self._losses[-1], "learning_rate": self._rate}
                yield Event(
                    "log", step, {**values, "num_samples": float(self._num_samples)}, tuple(self._losses)
                )
                self._losses.clear()
            if stretch.is_boundary(step) or stopping:
                yield Event("boundary", step)
            if stopping:
                return

    def _update(self, step: int) -> list[float]:
        """One call of the device: as many updates as it makes by itself; gives their losses."""
        call = self._feed.next_call()
        self._num_samples += call.num_samples
        with refusals(self._poptorch, "the training step"):
            if not self._training.isCompiled():
                with self._step.tracing_as("train", call.batch):
                    self._training.compile(*call.tensors)
            if self._pending_rng is not None:
                self._training.rng_state = self._pending_rng
                self._pending_rng = None
            result = self._training(*call.tensors)
        losses = self._losses_of(result.detach().double().reshape(-1))
        for index, loss in enumerate(losses if self._job.params.runconfig.check_loss_values else ()):
            if not math.isfinite(loss):
                raise NonFiniteError(
                    f"the loss is {loss} at step {step + index + 1}.",
                    "Lower the learning rate, or look at the data; the same step on CPU says where it comes from.",
                )
        return losses

    def _losses_of(self, values: Tensor) -> list[float]:
        """The mean over the batches of each step, as far as the output mode lets it be known."""
        if self._settings.section.output_mode == "all":
            means: list[float] = values.reshape(self.steps_per_call, -1).mean(1).tolist()
            return means
        if self._settings.section.output_mode == "sum":
            return [values.sum().item() / self._settings.batches_per_call] * self.steps_per_call
        return [values.mean().item()] * self.steps_per_call

    def _set_learning_rate(self, step: int) -> None:
        rate = self._schedule(step)
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
        metrics.reset_all_metrics()
        total, num_samples = 0.0, 0
        for num_done, (traced, (loss, *inputs), size) in enumerate(self._run("eval", num_steps), start=1):
            total += float(loss) * size
            num_samples += size
            traced.update_metrics(inputs)
            if on_step is not None:
                on_step(num_done)
        if num_samples == 0:
            raise UserError("the evaluation saw no sample.", "Look at eval_input and runconfig.eval_steps.")
        return {"loss": total / num_samples, **metrics.compute_all_metrics(say=self._note)}

    def predict(self, num_steps: int | None) -> Iterator[Mapping[str, Tensor]]:
        for traced, outputs, _ in self._run("predict", num_steps):
            yield dict(zip(traced.names, outputs, strict=True))

    def _run(self, phase: Any, num_steps: int | None) -> Iterator[Any]:
        """Every batch of the evaluation data through a program: what was traced, its outputs, its samples."""
        loader = self._fresh_eval_loader()
        self._bring_weights_home()
        with untouched_rng(_CPU), torch.no_grad(), explaining(loader):
            batches = ((self._prepare(batch), loader.last_counts[0]) for batch in islice(loader, num_steps))
            try:
                yield from self._programs.run(phase, batches)
            finally:
                self._programs.let_go()
        self._inputs.tell_notes(loader)

    def _fresh_eval_loader(self) -> ResumableLoader:
        if self._eval_loader is None:
            # At the same place of the same stream in every run, as torch's session does.
            with untouched_rng(_CPU):
                seed_all(self._seed)
                self._eval_loader = self._inputs.open("eval_input", repeat=False)
        return self._eval_loader

    def _is_on_device(self) -> bool:
        return bool(
            self._training is not None and self._training.isCompiled() and self._training.isAttachedToDevice()
        )

    def _bring_weights_home(self) -> None:
        """Weights and optimizer state to the host, and the IPUs free for another program."""
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
        from portwright.targets.ipu.offline import compile_phases

        return compile_phases(
            self._poptorch, self._programs, self._training, self._settings, self._first_calls(phases), folder
        )

    def _first_calls(self, phases: tuple[str, ...]) -> Iterator[tuple[Any, Any, int]]:
        """Each phase, a batch of it, and how many batches a call takes."""
        for phase in phases:
            trains = phase == "train"
            batch = self._prepare(self.sample_batches("train_input" if trains else "eval_input", 1)[0])
            count = self._settings.batches_per_call if trains else self._settings.eval_iterations
            mode = "predict" if self._job.mode == "predict" else phase
            yield mode, batch, count

    # -- state ---------------------------------------------------------------------------------------------

    def state(self) -> Iterator[Shard]:
        if self._is_on_device():
            self._training.copyWeightsToHost()
        for name, tensor in self._module.net.state_dict().items():
            if isinstance(tensor, Tensor):
                yield Shard(f"model/{name}", tensor.detach().clone().as_subclass(Tensor))
        if self._training is not None:
            spec = self._job.params.optimizer
            for name, tensor in optimizers.read_state(
                self._optimizer, self._trained, spec, PREFIX, self._num_updates
            ):
                yield Shard(f"optimizer/{name}", tensor)
        for name, tensor in capture_rng(_CPU).items():
            yield Shard(f"rng/0/{name}", tensor)
        drawn = self._device_rng()
        if drawn:
            yield Shard("rng/0/ipu", torch.tensor([_signed(number) for number in drawn]))

    def _device_rng(self) -> list[int] | None:
        if self._pending_rng is not None or self._training is None or not self._training.isCompiled():
            return self._pending_rng
        return [int(number) for number in self._training.rng_state or ()]

    def counters(self) -> dict[str, Any]:
        return {
            "data": self._train_loader.position(),
            "num_samples": self._num_samples,
            "num_updates": self._num_updates,
            "unlogged_losses": list(self._losses),
            "scaler": None,
            "world_size": 1,
            "poptorch": str(self._poptorch.__version__),
        }

    def load_state(self, shards: Iterable[Shard], counters: Mapping[str, Any] | None) -> None:
        own = {k: v for k, v in self._module.net.state_dict().items() if isinstance(v, Tensor)}
        states, generators = take_weights(shards, own, self._note)
        self._programs.forget_weights()
        if self._is_on_device():  # else they go there when it is attached
            self._training.copyWeightsToDevice()
        if counters is None or self._training is None:
            return
        optimizers.load_state(self._optimizer, self._trained, self._job.params.optimizer, PREFIX, states)
        self._train_loader.seek(counters["data"])
        self._feed.restart()
        self._num_samples = int(counters["num_samples"])
        self._num_updates = int(counters.get("num_updates", count_updates(states)))
        self._losses[:] = counters.get("unlogged_losses", [])
        drawn, version = generators.pop("ipu", None), counters.get("poptorch")
        self._pending_rng = None if drawn is None else [number % 2**64 for number in drawn.tolist()]
        if version != self._poptorch.__version__:
            self._pending_rng = None
            self._note(
                f"the checkpoint is of {'another target' if version is None else f'PopTorch {version}'}: what the IPU draws at random, "
                "such as dropout, starts anew."
            )
        restore_rng(generators, _CPU)

    def close(self) -> None:
        self._programs.close()
        if self._training is not None:
            self._training.destroy()
            self._feed.restart()
            self._train_loader.close()
        if self._eval_loader is not None:
            self._eval_loader.close()


def _signed(number: int) -> int:
    """A 64-bit number as int64 holds it."""
    return number - 2**64 if number >= 2**63 else number


def _unchanged(batch: Any) -> Any:
    return batch
