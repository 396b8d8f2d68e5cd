"""Which process holds which pieces of which copy of the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch.distributed as dist

from portwright.errors import UserError, suggest
from portwright.job.execution import Schedule
from portwright.runtime.world import World

SCHEDULES: tuple[str, ...] = get_args(Schedule)
_ONE_PIECE = ("gpipe", "1f1b")
_V_SHAPED = ("zbv_zero_bubble", "dualpipev")  # the first process has the last piece too


@dataclass(frozen=True)
class Layout:
    """Processes in rows: a row is one copy of the model (a replica), its columns are the positions along the pipeline."""

    num_positions: int
    num_replicas: int
    pieces_each: int  # pieces of the model that a process holds
    schedule: str
    rank: int

    @property
    def num_pieces(self) -> int:
        return self.num_positions * self.pieces_each

    @property
    def position(self) -> int:
        return self.rank % self.num_positions

    @property
    def replica(self) -> int:
        return self.rank // self.num_positions

    def position_of(self, piece: int) -> int:
        if self.schedule in _V_SHAPED and piece >= self.num_positions:
            return self.num_pieces - 1 - piece
        return piece % self.num_positions

    @property
    def own_pieces(self) -> list[int]:
        return [piece for piece in range(self.num_pieces) if self.position_of(piece) == self.position]

    @property
    def holds_loss(self) -> bool:
        return self.position_of(self.num_pieces - 1) == self.position

    def rank_of(self, position: int, replica: int | None = None) -> int:
        return (self.replica if replica is None else replica) * self.num_positions + position

    def ranks_of(self, positions: Iterable[int]) -> list[int]:
        """The ranks at these positions in all replicas."""
        return sorted(self.rank_of(p, r) for p in positions for r in range(self.num_replicas))


def make_layout(options: Any, world: World) -> Layout:
    """Checks runconfig.pipeline against the processes that were started."""
    schedule = str(options.schedule).lower()
    if schedule not in SCHEDULES:
        raise UserError(f"runconfig.pipeline.schedule is '{options.schedule}'.", suggest(schedule, SCHEDULES))
    replicas = options.replicas
    started = f"{world.size} process{'es were' if world.size > 1 else ' was'} started"
    if world.size % replicas:
        raise UserError(
            f"runconfig.pipeline.replicas is {replicas}, and {started}.",
            "Start stages * replicas processes.",
        )
    stages = options.stages if options.stages is not None else world.size // replicas
    if stages * replicas != world.size:
        raise UserError(
            f"runconfig.pipeline asks for {stages} stages * {replicas} replicas = {stages * replicas} processes, and {started}.",
            f"Start {stages * replicas} processes, or leave stages out to take all that there are.",
        )
    if stages == 1:
        return Layout(1, replicas, 1, schedule, world.rank)
    each = 1 if schedule in _ONE_PIECE else 2
    if options.cuts is not None:
        made = len(options.cuts) + 1
        if (
            made % stages
            or (schedule in (*_ONE_PIECE, *_V_SHAPED) and made != each * stages)
            or made < each * stages
        ):
            raise UserError(
                f"runconfig.pipeline.cuts makes {made} pieces of the model, and {stages} stages under {schedule} take "
                f"{each * stages}{'' if schedule in (*_ONE_PIECE, *_V_SHAPED) else ' or another multiple'}.",
                f"Give {each * stages - 1} cut(s), or leave cuts out.",
            )
        each = made // stages
    return Layout(stages, replicas, each, schedule, world.rank)


class Groups:
    """Process groups for the rows of a layout, and for any set of columns; made by all processes in one order."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.pipeline: dist.ProcessGroup | None = None
        self.host = dist.new_group(backend="gloo")  # of all processes, for tensors in host memory
        self._columns: dict[tuple[int, ...], dist.ProcessGroup] = {}
        for replica in range(layout.num_replicas):
            ranks = [layout.rank_of(position, replica) for position in range(layout.num_positions)]
            group = dist.new_group(ranks) if layout.num_positions > 1 else None
            if replica == layout.replica:
                self.pipeline = group

    def make_columns(self, sets: Sequence[tuple[int, ...]]) -> None:
        for positions in sorted(set(sets)):
            ranks = self._layout.ranks_of(positions)
            if len(ranks) > 1:
                self._columns[positions] = dist.new_group(ranks)

    def columns(self, positions: tuple[int, ...]) -> dist.ProcessGroup:
        return self._columns[positions]
