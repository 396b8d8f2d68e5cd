"""A streaming session of several processes: data parallel, with weights and optimizer state split over their hosts' memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from portwright.errors import UserError
from portwright.job.execution import StreamingSection
from portwright.runtime.distribute import Strategy, choose_strategy, sync_batchnorm
from portwright.runtime.optimizer_state import UNTOUCHED
from portwright.runtime.streaming.engine import Streaming
from portwright.runtime.streaming.session import StreamingSession
from portwright.runtime.streaming.sharded import Ranks
from portwright.runtime.streaming.sharded_engine import ShardedStreaming
from portwright.target import Shard


class ShardedStreamingSession(StreamingSession):
    """Trains as DDP does on the same processes; checkpoints are whole, so that any number of processes goes on from them."""

    _engine: ShardedStreaming

    def _choose_strategy(self) -> Strategy:
        if choose_strategy(self._job.params.runconfig.distributed, self._world) == "fsdp":
            raise UserError(
                "runconfig.distributed: fsdp keeps the processes' parts on their devices, and runconfig.execution: streaming on their hosts.",
                "Leave one of them out: streaming splits weights and optimizer state over the processes by itself.",
            )
        return "none"  # nothing is wrapped around the model

    def _place_model(self) -> None:
        if self._job.params.runconfig.sync_batchnorm:
            self._module.net = sync_batchnorm(self._module.net, self._device)
        super()._place_model()

    def _make_engine(self, options: StreamingSection, *, may_update_here: bool) -> Streaming:
        self._ranks = Ranks(self._world, self._device)
        return ShardedStreaming(
            self._module.net,
            self._device,
            options,
            self._note,
            self._ranks,
            half=self._precision.half,
        )

    def _open_training(self) -> None:
        super()._open_training()
        self._named_weights = [
            (name, self._engine.shards[weight][0] if weight in self._engine.shards else weight)
            for name, weight in self._named_weights
        ]

        can_hold = bool(getattr(self._rest, "_step_supports_amp_scaling", False))
        if can_hold and self._device.type != "cpu" and self._scaler is None:
            self._rest.found_inf = self._engine.holds  # type: ignore[attr-defined]

    def _step_rest(self) -> None:
        if self._device.type == "cpu" and bool(self._engine.holds):
            return  # a loss was not finite in some process: what is outside the layers stays as they do
        self._ranks.average_gradients(self._trained_rest)
        super()._step_rest()

    def _decide(self, total: Tensor) -> None:
        if self._engine.needs_verdict and self._scaler is None:
            self._engine.hold_if_not_finite(total)
        super()._decide(total)
        if self._device.type == "cpu" and bool(self._engine.holds):
            self._engine.wait()  # raises, in all processes at once

    def evaluate(
        self, num_steps: int | None, on_step: Callable[[int], None] | None = None
    ) -> dict[str, float]:
        self._engine.share_buffers()
        return super().evaluate(num_steps, on_step)

    # -- state ----------------------------------------------------------------------------------------------

    def state(self) -> Iterator[Shard]:
        """Whole tensors, one after the other: a process that does not keep them holds one at a time."""
        self._engine.wait()
        for name, tensor in self._named_state():
            yield Shard(name, tensor)

    def _model_tensors(self) -> Iterator[tuple[str, Tensor]]:
        weights = dict(self._module.net.named_parameters(remove_duplicate=False))
        for name, value in self._own_weights().items():
            weight = weights.get(name)
            if weight is not None and weight in self._engine.shards:
                yield name, self._engine.whole(weight, self._engine.shards[weight][0])
            else:
                yield name, _copied(value)

    def _optimizer_tensors(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
        """A process that has no element of a weight may have no state of it either, so they tell each other what there is."""
        own: dict[str, dict[str, Tensor]] = {}
        for label, value in super()._optimizer_tensors(optimizer):
            name, _, key = label.rpartition("/")
            own.setdefault(name, {})[key] = value
        masters = self._masters()
        told = self._world.gather(
            {
                name: {
                    key: (value.dtype, None if value.ndim else value.item()) for key, value in state.items()
                }
                for name, state in own.items()
                if name in masters
            }
        )
        for name, state in own.items():
            if name not in masters:
                for key, value in state.items():
                    yield f"{name}/{key}", _copied(value)
                continue
            kinds = max((states[name] for states in told), key=lambda kinds: len(kinds.keys() - {UNTOUCHED}))
            for key, (dtype, number) in kinds.items():
                if number is None:
                    part = state.get(key, torch.empty(0, dtype=dtype))
                    whole = self._engine.whole(masters[name], part)
                else:
                    whole = torch.tensor(number, dtype=dtype)
                yield f"{name}/{key}", whole

    def _masters(self) -> dict[str, nn.Parameter]:
        """Weights that are split, by name."""
        named = self._module.net.named_parameters()
        return {name: weight for name, weight in named if weight in self._engine.shards}

    def _parameter_names(self) -> dict[Tensor, str]:
        shards = self._engine.shards
        named = self._module.net.named_parameters()
        return {shards[weight][0] if weight in shards else weight: name for name, weight in named}

    def load_state(self, *args: Any, **kwargs: Any) -> None:
        self._split = dict(self._module.net.named_parameters(remove_duplicate=False))
        super().load_state(*args, **kwargs)

    def _load_weight(self, name: str, own: Tensor, stored: Tensor) -> None:
        weight = self._split.get(name)
        if weight is None or weight not in self._engine.shards:
            super()._load_weight(name, own, stored)
            return
        with torch.no_grad():
            self._engine.shards[weight][0].copy_(self._engine.own_part(weight, stored))

    def _own_part(self, name: str, state: Tensor) -> Tensor:
        weight = self._split.get(name.rpartition("/")[0])
        if weight is None or weight not in self._engine.shards or state.shape != weight.shape:
            return state
        return self._engine.own_part(weight, state).clone()


def _copied(value: Tensor) -> Tensor:
    return value.detach().to("cpu", copy=True)
