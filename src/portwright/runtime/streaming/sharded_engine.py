"""Weight streaming in several processes: each has a part of every layer in host memory and computes on a part of the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from portwright.errors import UserError
from portwright.job.execution import StreamingSection
from portwright.runtime.extra_optimizers import Lion, UncorrectedAdam
from portwright.runtime.streaming.engine import Streaming
from portwright.runtime.streaming.fetch import Fetcher
from portwright.runtime.streaming.gradients import Gradients, Piece
from portwright.runtime.streaming.sharded import Ranks
from portwright.runtime.streaming.sharded_fetch import OrderedFetcher
from portwright.runtime.streaming.sharded_gradients import ShardedGradients, host_bytes
from portwright.runtime.streaming.sharded_unit import Part, ShardedUnit, shard_units
from portwright.runtime.streaming.unit import Unit, make_units

# Each element of a weight is updated from its own gradient and state alone, so a part of a weight is as good as a weight.
_ELEMENTWISE = frozenset(
    {
        torch.optim.Adadelta,
        torch.optim.Adagrad,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adamax,
        torch.optim.ASGD,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Rprop,
        torch.optim.SGD,
        Lion,
        UncorrectedAdam,
    }
)
_CLOSING_SECONDS = 10.0  # for the other processes to take their part in what was asked for last


class ShardedStreaming(Streaming):
    """Like Streaming, but the masters in the model have no values: these are in `shards`, and whole only on the device.

    Gradients are averaged over the processes, norms and losses are those of all of them.
    """

    def __init__(
        self,
        net: nn.Module,
        device: torch.device,
        options: StreamingSection,
        note: Callable[[str], None],
        ranks: Ranks,
        *,
        half: torch.dtype | None = None,
    ) -> None:
        self._ranks = ranks
        self.holds = torch.zeros((), device=device)  # 1 once a loss or a norm was not finite in any process
        self._undecided: set[Unit] = set()  # whose updates wait for this step's verdict
        super().__init__(net, device, options, note, half=half, may_update_here=False)
        self.shards: dict[nn.Parameter, tuple[nn.Parameter, Part]] = {
            entry.master: (own.master, part)
            for unit in self._sharded()
            for entry, own, part in zip(unit.entries, unit.host.entries, unit.parts, strict=True)
        }

    def _sharded(self) -> list[ShardedUnit]:
        return [unit for unit in self.units if isinstance(unit, ShardedUnit)]

    # -- what is made otherwise -----------------------------------------------------------------------------

    def _make_units(self, layers: list[tuple[str, nn.Module]]) -> list[Unit]:
        self._ranks.make_equal([*self.net.parameters(), *self.net.buffers()])
        device, changed = self.lanes.device, self._changed
        units = make_units(layers, self.net, device, self._half, changed)
        return shard_units(units, self._ranks.rank, self._ranks.size, device, changed)

    def _make_fetcher(self) -> Fetcher:
        return OrderedFetcher(
            self.units,
            self._options.slots,
            self.lanes,
            self._copy_up,
            self._changed,
            self._ranks,
            lambda unit: unit not in self._undecided,
        )

    def _gradient_bytes(self, trained: list[Unit]) -> int:
        return host_bytes(trained)

    def _make_gradients(self, trained: list[Unit], ring: list[Tensor], num_buffers: int) -> Gradients:
        names = [unit.name for unit in self.units]
        return ShardedGradients(trained, self.lanes, self._copy_down, ring, self._deliver, self._ranks, names)

    # -- a step ---------------------------------------------------------------------------------------------

    def train_with(self, optimizer: torch.optim.Optimizer, **settings: Any) -> torch.optim.Optimizer:
        """Like Streaming.train_with; the optimizer trains the flat shards instead of the layers' weights from now on."""
        if type(optimizer) not in _ELEMENTWISE and any(unit.trained for unit in self.units):
            raise UserError(
                f"{type(optimizer).__name__} may look at whole weights, and each of the {self._ranks.size} processes streams a part "
                "of every weight.",
                "Use a rule that works element by element, such as AdamW, SGD or Lion, start one process, or use "
                "runconfig.execution: resident with runconfig.distributed: fsdp.",
            )
        for group in optimizer.param_groups:
            group["params"] = [self._shard_of(optimizer, parameter) for parameter in group["params"]]
        return super().train_with(optimizer, **settings)

    def _shard_of(self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> nn.Parameter:
        if parameter not in self.shards:
            return parameter
        shard, part = self.shards[parameter]
        for key, value in optimizer.state.pop(parameter, {}).items():
            is_split = isinstance(value, Tensor) and value.shape == part.shape
            optimizer.state[shard][key] = part.cut(value, self._ranks.rank).clone() if is_split else value
        return shard

    def begin_step(self, number: int) -> None:
        self._undecided.clear()  # an error may have ended the step before
        super().begin_step(number)
        self.share_buffers()

    def share_buffers(self) -> None:
        """Gives the first process's buffers to all, as DDP does before a step."""
        self._ranks.send_from_first(self.net.buffers())

    def tell_loss(self, loss: Tensor) -> None:
        total = self._ranks.sum(loss.detach().float().clone())
        self.hold_if_not_finite(total)
        super().tell_loss(total)

    def hold_if_not_finite(self, value: Tensor) -> None:
        """Where the agreed value is not finite, weights outside the layers are not updated either; the host does not wait."""
        bad = (~torch.isfinite(value.detach())).to(self.holds)
        self.holds.copy_(torch.maximum(self.holds, bad))

    def changed(self) -> None:
        super().changed()
        self.holds.zero_()

    def _deliver(self, piece: Piece) -> None:
        if self.needs_verdict and self._is_last_pass and piece.is_final:
            self._undecided.add(piece.delivery.unit)
        super()._deliver(piece)

    def _deliver_left_over(self) -> None:
        if self.needs_verdict:
            self._undecided |= self._only_before
        super()._deliver_left_over()

    def decide(self, factor: Tensor) -> None:
        super().decide(factor)
        self._undecided.clear()
        self._fetcher.prepare(self._order.next_pass())

    def gradient_norms(self) -> dict[Tensor, Tensor]:
        """Norms of whole gradients: the squares of the parts' norms are summed over the processes."""
        if isinstance(self._gradients, ShardedGradients):
            self.lanes.wait_for(self._gradients.averaged)
        own: Mapping[Tensor, Tensor] = super().gradient_norms()
        masters = [master for master in self.shards if master in own]
        if not masters:
            return {}
        squares = torch.stack([own[master].double() for master in masters]).square()
        norms = self._ranks.sum(squares).sqrt()
        return {
            master: norm.to(own[master].dtype) for master, norm in zip(masters, norms.unbind(), strict=True)
        }

    def describe(self) -> str:
        return f"{super().describe()[:-1]} (the share of one process of {self._ranks.size})."

    # -- whole weights --------------------------------------------------------------------------------------

    def whole(self, master: nn.Parameter, own: Tensor) -> Tensor:
        """A tensor of a weight's shape, of which each process has a flat part, on the host; all processes must ask."""
        part = self.shards[master][1]
        flat = torch.empty(part.shape.numel(), dtype=own.dtype)
        self._ranks.assemble(flat, own.detach(), [part.bounds(rank) for rank in range(self._ranks.size)])
        return part.shaped(flat)

    def own_part(self, master: nn.Parameter, whole: Tensor) -> Tensor:
        return self.shards[master][1].cut(whole, self._ranks.rank)

    def close(self) -> None:
        if isinstance(self._fetcher, OrderedFetcher):
            self._fetcher.drain(_CLOSING_SECONDS)
        super().close()
