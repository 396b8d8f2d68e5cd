"""What sessions share whose training step a vendor compiled: the loop of updates, and state around the vendor's optimizer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from portwright.base_model import LossModule
from portwright.data.loader import ResumableLoader
from portwright.errors import NonFiniteError, UnsupportedError, UserError
from portwright.runtime import metrics
from portwright.runtime.checkpoint import match_names
from portwright.runtime.fixed_shape import FixedShapeFeed
from portwright.runtime.inputs import Inputs, explaining
from portwright.target import Event, JobSpec, Shard, Stretch
from portwright.watching.random_states import capture_rng, restore_rng, seed_all, untouched_rng

CPU = torch.device("cpu")
_RESUME_CURE = (
    "Resume with the optimizer of that run, or take its weights alone with --is_pretrained_checkpoint."
)


class CompiledSession(ABC):
    """A session that trains by calls of one compiled program; subclasses make the calls and know the optimizer's state."""

    _module: LossModule
    _train_loader: ResumableLoader
    _feed: FixedShapeFeed | None = None  # None: the mode does not train
    _batches_per_step = 1
    steps_per_call = 1

    def __init__(
        self, job: JobSpec, note: Callable[[str], None], *, rank: int = 0, world_size: int = 1
    ) -> None:
        self._job, self._note, self._rank, self._world_size = job, note, rank, world_size
        self._seed = job.params.runconfig.seed
        self._inputs = Inputs(job, note, rank=rank, world_size=world_size)
        self._eval_loader: ResumableLoader | None = None
        self._losses: list[float] = []
        self._num_samples = 0

    @abstractmethod
    def _update(self, step: int, rate: float) -> list[float]:
        """Calls the program once, which may make several updates; gives their losses."""

    @abstractmethod
    def _bring_weights_home(self) -> None:
        """Copies weights and optimizer state to the host, into `_module`."""

    @abstractmethod
    def _optimizer_state(self) -> Iterable[tuple[str, Tensor]]: ...

    def _refuse_own_optimizer(self, trainer: str) -> None:
        own = self._module.own_optimizer()
        if own is not None:
            raise UnsupportedError(
                f"the model brings its own optimizer, {type(own).__module__}.{type(own).__name__}, and {trainer}.",
                "Describe it in the section optimizer of params.yaml, and let get_optimizer() return None.",
            )

    # -- training ------------------------------------------------------------------------------------------

    def steps_in(self, num_epochs: int) -> int | None:
        if self._feed is None or self._feed.full_batches is None:
            return None
        num_steps = self._feed.full_batches * num_epochs // self._batches_per_step
        return num_steps - num_steps % self.steps_per_call

    def sample_batches(self, name: str, num_batches: int) -> list[Any]:
        with untouched_rng(CPU):
            return self._inputs.first_batches(name, num_batches)

    def train(self, stretch: Stretch) -> Iterator[Event]:
        if self._feed is None:
            raise UserError(f"mode {self._job.mode} does not train.", "Use --mode train.")
        with explaining(self._train_loader):
            yield from self._train(stretch)

    def _train(self, stretch: Stretch) -> Iterator[Event]:
        step, schedule = stretch.first_step, self._job.params.optimizer.schedule
        while step < stretch.last_step:
            rate = schedule(step)
            losses = self._update(step, rate)
            for index, loss in enumerate(losses if self._job.params.runconfig.check_loss_values else ()):
                if not math.isfinite(loss):
                    raise NonFiniteError(
                        f"the loss is {loss} at step {step + index + 1}.",
                        "Lower the learning rate, or look at the data; the same step on CPU says where it comes from.",
                    )
            self._losses += losses
            step += self.steps_per_call
            stopping = stretch.should_stop()
            if stretch.is_logged(step) or stopping:
                self._inputs.tell_notes(self._train_loader)
                values = {
                    "loss": self._losses[-1],
                    "learning_rate": rate,
                    "num_samples": float(self._num_samples),
                }
                yield Event("log", step, values, tuple(self._losses))
                self._losses.clear()
            if stretch.is_boundary(step) or stopping:
                yield Event("boundary", step)
            if stopping:
                return

    # -- evaluation ----------------------------------------------------------------------------------------

    def _fresh_eval_loader(self) -> ResumableLoader:
        if self._eval_loader is None:
            # The same random numbers in every run, as in torch's session.
            with untouched_rng(CPU):
                seed_all(self._seed)
                self._eval_loader = self._inputs.open("eval_input", repeat=False)
        return self._eval_loader

    def _average(
        self, losses: Iterable[tuple[float, int]], on_step: Callable[[int], None] | None
    ) -> dict[str, float]:
        """Loss and metrics over batches, each counted by its samples."""
        metrics.reset_all_metrics()
        total, num_samples = 0.0, 0
        for num_done, (loss, size) in enumerate(losses, start=1):
            total += loss * size
            num_samples += size
            if on_step is not None:
                on_step(num_done)
        if num_samples == 0:
            raise UserError("the evaluation saw no sample.", "Look at eval_input and runconfig.eval_steps.")
        return {"loss": total / num_samples, **metrics.compute_all_metrics(say=self._note)}

    # -- state ---------------------------------------------------------------------------------------------

    def state(self) -> Iterator[Shard]:
        self._bring_weights_home()
        for name, tensor in self._own_weights().items():
            yield Shard(f"model/{name}", tensor.detach().clone().as_subclass(Tensor))
        if self._feed is not None:
            for name, tensor in self._optimizer_state():
                yield Shard(f"optimizer/{name}", tensor)
        for name, tensor in capture_rng(CPU).items():
            yield Shard(f"rng/{self._rank}/{name}", tensor)

    def _own_weights(self) -> dict[str, Tensor]:
        return {k: v for k, v in self._module.net.state_dict().items() if isinstance(v, Tensor)}

    def counters(self) -> dict[str, Any]:
        return {
            "data": self._train_loader.position(),
            "num_samples": self._num_samples,
            "unlogged_losses": list(self._losses),
            "scaler": None,
            "world_size": self._world_size,
        }

    def _go_on_from(self, counters: Mapping[str, Any], generators: Mapping[str, Tensor]) -> None:
        """Moves the data to a run's position; restores its unlogged losses and the host's random state."""
        assert self._feed is not None
        self._train_loader.seek(counters["data"])
        self._feed.restart()
        self._num_samples = int(counters["num_samples"])
        self._losses[:] = counters.get("unlogged_losses", [])
        restore_rng(generators, CPU)

    def close(self) -> None:
        if self._feed is not None:
            self._feed.restart()
            self._train_loader.close()
        if self._eval_loader is not None:
            self._eval_loader.close()


class Taken(NamedTuple):
    """A checkpoint's other state, once the weights are loaded."""

    optimizer: dict[str, dict[str, Tensor]]  # by parameter, then by state
    generators: dict[str, Tensor]


def take_weights(
    shards: Iterable[Shard],
    own: Mapping[str, Tensor],
    note: Callable[[str], None],
    *,
    rank: int = 0,
    optimizer_kinds: Collection[str] = ("optimizer",),
) -> Taken:
    """Copies weights into `own`, a model's state_dict, and sorts the other state; generators are those of process `rank`."""
    taken = Taken({}, {})
    for shard in match_names(shards, own, note):
        kind, _, name = shard.name.partition("/")
        if kind == "model":
            with torch.no_grad():
                own[name].copy_(shard.tensor)
        elif kind in optimizer_kinds:
            path, _, key = name.rpartition("/")
            taken.optimizer.setdefault(path, {})[key] = shard.tensor
        elif kind == "rng" and name.startswith(f"{rank}/"):
            taken.generators[name.partition("/")[2]] = shard.tensor
    return taken


def count_updates(states: Mapping[str, Mapping[str, Tensor]]) -> int:
    """How many updates a torch session has made, by its optimizer state."""
    return max((int(of_one["step"]) for of_one in states.values() if "step" in of_one), default=0)


def check_names(items: Iterable[str], trained: Collection[str]) -> None:
    """Refuses optimizer state of what the model does not train."""
    for name in items:
        if name not in trained:
            raise UserError(
                f"the checkpoint has optimizer state of '{name}', which this model does not train.",
                _RESUME_CURE,
            )


def other_state(given: Iterable[str], name: str, optimizer: str, kept: Iterable[str]) -> UserError:
    """The error for state of another optimizer."""
    return UserError(
        f"the checkpoint has the optimizer state {', '.join(sorted(given)) or 'nothing'} of '{name}', and {optimizer} keeps "
        f"{', '.join(kept) or 'none'}.",
        _RESUME_CURE,
    )


def other_shape(label: str, tensor: Tensor, expected: Iterable[int]) -> UserError:
    return UserError(f"{label} has shape {list(tensor.shape)}, expected {list(expected)}.", _RESUME_CURE)
