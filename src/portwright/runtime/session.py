"""The Session of PyTorch itself, on a CPU or a GPU, in one process or many."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from portwright.base_model import LossModule, make_model, split_loss
from portwright.data.loader import ResumableLoader
from portwright.errors import NonFiniteError, UserError
from portwright.runtime import metrics
from portwright.runtime.checkpoint import HostSnapshot, match_names
from portwright.runtime.distribute import (
    Strategy,
    choose_strategy,
    distribute,
    shard_like,
    sync_batchnorm,
)
from portwright.runtime.inputs import Inputs, explaining
from portwright.runtime.non_finite import MOST_UNREAD, LossWatch, explain_non_finite
from portwright.runtime.optimizers import (
    clip_gradients,
    gradient_norm,
    load_optimizer_state,
    make_optimizer,
    optimizer_state,
)
from portwright.runtime.precision import make_loss_scaler, resolve_precision
from portwright.runtime.shards import whole
from portwright.runtime.world import World
from portwright.target import Event, JobSpec, Shard, Stretch
from portwright.watching.random_states import capture_rng, restore_rng, seed_all, untouched_rng
from portwright.watching.trees import make_mover, name_outputs


class TorchSession:
    """Trains, evaluates and predicts with torch's own autograd and optimizers."""

    _sum_dtype = torch.float64  # of a loss summed over an evaluation

    def __init__(self, job: JobSpec, device: torch.device, world: World, note: Callable[[str], None]) -> None:
        params, config = job.params, job.params.runconfig
        self._job, self._device, self._world, self._note = job, device, world, note
        self._seed = config.seed
        # The same seed on every process while the model is made, so that all start from the same weights.
        seed_all(self._seed, device)
        self._precision = resolve_precision(params.values, config.precision, device.type)
        for line in self._precision.notes:
            note(line)
        self._autocast: Any = self._precision.autocast
        self._module = self._make_module()
        self._strategy = self._choose_strategy()
        self._place_model()
        self._called = distribute(self._module, self._strategy, world, device)
        self._move = make_mover(device, self._precision.batch_dtype)
        # Calling the user's model directly saves a module call a step where nothing is wrapped around it.
        self._forward = self._make_forward(self._called if self._strategy != "none" else self._module.call)
        self._forward_alone = self._make_forward(self._module)
        self._train_loader: ResumableLoader | None = None
        self._eval_loader: ResumableLoader | None = None
        self._batches: Iterator[Any] | None = None
        self._snapshot = HostSnapshot()
        rank, world_size = self._data_part
        self._inputs = Inputs(job, note, rank=rank, world_size=world_size)
        self._optimizer: torch.optim.Optimizer | None = None
        if job.mode in ("train", "train_and_eval"):
            self._open_training()
        if job.mode == "train_and_eval":
            self._fresh_eval_loader()  # faults of its data are found before the training
        if world.size > 1:
            seed_all(self._seed + world.rank, device)

    @property
    def _model_device(self) -> torch.device:
        """Where the user's model is made."""
        return self._device

    @property
    def _data_part(self) -> tuple[int, int]:
        """Which part of every batch this process reads, of how many."""
        return self._world.rank, self._world.size

    def _make_module(self) -> LossModule:
        return make_model(self._job.model_fn, self._job.params.values, self._model_device)

    def _choose_strategy(self) -> Strategy:
        return choose_strategy(self._job.params.runconfig.distributed, self._world)

    def _place_model(self) -> None:
        config = self._job.params.runconfig
        self._module.net.to(self._device)
        self._precision.prepare(self._module.net)
        if config.sync_batchnorm and self._world.size > 1:
            self._module.net = sync_batchnorm(self._module.net, self._device)
        if config.compile:
            self._compile()

    def _compile(self) -> None:
        self._module.net.compile()

    def _open_training(self) -> None:
        spec = self._job.params.optimizer
        self._train_loader = self._inputs.open("train_input", repeat=True)
        own = self._module.own_optimizer()
        self._optimizer = own if own is not None else make_optimizer(self._module.net, spec)
        self._named_weights = list(self._module.net.named_parameters())
        self._trained = [p for group in self._optimizer.param_groups for p in group["params"]]
        self._prepare_updates(has_own=own is not None)

    def _prepare_updates(self, has_own: bool) -> None:
        """Makes what a step needs besides the optimizer."""
        spec = self._job.params.optimizer
        # An optimizer of the user's own comes with a learning rate of its own.
        self._schedule = None if has_own else spec.schedule
        self._num_accumulated = spec.grad_accum_steps
        self._clips = spec.clips
        self._scaler = make_loss_scaler(spec, self._device.type, self._agree_on_overflow)
        self._measures_norm = spec.log_summaries and spec.max_gradient_norm is None
        self._norm: torch.Tensor | None = None
        self._num_samples = 0
        self._set_learning_rate(0)
        assert self._optimizer is not None
        self._watch = self._watch_losses(self._optimizer)

    # Called with the flag of an overflow, where other processes hold gradients too.
    _agree_on_overflow: Callable[[torch.Tensor], None] | None = None

    def _watch_losses(self, optimizer: torch.optim.Optimizer) -> LossWatch:
        checks = self._job.params.runconfig.check_loss_values
        return LossWatch(self._device, self._world, optimizer, checks=checks, scales=self._scaler is not None)

    @contextmanager
    def _explaining(self, loader: ResumableLoader | None) -> Iterator[None]:
        try:
            with explaining(loader):
                yield
        except RuntimeError as error:
            if "finished reduction" not in str(error):
                raise
            raise UserError(
                "some weights had no part in the loss of a step, and DDP waits for the gradient of every one.",
                "Use -D runconfig.distributed=fsdp, or remove or freeze (requires_grad=False) the unused ones.",
            ) from error

    # -- training ------------------------------------------------------------------------------------------

    def steps_in(self, num_epochs: int) -> int | None:
        if self._train_loader is None or self._train_loader.num_batches is None:
            return None
        return self._train_loader.num_batches * num_epochs // self._num_accumulated

    @property
    def steps_per_call(self) -> int:
        return 1

    def train(self, stretch: Stretch) -> Iterator[Event]:
        with self._explaining(self._train_loader):
            yield from self._train(stretch)

    def _train(self, stretch: Stretch) -> Iterator[Event]:
        assert self._train_loader is not None
        self._called.train()
        if self._batches is None:
            self._batches = iter(self._train_loader)
        watch, update = self._watch, self._update
        constant = self._schedule is None or self._schedule.is_constant
        should_stop = stretch.should_stop if self._world.size == 1 else self._agreed_stop(stretch.should_stop)
        step, last_step = stretch.first_step, stretch.last_step
        next_pause = self._next_pause(stretch, step)
        ranks = self._world.watch
        while step < last_step:
            if not constant:
                self._set_learning_rate(step)
            samples_before = self._num_samples
            try:
                watch.add(update(step))
            except SystemExit:
                if self._world.size == 1 and self._num_samples == samples_before:
                    # A loader ended the process between two steps: the weights so far are whole, and can be saved.
                    watch.read(step, self._recent_batch, self._explain)
                    if watch.losses:
                        yield Event("log", step, self._logged_values(), tuple(watch.losses))
                        watch.losses.clear()
                    yield Event("boundary", step)
                raise
            step += 1
            if ranks is not None:
                ranks.step = step
            stopping = should_stop()
            if step < next_pause and not stopping:
                continue
            next_pause = self._next_pause(stretch, step)
            watch.read(step, self._recent_batch, self._explain)
            if stretch.is_logged(step) or stopping:
                self._inputs.tell_notes(self._train_loader)
                yield Event("log", step, self._logged_values(), tuple(watch.losses))
                watch.losses.clear()
            if stretch.is_boundary(step) or stopping:
                watch.check_weights(step, self._named_weights)
                yield Event("boundary", step)
            if stopping:
                return

    def _update(self, step: int) -> Any:
        """One update of the weights; gives its loss, read (CPU) or not (device, several processes)."""
        scaler = self._scaler
        if self._num_accumulated == 1:
            loss = self._forward_backward(step)
        else:
            loss = self._accumulate(step)
        if not self._watch.reads_at_once:
            self._watch.before_update(loss)
        if self._clips or self._measures_norm:
            if scaler is not None:
                scaler.unscale_(self._optimizer)  # type: ignore[arg-type]
            if self._measures_norm:
                self._norm = gradient_norm([p.grad for p in self._trained if p.grad is not None])
        if self._clips:
            norm = clip_gradients(self._trained, self._job.params.optimizer)
            self._norm = self._norm if norm is None else norm
        if scaler is None:
            self._optimizer.step()  # type: ignore[union-attr]
        else:
            scaler.step(self._optimizer)  # type: ignore[arg-type]
            scaler.update()
        for parameter in self._trained:
            parameter.grad = None
        return loss

    def _accumulate(self, step: int) -> Any:
        total: Any = 0.0
        for _ in range(self._num_accumulated - 1):
            with self._without_sync():
                total = total + self._forward_backward(step)
        return (total + self._forward_backward(step)) / self._num_accumulated

    def _forward_backward(self, step: int) -> Any:
        """Gradients of the next batch, and its loss. This is the hot path: on a small model each microsecond shows."""
        batch = next(self._batches)  # type: ignore[arg-type]
        local, whole = self._train_loader.last_counts  # type: ignore[union-attr]
        self._num_samples += whole
        result = self._forward(batch)
        loss = result if type(result) is torch.Tensor and result.ndim == 0 else split_loss(result)[0]
        if local * self._world.size != whole:
            # A short last batch splits unevenly; weighted, the processes' mean is the batch's mean.
            loss = loss * (local * self._world.size / whole)
        if self._watch.reads_at_once:
            value: Any = loss.item()
            if self._watch.checks and not math.isfinite(value):
                raise self._explain(batch, step + 1, value)
        else:
            value = loss.detach()
        if not loss.requires_grad:
            raise UserError(
                "the loss does not depend on any trainable weight.",
                "Look for .detach(), .item(), torch.no_grad() or requires_grad=False in the model.",
            )
        if self._num_accumulated > 1:
            loss = loss / self._num_accumulated
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
        return value

    def _make_forward(self, called: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The user's model on a batch, inside the contexts that this run needs, such as autocast."""
        move, autocast = self._move, self._autocast
        if move is None and autocast is None:
            return called

        def forward(batch: Any) -> Any:
            if move is not None:
                batch = move(batch)
            with nullcontext() if autocast is None else autocast():
                return called(batch)

        return forward

    def _without_sync(self) -> Any:
        if isinstance(self._called, DistributedDataParallel):
            return self._called.no_sync()
        return nullcontext()

    def _agreed_stop(self, should_stop: Callable[[], bool]) -> Callable[[], bool]:
        """Processes get a signal at different steps and must stop at the same one, so they ask each other about once a second."""
        left, interval, since = 1, 1, time.monotonic()

        def agreed() -> bool:
            nonlocal left, interval, since
            left -= 1
            if left > 0:
                return False
            now = time.monotonic()
            asked = max(1, min(100, round(interval / max(now - since, 1e-4))))
            votes = self._world.reduce_max(torch.tensor([float(should_stop()), -float(asked)]))
            left = interval = int(-votes[1].item())
            since = time.monotonic()
            return bool(votes[0].item())

        return agreed

    def _set_learning_rate(self, step: int) -> None:
        if self._schedule is None:
            return
        rate = self._schedule(step)
        for group in self._optimizer.param_groups:  # type: ignore[union-attr]
            rate_of_group = rate * group.get("lr_scale", 1.0)
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate_of_group)
            else:
                group["lr"] = rate_of_group

    def _recent_batch(self, num_updates_back: int) -> Any | None:
        assert self._train_loader is not None
        return self._train_loader.recent(num_updates_back * self._num_accumulated)

    def _explain(self, batch: Any, step: int, value: float) -> NonFiniteError:
        first = (step - 1) * self._num_accumulated + 1
        last = first + self._num_accumulated - 1
        name = (
            f"batch {first} of the run"
            if first == last
            else f"one of the batches {first} to {last} of the run"
        )
        if self._move is not None:
            batch = self._move(batch)
        return explain_non_finite(
            self._module, batch, step=step, batch_name=name, loss=value, device=self._device
        )

    def _next_pause(self, stretch: Stretch, step: int) -> int:
        """The next step after `step` at which a stretch logs, has a boundary, or reads its losses."""
        every = [n for n in (stretch.log_steps, stretch.boundary_steps) if n > 0]
        pauses = [stretch.last_step, *((step // n + 1) * n for n in every)]
        return min(pauses) if self._watch.reads_at_once else min(*pauses, step + MOST_UNREAD)

    def _logged_values(self) -> dict[str, float]:
        assert self._optimizer is not None
        rate = float(self._optimizer.param_groups[0]["lr"])
        values = {"loss": self._watch.losses[-1], "learning_rate": rate}
        values["num_samples"] = float(self._num_samples)
        if self._norm is not None:
            values["gradient_norm"] = float(self._norm)
        if self._scaler is not None:
            values["loss_scale"] = float(self._scaler.current_scale())
            values["skipped_updates"] = float(self._scaler.num_skipped)
        return values

    def sample_batches(self, name: str, num_batches: int) -> list[Any]:
        """The first batches of an input, without moving its position."""
        with untouched_rng(self._device):
            return self._inputs.first_batches(name, num_batches)

    # -- evaluation ----------------------------------------------------------------------------------------

    def evaluate(
        self, num_steps: int | None, on_step: Callable[[int], None] | None = None
    ) -> dict[str, float]:
        """Loss and metrics over the evaluation data; short last batches count by their samples."""
        loader = self._fresh_eval_loader()
        metrics.reset_all_metrics()
        if isinstance(self._called, DistributedDataParallel):
            for (
                buffer
            ) in self._module.net.buffers():  # DDP does so before a training step; what is saved is rank 0's
                torch.distributed.broadcast(buffer.detach(), 0)
        total, num_samples = torch.zeros((), dtype=self._sum_dtype, device=self._device), 0
        with self._explaining(loader), self._evaluating():
            for index, batch in enumerate(islice(loader, num_steps)):
                local = loader.last_counts[0]
                with metrics.uncounted(local == 0):
                    loss, _ = split_loss(self._forward_alone(batch))
                if local:
                    total += loss.to(self._sum_dtype) * local
                    num_samples += local
                if on_step is not None:
                    on_step(index + 1)
        self._inputs.tell_notes(loader)
        host = self._world.reduce_sum(torch.tensor([total.item(), num_samples], dtype=torch.float64))
        if host[1] == 0:
            raise UserError("the evaluation saw no sample.", "Look at eval_input and runconfig.eval_steps.")
        return {
            "loss": float(host[0] / host[1]),
            **metrics.compute_all_metrics(
                self._reduce_metric if self._world.size > 1 else None, say=self._note
            ),
        }

    def predict(self, num_steps: int | None) -> Iterator[Mapping[str, torch.Tensor]]:
        if self._world.size > 1:
            raise UserError(f"predict was started in {self._world.size} processes.", "Start one process.")
        loader = self._fresh_eval_loader()
        with self._explaining(loader), self._evaluating():
            for batch in islice(loader, num_steps):
                moved = self._move(batch) if self._move is not None else batch
                with nullcontext() if self._autocast is None else self._autocast():
                    outputs = self._module.predict(moved)
                yield {name: tensor.detach().cpu() for name, tensor in name_outputs(outputs)}

    def _fresh_eval_loader(self) -> ResumableLoader:
        if self._eval_loader is None:
            # At the same place of the same stream in every run: what the user's function draws must neither move the
            # training's generators nor depend on when the first evaluation comes.
            with untouched_rng(self._device):
                seed_all(self._seed, self._device)
                self._eval_loader = self._inputs.open("eval_input", repeat=False)
        return self._eval_loader

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Evaluation mode without gradients that leaves no trace on training."""
        with untouched_rng(self._device), torch.no_grad():
            self._module.eval()
            try:
                yield
            finally:
                self._module.train()

    def _reduce_metric(self, values: torch.Tensor) -> None:
        values.copy_(self._world.reduce_sum(values.detach().cpu()).to(values.device))

    # -- state ---------------------------------------------------------------------------------------------

    def state(self) -> Iterator[Shard]:
        yield from self._snapshot.take(self._named_state())

    def _named_state(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._model_tensors():
            yield f"model/{name}", tensor
        if self._optimizer is not None:
            for name, tensor in self._optimizer_tensors(self._optimizer):
                yield f"optimizer/{name}", tensor
        for rank, generators in enumerate(self._world.gather(capture_rng(self._device))):
            for name, tensor in generators.items():
                yield f"rng/{rank}/{name}", tensor

    def _model_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Whole weights and buffers, by name."""
        for name, value in self._own_weights().items():
            yield name, whole(value)

    def _optimizer_tensors(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
        """The whole state of the optimizer, by `<parameter name>/<state name>`."""
        return optimizer_state(optimizer, self._parameter_names())

    def _parameter_names(self) -> dict[torch.Tensor, str]:
        return {parameter: name for name, parameter in self._module.net.named_parameters()}

    def counters(self) -> dict[str, Any]:
        assert self._train_loader is not None
        return {
            "data": self._train_loader.position(),
            "num_samples": self._num_samples,
            "unlogged_losses": list(self._watch.losses),
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            "world_size": self._world.size,
        }

    def load_state(self, shards: Iterable[Shard], counters: Mapping[str, Any] | None) -> None:
        own = self._own_weights()
        optimizer: list[tuple[str, torch.Tensor]] = []
        generators: dict[str, torch.Tensor] = {}
        for shard in match_names(shards, own, self._note):
            kind, _, name = shard.name.partition("/")
            if kind == "model":
                self._load_weight(name, own[name], shard.tensor)
            elif kind == "optimizer":
                part = self._own_part(name, shard.tensor)
                if part is not None:
                    optimizer.append((name, part))
            elif kind == "rng":
                rank, _, generator = name.partition("/")
                if rank == str(self._world.rank):
                    generators[generator] = shard.tensor
        if counters is None or self._optimizer is None:
            return
        self._go_on_from(counters, optimizer, generators, self._difference(counters))

    def _difference(self, counters: Mapping[str, Any]) -> str | None:
        """How the run of a checkpoint differed, where its random states do not fit this one."""
        if counters.get("world_size", 1) == self._world.size:
            return None
        return f"of {counters['world_size']} process(es) and this run has {self._world.size}"

    def _own_weights(self) -> dict[str, torch.Tensor]:
        state = self._module.net.state_dict()
        return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}

    def _go_on_from(
        self,
        counters: Mapping[str, Any],
        optimizer: Iterable[tuple[str, torch.Tensor]],
        generators: Mapping[str, torch.Tensor],
        other_run: str | None,
    ) -> None:
        """Loads all of a checkpoint but the weights; `other_run` says how its run differed, where its random states do not fit."""
        assert self._optimizer is not None
        assert self._train_loader is not None
        load_optimizer_state(self._optimizer, self._parameter_names(), optimizer)
        self._train_loader.seek(counters["data"])
        self._batches = None
        self._num_samples = int(counters["num_samples"])
        self._watch.losses[:] = counters.get("unlogged_losses", [])
        if self._scaler is not None and counters.get("scaler"):
            self._scaler.load_state_dict(counters["scaler"])
        if other_run is None:
            restore_rng(generators, self._device)
        else:
            self._note(
                f"the checkpoint is {other_run}: random draws such as dropout will differ from the undisturbed run."
            )

    def _load_weight(self, name: str, own: torch.Tensor, stored: torch.Tensor) -> None:
        with torch.no_grad():
            own.copy_(shard_like(stored, own))

    def _own_part(self, name: str, state: torch.Tensor) -> torch.Tensor | None:
        """What this process keeps of a whole tensor of the optimizer's state, before all of them are in memory; None: nothing."""
        return state

    def close(self) -> None:
        self._batches = None
        for loader in (self._train_loader, self._eval_loader):
            if loader is not None:
                loader.close()
