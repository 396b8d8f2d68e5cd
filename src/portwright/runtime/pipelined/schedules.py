"""torch's pipeline schedules over our stages, and one of our own for what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from portwright.errors import UnsupportedError
from portwright.runtime.pipelined.layout import Layout

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
