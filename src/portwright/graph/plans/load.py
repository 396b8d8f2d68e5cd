"""What a step needs of a machine, and the result of trying one execution mode on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from portwright.graph.plans.estimate import wanted_cores
from portwright.graph.plans.flops import Flops
from portwright.graph.plans.memory import Memory
from portwright.graph.plans.placement import Rectangle, Shares
from portwright.graph.plans.stages import Stage, can_split, split_stages
from portwright.target import ExecutionMode


@dataclass(frozen=True)
class Fit:
    """One execution mode tried on one machine."""

    mode: ExecutionMode
    fits: bool | None  # None: the machine's memory is not known
    needed_bytes: int
    capacity_bytes: int
    why: str  # in words
    largest_batch: int | None  # None: the batch does not matter, or the memory is not known
    formula: str
    rectangles: tuple[Rectangle, ...] = ()  # one a layer, on a fabric
    shares: Shares | None = None  # of the cores of a fabric
    stages: tuple[Stage, ...] = ()
    why_mode: str = ""
    host_bytes: int | None = None  # on the host of the device; None where nothing is there
    execution: str | None = None  # the value of runconfig.execution that asks for it; None: nothing to choose

    @property
    def batch_note(self) -> str:
        """Why there is no largest batch, where there is none."""
        if self.largest_batch is not None:
            return ""
        if self.fits is None:
            return "the machine's memory is not known; give it with --memory"
        if self.mode == "layer_pipelined" and self.execution is None:
            return "samples pass the layers one by one, so any batch fits"
        return "what a step takes does not depend on the batch"


@dataclass(frozen=True)
class Load:
    """What a step needs of a machine."""

    memory: Memory
    flops: Flops
    num_parameters: int
    trains: bool
    names: tuple[str, ...]  # of the layers

    @property
    def products(self) -> float:
        """Operations of a sample in products; of a model without any, all of them."""
        return self.flops.total.products or self.flops.total.total

    @property
    def wanted_cores(self) -> float:
        """Cores that the work would take on a fabric without limits."""
        return wanted_cores(self.products)

    @property
    def work(self) -> list[float]:
        return [self.flops.of(i).total for i in range(len(self.names))]

    def stage_bytes(self, layer: int) -> int:
        """Bytes that a layer keeps on the chip, independent of the batch."""
        m = self.memory.layers[layer]
        return m.weights + m.weight_copies + m.gradients + m.optimizer

    def in_flight(self, layer: int, batch_size: int) -> int:
        """Samples whose activations a pipelined layer holds: those that passed it and have not yet come back."""
        deep = 2 * (len(self.names) - layer) - 1
        return min(batch_size, deep) if self.trains else 1

    def split(
        self,
        counts: Sequence[int],
        chip_bytes: int,
        chip_cores: int,
        saved: Callable[[int, int], list[int]],
    ) -> tuple[list[Stage] | None, int | None]:
        """The first of these numbers of stages that holds the step, and the largest batch that any of them holds.

        `saved` gives what a batch of some size keeps in each layer, in so many stages.
        """
        work, fixed = self.work, [self.stage_bytes(i) for i in range(len(self.names))]

        def fits(batch_size: int) -> bool:
            peak = self.memory.peak_at(batch_size)
            return any(
                can_split(work, fixed, saved(batch_size, n), n, chip_bytes, self.trains, peak) for n in counts
            )

        batch, peak = self.memory.batch_size, self.memory.peak
        splits = (
            split_stages(work, fixed, saved(batch, n), n, chip_bytes, chip_cores, self.trains, peak)
            for n in counts
        )
        return next((found for found in splits if found is not None), None), search_batch(fits, None)


def search_batch(fits: Callable[[int], bool], limit: int | None) -> int | None:
    """The largest batch that fits, by doubling and halving; None if the batch does not matter from `limit` on."""
    if not fits(1):
        return 0
    if limit is not None and fits(limit):
        return None
    low, high = 1, 2
    while fits(high):
        low, high = high, high * 2
        if high > 2**40:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
