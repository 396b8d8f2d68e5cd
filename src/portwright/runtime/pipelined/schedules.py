"""Which process holds which pieces of which copy of the model, and the schedules that run them: torch's, and one of our own for what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
import torch.distributed as dist
from torch import nn

from portwright.errors import UnsupportedError, UserError, suggest
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


try:
    from torch.distributed.pipelining import (
        PipelineStage,
        Schedule1F1B,
        ScheduleDualPipeV,
        ScheduleGPipe,
        ScheduleInterleaved1F1B,
        ScheduleInterleavedZeroBubble,
        ScheduleLoopedBFS,
        ScheduleZBVZeroBubble,
    )
    from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime
    from torch.distributed.pipelining.stage import InferenceMode  # type: ignore[attr-defined]  # noqa: F401  stages that know their shapes

    has_schedules = True
    _Runtime: Any = _PipelineScheduleRuntime
    _PipelineStage: Any = PipelineStage
except ImportError:  # before torch 2.13
    has_schedules = False
    _Runtime = _PipelineStage = object

_CLASSES: dict[str, Any] = (
    {
        "gpipe": ScheduleGPipe,
        "1f1b": Schedule1F1B,
        "interleaved_1f1b": ScheduleInterleaved1F1B,
        "looped_bfs": ScheduleLoopedBFS,
        "interleaved_zero_bubble": ScheduleInterleavedZeroBubble,
        "zbv_zero_bubble": ScheduleZBVZeroBubble,
        "dualpipev": ScheduleDualPipeV,
    }
    if has_schedules
    else {}
)
SPLITS_BACKWARD = ("interleaved_zero_bubble", "zbv_zero_bubble", "dualpipev")


def require_schedules() -> None:
    if not has_schedules:
        raise UnsupportedError(
            f"torch {torch.__version__} has pipeline schedules that cannot take stages of known shape.",
            "Use torch 2.13 or newer, or one process.",
        )


def accepts(layout: Layout, num_micro: int) -> bool:
    """Whether torch's schedule takes so many micro-batches."""
    if layout.num_positions == 1:
        return True
    if layout.schedule in ("1f1b", "dualpipev"):
        return num_micro >= layout.num_pieces
    if layout.schedule in ("interleaved_1f1b", "interleaved_zero_bubble"):
        return num_micro % max(1, num_micro // layout.num_positions) == 0
    return True


class StageModule(nn.Module):
    """What torch calls as a stage: runs one piece of the model on the micro-batch that is named."""

    def __init__(
        self,
        run: Callable[[tuple[torch.Tensor, ...], int], tuple[Any, ...]],
        weights: Callable[[], Iterator[nn.Parameter]],
        *,
        is_last: bool,
    ) -> None:
        super().__init__()
        self._run, self._weights, self._is_last = run, weights, is_last

    def forward(self, *taken: torch.Tensor, micro: torch.Tensor) -> Any:
        given = self._run(taken, int(micro))
        return given[0] if self._is_last else given

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        yield from self._weights()


class _Stage(_PipelineStage):  # type: ignore[misc]
    """torch's stage, whose gradients go out in one piece of memory: a backward pass of inputs alone gives strided ones."""

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[Any]:
        grads = self.bwd_cache.get(bwd_chunk_id)
        if grads is not None:
            self.bwd_cache[bwd_chunk_id] = tuple(g if g is None else g.contiguous() for g in grads)
        ops: list[Any] = super().get_bwd_send_ops(bwd_chunk_id)
        return ops


def make_stage(
    module: StageModule,
    piece: int,
    layout: Layout,
    device: torch.device,
    group: Any,
    takes: list[Any],
    gives: list[Any],
    *,
    backward_at_once: bool,
) -> Any:
    """A stage whose shapes are known beforehand, so that nothing is run to find them out."""
    stage = _Stage(
        module,
        piece,
        layout.num_pieces,
        device,
        input_args=tuple(_like(value) for value in takes),
        output_args=tuple(_like(value) for value in gives),
        group=group,
        dw_builder=(lambda: lambda: None) if backward_at_once else None,
    )
    stage.stage_index_to_group_rank = {p: layout.position_of(p) for p in range(layout.num_pieces)}
    return stage


def _like(value: Any) -> torch.Tensor:
    tensor = torch.empty(value.shape, dtype=value.dtype, device="meta")
    return tensor.requires_grad_(value.requires_grad)


def make_schedule(
    layout: Layout, stages: list[Any], num_micro: int, loss_fn: Callable[[Any, Any], torch.Tensor]
) -> Any:
    """The schedule that was asked for, or the fill-drain one where that cannot take so few micro-batches."""
    if layout.pieces_each == 1:
        kind = _CLASSES[layout.schedule if accepts(layout, num_micro) else "gpipe"]
        return kind(stages[0], num_micro, loss_fn=loss_fn, scale_grads=False)
    kind = _CLASSES[layout.schedule] if accepts(layout, num_micro) else None
    if kind is None:
        return _FillDrain(layout, stages, num_micro, loss_fn)
    return kind(stages, num_micro, loss_fn=loss_fn, scale_grads=False)


class _FillDrain(_Runtime):  # type: ignore[misc]
    """All forward passes piece by piece, then all backward passes: any number of micro-batches, any placement of pieces."""

    def __init__(
        self, layout: Layout, stages: list[Any], num_micro: int, loss_fn: Callable[[Any, Any], Any]
    ) -> None:
        super().__init__(stages, num_micro, loss_fn=loss_fn, scale_grads=False)
        orders: dict[int, list[Any]] = {}
        for position in range(layout.num_positions):
            pieces = [piece for piece in range(layout.num_pieces) if layout.position_of(piece) == position]
            forward = [
                _Action(piece, _ComputationType.FORWARD, m) for piece in pieces for m in range(num_micro)
            ]
            backward = [
                _Action(piece, _ComputationType.FULL_BACKWARD, m)
                for piece in reversed(pieces)
                for m in range(num_micro)
            ]
            orders[position] = [*forward, *backward]
        self.pipeline_order = orders
        self._prepare_schedule_with_comms(orders)
