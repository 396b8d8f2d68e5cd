"""The Session that trains a model in stages: micro-batches pass through the processes, each of which holds some layers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from portwright.base_model import LossModule, split_loss
from portwright.errors import NonFiniteError, UserError
from portwright.runtime.construct import construct
from portwright.runtime.distribute import Strategy
from portwright.runtime.non_finite import find_non_finite
from portwright.runtime.optimizers import make_optimizer
from portwright.runtime.pipelined.agreement import Found, add_up, clip, explain_together, sum_of_squares
from portwright.runtime.pipelined.holding import Holding, gather_model, gather_optimizer, keep_held
from portwright.runtime.pipelined.micro_batches import (
    MicroPlan,
    Run,
    count_samples,
    first_samples,
    guess_samples,
)
from portwright.runtime.pipelined.pipeline import Pipeline, tell_of_batchnorm
from portwright.runtime.pipelined.schedules import Groups, make_layout, require_schedules
from portwright.runtime.pipelined.weighing import Weighing
from portwright.runtime.session import TorchSession
from portwright.runtime.world import World
from portwright.target import JobSpec, Shard
from portwright.watching.random_states import seed_all


class MicroBatchSession(TorchSession):
    """Passes a batch in micro-batches, weighed by their samples: the losses and weights of a resident session, to rounding.

    One process has all layers.
    """

    def __init__(self, job: JobSpec, device: torch.device, world: World, note: Callable[[str], None]) -> None:
        self._layout = make_layout(job.params.runconfig.pipeline, world)
        self._pipeline: Pipeline | None = None
        self._told: set[str] = set()
        self._micro = MicroPlan(job.params.runconfig.pipeline.micro_batches, self._layout, self._note_once)
        super().__init__(job, device, world, note)
        if self._trains and self._micro.splits:
            tell_of_batchnorm(self._module.net, self._note_once)

    @property
    def _trains(self) -> bool:
        return self._job.mode in ("train", "train_and_eval")

    def _open_training(self) -> None:
        super()._open_training()
        assert self._train_loader is not None
        self._micro.check(self._train_loader.batch_size)

    def _note_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._note(line)

    def _forward_backward(self, step: int) -> Any:
        """Gradients of the next batch in one process, micro-batch by micro-batch."""
        if not self._micro.splits:
            return super()._forward_backward(step)
        batch = next(self._batches)  # type: ignore[arg-type]
        local, whole = self._train_loader.last_counts  # type: ignore[union-attr]
        self._num_samples += whole
        total: Any = 0.0
        split = self._micro.split(batch, count_samples(batch, local))
        self._settle_weighing(batch, count_samples(batch, local), split, whole)
        for run, parts in split:
            share = self._weighing.share(run.size, local, whole)
            for micro_batch in parts:
                loss = self._backward_alone(micro_batch, share)
                if self._watch.reads_at_once:
                    value = loss.item()
                    if self._watch.checks and not math.isfinite(value):
                        raise self._explain(batch, step + 1, value)
                    total += value * share
                else:
                    total = total + loss * share
        return total

    def _settle_weighing(
        self, batch: Any, num_samples: int, split: list[tuple[Run, list[Any]]], whole: int
    ) -> None:
        if self._weighing.is_settled or not self._micro.splits:
            return
        run, parts = split[0]
        both = first_samples(batch, num_samples, min(2 * run.size, num_samples))
        is_full = whole == self._train_loader.batch_size  # type: ignore[union-attr]
        preview = self._preview if self._pipeline is None else self._pipeline.preview
        self._weighing.settle(parts, both, preview, self._world, self._note_once, is_full=is_full)

    def _preview(self, micro_batches: Sequence[Any]) -> list[torch.Tensor]:
        return [split_loss(self._forward(micro_batch))[0] for micro_batch in micro_batches]

    @functools.cached_property
    def _weighing(self) -> Weighing:
        return Weighing(self._module, self._device, self._precision.name)

    def _backward_alone(self, micro_batch: Any, share: float) -> torch.Tensor:
        """Gradients of a micro-batch that this process computes by itself; its loss."""
        loss, _ = split_loss(self._forward(micro_batch))
        if not loss.requires_grad:
            raise UserError(
                "the loss does not depend on any trainable weight.",
                "Look for .detach(), .item(), torch.no_grad() or requires_grad=False in the model.",
            )
        self._weigh(loss, share).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _weigh(self, loss: torch.Tensor, share: float) -> torch.Tensor:
        weighed = loss * (share / self._num_accumulated)
        return weighed if self._scaler is None else self._scaler.scale(weighed)

    def counters(self) -> dict[str, Any]:
        return {**super().counters(), "pipeline": self._arrangement()}

    def _arrangement(self) -> dict[str, Any]:
        """What random draws depend on, beside the number of processes."""
        layout = self._layout
        places = [str(place) for place in self._pipeline.places] if self._pipeline is not None else []
        return {"stages": layout.num_positions, "replicas": layout.num_replicas, "cuts": places}


class PipelinedSession(MicroBatchSession):
    """Micro-batches pass through several processes, each of which holds some layers."""

    def __init__(self, job: JobSpec, device: torch.device, world: World, note: Callable[[str], None]) -> None:
        world.agree_on_failure(lambda: self._open(job, device, world, note))
        self._groups = Groups(self._layout)
        if self._layout.num_positions > 1:
            self._cut()
        else:
            self._holding = Holding(self._module.net, self._layout, {})
        self._groups.make_columns(self._holding.shared_sets())
        world.agree_on_failure(self._settle)
        seed_all(self._seed + world.rank, device)

    # -- opening ---------------------------------------------------------------------------------------------

    def _open(self, job: JobSpec, device: torch.device, world: World, note: Callable[[str], None]) -> None:
        config = job.params.runconfig
        if job.mode == "predict":
            raise UserError(f"predict was started in {world.size} processes.", "Start one process.")
        if make_layout(config.pipeline, world).num_positions > 1:
            require_schedules()
        for key, value in (("compile", config.compile), ("sync_batchnorm", config.sync_batchnorm)):
            if value:
                raise UserError(
                    f"runconfig.{key} is on, and a model that is pipelined over {world.size} processes cannot have it.",
                    f"Leave {key} out, or use -D runconfig.execution=resident.",
                )
        super().__init__(job, device, world, note)

    @property
    def _data_part(self) -> tuple[int, int]:
        return self._layout.replica, self._layout.num_replicas

    def _make_module(self) -> LossModule:
        # On the host, since the device may be too small for all of the weights.
        return construct(self._job, self._device, most_bytes=0).module

    def _choose_strategy(self) -> Strategy:
        return "none"

    def _place_model(self) -> None:
        self._precision.prepare(self._module.net)

    def _open_training(self) -> None:
        """The optimizer comes when it is known which weights are held here."""
        self._train_loader = self._inputs.open("train_input", repeat=True)
        self._micro.check(self._train_loader.batch_size)

    def _cut(self) -> None:
        """Traces the model on a first micro-batch and settles who holds what; all processes agree on it."""
        device, layout, world = self._device, self._layout, self._world
        pipeline: Pipeline = world.agree_on_failure(
            lambda: Pipeline(self._module, layout, self._groups, device, self._autocast, self._note_once)
        )
        self._pipeline = pipeline
        samples = world.agree_on_failure(self._first_batches)
        first = next(iter(samples))
        places = world.agree_on_failure(
            lambda: pipeline.choose(samples[first], self._job.params.runconfig.pipeline.cuts, training=first)
        )
        # Replicas may have batches of other sizes, and all copies must be cut alike.
        pipeline.places = world.gather(places)[0]
        self._holding = world.agree_on_failure(lambda: pipeline.hold(samples))
        self._forward_alone = self._evaluate_batch

    def _first_batches(self) -> dict[bool, Any]:
        """What the first step of training (True) and of evaluation (False) will see, as far as the run has them."""
        names = {True: "train_input"} if self._trains else {}
        if self._job.mode != "train":
            names[False] = "eval_input"
        found = {}
        for trains, name in names.items():
            batches = self.sample_batches(name, 1)
            if not batches:
                raise UserError(f"{name} has no batch.", "Look at the data function and batch_size.")
            batch = batches[0] if self._move is None else self._move(batches[0])
            if trains:
                size = None if self._train_loader is None else self._train_loader.batch_size
                num_samples = guess_samples(batch, size, self._layout.num_replicas)
                batch = self._micro.split(batch, num_samples)[0][1][0]
            found[trains] = batch
        return found

    def _settle(self) -> None:
        """Drops the weights that other processes hold, and makes the optimizer for the rest."""
        if self._trains:
            self._make_optimizer()
        self._holding.drop_others(self._device)

    def _make_optimizer(self) -> None:
        spec, net = self._job.params.optimizer, self._module.net
        own = self._module.own_optimizer()
        self._optimizer = own if own is not None else make_optimizer(net, spec)
        self._named_weights = [(name, p) for name, p in net.named_parameters() if self._holding.is_held(name)]
        keep_held(self._optimizer, [parameter for _, parameter in self._named_weights], self._device)
        self._trained = [p for group in self._optimizer.param_groups for p in group["params"]]
        trained = {id(parameter) for parameter in self._trained}
        self._shared = [(name, p) for name, p in self._named_weights if id(p) in trained]
        self._at_home = [p for name, p in self._shared if self._holding.home_of(name) == self._home_rank]
        self._prepare_updates(has_own=own is not None)
        if self._scaler is None:
            return
        if not self._trained:
            raise UserError(
                f"stage {self._layout.position} has no weight to train, which the loss scale cannot do without.",
                "Set runconfig.pipeline.cuts so that every stage has one, or leave optimizer.loss_scaling_factor out.",
            )
        # torch makes the factor when a loss is first scaled, which most stages never do.
        self._scaler.scale(torch.zeros((), device=self._device))

    @property
    def _home_rank(self) -> int:
        """The process of the first replica that holds the same pieces as this one."""
        return self._layout.rank_of(self._layout.position, replica=0)

    def _agree_on_overflow(self, flag: torch.Tensor) -> None:
        dist.all_reduce(flag, dist.ReduceOp.MAX)

    # -- training ------------------------------------------------------------------------------------------

    def _update(self, step: int) -> Any:
        loss = torch.zeros((), dtype=torch.float64, device=self._device)
        self._step_batches: list[tuple[Any, int]] = []
        for _ in range(self._num_accumulated):
            loss += self._pass_batch()
        self._holding.sum_gradients(self._groups, self._shared)
        if self._scaler is not None and (self._clips or self._measures_norm):
            self._scaler.unscale_(self._optimizer)  # type: ignore[arg-type]
        # On a CPU a loss is looked at before its update; a device would have to be waited for.
        looks_at_once = self._device.type == "cpu"
        wants_norm = self._measures_norm or self._job.params.optimizer.max_gradient_norm is not None
        whole = loss
        if wants_norm or looks_at_once:
            own = self._at_home if wants_norm else []
            whole, squares = add_up([loss, sum_of_squares(own, self._device)])
            if wants_norm:  # every replica has the same gradients by now, and has counted them
                self._norm = (squares / self._layout.num_replicas).sqrt()
        if looks_at_once and self._watch.checks and not math.isfinite(whole.item()):
            raise self._explain_together(step + 1, whole.item())
        clip(self._trained, self._job.params.optimizer, self._norm)
        if self._scaler is not None:
            self._scaler.step(self._optimizer)  # type: ignore[arg-type]
            self._scaler.update()
        elif self._trained:
            self._optimizer.step()  # type: ignore[union-attr]
        for parameter in self._trained:
            parameter.grad = None
        # It is read later as the mean over the processes, and a process finds whether its part was bad.
        return whole if looks_at_once else loss * self._world.size

    def _pass_batch(self) -> torch.Tensor:
        """Gradients of the next batch; this process's part of its loss."""
        batch = next(self._batches)  # type: ignore[arg-type]
        local, whole = self._train_loader.last_counts  # type: ignore[union-attr]
        self._num_samples += whole
        if self._move is not None:
            batch = self._move(batch)
        num_samples = count_samples(batch, local)
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        self._step_batches.append((batch, num_samples))
        split = self._micro.split(batch, num_samples)
        self._settle_weighing(batch, num_samples, split, whole)
        for run, parts in split:
            # A process with an empty part keeps step with the others; its loss does not count.
            share = self._weighing.share(run.size, local, whole) if local else 0.0
            losses: list[torch.Tensor]
            if self._pipeline is None:
                losses = [self._backward_alone(micro_batch, share) for micro_batch in parts]
            else:
                losses = self._pipeline.train(parts, functools.partial(self._weigh, share=share))
            for loss in losses:
                total += loss.double() * (share / self._num_accumulated)
        return total

    def _explain_together(self, step: int, loss: float) -> NonFiniteError:
        """Repeats the forward passes, since no weight is updated yet, to find where the value comes from."""

        def search() -> Found | None:
            found = []
            for batch, num_samples in self._step_batches:
                micro_batches = [item for _, parts in self._micro.split(batch, num_samples) for item in parts]
                if self._pipeline is not None:
                    found.append(self._pipeline.find_non_finite(micro_batches))
                else:
                    found.append((0, *find_non_finite(self._module, batch, self._device)))
            return min((item for item in found if item is not None), default=None)

        return explain_together(
            self._world,
            [batch for batch, _ in self._step_batches],
            self._named_weights,
            search,
            step=step,
            loss=loss,
            stage=self._layout.position,
        )

    # -- evaluation ----------------------------------------------------------------------------------------

    def evaluate(
        self, num_steps: int | None, on_step: Callable[[int], None] | None = None
    ) -> dict[str, float]:
        self._holding.share_buffers(self._groups)
        values = super().evaluate(num_steps, on_step)
        if self._pipeline is not None:
            self._pipeline.wait()
        return values

    def _evaluate_batch(self, batch: Any) -> torch.Tensor:
        """The loss of a batch, scaled so that the sum over all processes counts it once."""
        assert self._pipeline is not None
        loss = self._pipeline.evaluate(batch if self._move is None else self._move(batch))
        if loss is None:
            return torch.zeros((), dtype=self._sum_dtype, device=self._device)
        return loss.to(self._sum_dtype) * self._layout.num_positions

    # -- state ---------------------------------------------------------------------------------------------

    def state(self) -> Iterator[Shard]:
        if self._world.is_main:
            yield from super().state()
            return
        for name, tensor in self._named_state():
            yield Shard(name, tensor.detach().clone())

    def _model_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        return gather_model(self._own_weights(), self._holding, self._world, self._groups.host)

    def _optimizer_tensors(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
        return gather_optimizer(
            optimizer, self._parameter_names(), self._holding, self._world, self._groups.host
        )

    def _load_weight(self, name: str, own: torch.Tensor, stored: torch.Tensor) -> None:
        if not own.is_meta:
            super()._load_weight(name, own, stored)

    def _own_part(self, name: str, state: torch.Tensor) -> torch.Tensor | None:
        parameter = self._holding.parameter_of(name)
        # one of no parameter at all is for the optimizer to refuse
        return state if not parameter or self._holding.is_held(parameter) else None

    def _difference(self, counters: Mapping[str, Any]) -> str | None:
        is_same = counters.get("pipeline") == self._arrangement()
        return None if is_same else "of a run that was not pipelined in these stages"
