"""How a run's batches are split: what was asked for, checked once, and what is told where a batch is split otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portwright.errors import UserError
from portwright.runtime.pipelined.layout import Layout
from portwright.runtime.pipelined.micro_batches import Run, plan_runs, split_batch
from portwright.runtime.pipelined.schedules import accepts

_PER_STAGE = 4  # micro-batches: a pipeline of many stages is busy for 4/5 of the time


class MicroPlan:
    """Splits batches into `runconfig.pipeline.micro_batches`, or as many as the stages can do with."""

    def __init__(self, asked: int | None, layout: Layout, note: Callable[[str], None]) -> None:
        self._asked, self._layout, self._note = asked, layout, note
        default = _PER_STAGE * layout.num_positions if layout.num_positions > 1 else 1
        self._wanted = default if asked is None else asked

    @property
    def splits(self) -> bool:
        return self._wanted > 1

    def check(self, batch_size: int | None) -> None:
        """Refuses a number that a full batch (of all replicas) cannot be split into, or that the schedule does not take."""
        layout, asked = self._layout, self._asked
        if asked is None or batch_size is None:
            return
        each = batch_size // layout.num_replicas
        if asked > each:
            replicas = layout.num_replicas
            parts = f", of which each of {replicas} replicas gets {each}" if replicas > 1 else ""
            raise UserError(
                f"runconfig.pipeline.micro_batches is {asked}, and a batch has {batch_size} samples{parts}.",
                f"Set micro_batches to {each} at most, or raise train_input.batch_size.",
            )
        if not accepts(layout, asked):
            good = [count for count in range(1, each + 1) if accepts(layout, count)]
            near = min(good, key=lambda count: abs(count - asked)) if good else None
            raise UserError(
                f"runconfig.pipeline.micro_batches is {asked}, which {layout.schedule} does not take with "
                f"{layout.num_positions} stages.",
                f"Set micro_batches: {near}." if near else "Use schedule: gpipe, or a larger batch.",
            )

    def runs(self, num_samples: int) -> list[Run]:
        layout = self._layout
        runs = plan_runs(num_samples, self._wanted, lambda count: accepts(layout, count))
        shown = " and ".join(f"{run.num_micro} of {run.size}" for run in runs)
        if self._asked is not None and runs[0].num_micro != self._asked:
            self._note(
                f"pipelined: a batch of {num_samples} samples passes in other micro-batches than asked for: {shown}."
            )
        few = [run.num_micro for run in runs if not accepts(layout, run.num_micro)]
        if few:
            self._note(
                f"pipelined: of a batch of {num_samples} samples ({shown}), {sum(few)} micro-batch(es) do not suit "
                f"{layout.schedule} with {layout.num_positions} stages: all their forward passes go before the backward passes."
            )
        return runs

    def split(self, batch: Any, num_samples: int) -> list[tuple[Run, list[Any]]]:
        """The micro-batches of each run."""
        runs = self.runs(num_samples)
        return list(zip(runs, split_batch(batch, num_samples, runs), strict=True))
