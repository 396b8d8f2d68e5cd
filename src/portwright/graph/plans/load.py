"""What a step needs of a machine, its split into pipeline stages, and the result of trying one execution mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from portwright.graph.plans.estimate import Rectangle, Shares, share_cores, wanted_cores
from portwright.graph.plans.flops import Flops
from portwright.graph.plans.memory import Memory
from portwright.target import ExecutionMode


@dataclass(frozen=True)
class Stage:
    """One chip's part of a pipeline."""

    index: int
    layers: tuple[int, ...]  # numbers of the layers
    memory_bytes: int
    memory_available: int
    cores: int  # at least, to hold its memory
    cores_available: int
    cores_of: tuple[int, ...]  # of each of its layers, by work and memory
    share_of_work: float
    in_flight: int  # batches whose activations it holds

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def split_stages(
    work: Sequence[float],
    fixed: Sequence[int],
    saved: Sequence[int],
    num_stages: int,
    chip_bytes: int,
    chip_cores: int,
    trains: bool,
    peak_bytes: int,
) -> list[Stage] | None:
    """The split whose busiest stage has the least work; None where some stage cannot fit.

    `saved` are the activations of one batch. A single stage is not a pipeline: it holds the peak of the step.
    """
    num_layers = len(work)
    if num_layers == 0:
        return []
    if not 1 <= num_stages <= num_layers:
        return None
    if num_stages == 1:
        ranges = [(0, num_layers)] if peak_bytes <= chip_bytes else None
    else:
        ranges = _balance(work, fixed, saved, num_stages, chip_bytes, trains)
    if ranges is None:
        return None
    total = sum(work) or 1.0
    stages = []
    for index, (first, last) in enumerate(ranges):
        in_flight = _in_flight(index, num_stages, trains)
        needs = [fixed[i] + saved[i] * in_flight for i in range(first, last)]
        memory = peak_bytes if num_stages == 1 else sum(needs)
        per_core = max(chip_bytes // chip_cores, 1)
        shares = share_cores(work[first:last], [n / per_core for n in needs], chip_cores, chip_cores)
        stages.append(
            Stage(
                index,
                tuple(range(first, last)),
                memory,
                chip_bytes,
                min(chip_cores, -(-memory // per_core)),
                chip_cores,
                tuple(int(c) for c in shares.cores) if shares is not None else (),
                sum(work[first:last]) / total,
                in_flight,
            )
        )
    return stages


def can_split(
    work: Sequence[float],
    fixed: Sequence[int],
    saved: Sequence[int],
    num_stages: int,
    chip_bytes: int,
    trains: bool,
    peak_bytes: int,
) -> bool:
    """Whether `split_stages` would find a split, without looking for the best."""
    if num_stages == 1 or not work:
        return not work or peak_bytes <= chip_bytes
    if num_stages > len(work):
        return False
    return _fill(work, fixed, saved, num_stages, chip_bytes, trains, float("inf")) is not None


def _in_flight(stage: int, num_stages: int, trains: bool) -> int:
    return 2 * (num_stages - stage) - 1 if trains else 1


def _balance(
    work: Sequence[float],
    fixed: Sequence[int],
    saved: Sequence[int],
    num_stages: int,
    chip_bytes: int,
    trains: bool,
) -> list[tuple[int, int]] | None:
    """Finds the least work of the busiest stage by bisection; a greedy fill tells whether a bound can be kept."""
    fullest = _fill(work, fixed, saved, num_stages, chip_bytes, trains, float("inf"))
    if fullest is None:
        return None
    low, high, best = max(work, default=0.0), sum(work), fullest
    for _ in range(60):
        middle = (low + high) / 2
        tried = _fill(work, fixed, saved, num_stages, chip_bytes, trains, middle)
        if tried is None:
            low = middle
        else:
            high, best = middle, tried
    return best


def _fill(
    work: Sequence[float],
    fixed: Sequence[int],
    saved: Sequence[int],
    num_stages: int,
    chip_bytes: int,
    trains: bool,
    most_work: float,
) -> list[tuple[int, int]] | None:
    """Gives each stage as many layers as work and memory allow, and leaves at least one for each stage behind it."""
    ranges, first, num_layers = [], 0, len(work)
    for stage in range(num_stages):
        in_flight = _in_flight(stage, num_stages, trains)
        last, done, held = first, 0.0, 0
        while last < num_layers - (num_stages - stage - 1):
            more, size = work[last], fixed[last] + saved[last] * in_flight
            if last > first and (done + more > most_work or held + size > chip_bytes):
                break
            if held + size > chip_bytes or done + more > most_work:
                return None
            done, held, last = done + more, held + size, last + 1
        ranges.append((first, last))
        first = last
    return ranges if first == num_layers else None


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
