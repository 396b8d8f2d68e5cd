"""Modes of a device that has a host beside it, as runconfig.execution names them: resident, streaming, pipelined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from portwright.graph.plans.load import Fit, Load, search_batch
from portwright.graph.plans.memory import largest_batch
from portwright.graph.plans.stages import can_split, split_stages
from portwright.graph.plans.streamed import FORMULA, measure_streamed
from portwright.job.sizes import show_bytes
from portwright.target import ExecutionMode, Hardware

_MOST_PROCESSES = 64
_MICRO_BATCHES = 4  # a stage, where runconfig.pipeline.micro_batches is left out


def as_a_run_chooses(tried: Mapping[ExecutionMode, Fit]) -> Fit:
    """As `runconfig.execution: auto` does with one process: resident if it fits, else streaming."""
    resident, streaming = tried["resident"], tried.get("weight_streaming")
    if resident.fits is None:
        return replace(resident, why_mode="the memory is not known, so nothing speaks against it")
    if resident.fits or streaming is None:
        return replace(resident, why_mode="everything fits, and nothing is faster")
    return replace(streaming, why_mode=f"resident does not fit: {resident.why}")


def streamed_from_host(load: Load, machine: Hardware) -> Fit:
    """A few layers' weights are on the device at a time; all of them, and the optimizer's state, are in host memory."""
    capacity, room = machine.memory_bytes, machine.streaming_bytes
    step = measure_streamed(load.memory, load.names, load.trains)
    why = (
        f"a step takes {show_bytes(step.device_bytes)}{f' of {show_bytes(capacity)}' if capacity else ''} on the device and "
        f"{show_bytes(step.host_bytes)}{f' of {show_bytes(room)}' if room else ''} of host memory"
    )
    fits: bool | None = step.device_bytes <= capacity if capacity else None
    best = largest_batch(step.moments, load.memory.batch_size, capacity) if capacity else None
    needed, limit = step.device_bytes, capacity
    if room is not None and step.host_bytes > room:
        fits, best, needed, limit = False, 0, step.host_bytes, room
        why += ", which is too little (runconfig.streaming.store puts it on a disk)"
    return Fit("weight_streaming", fits, needed, limit, why, best, FORMULA, host_bytes=step.host_bytes)


def split_over_processes(load: Load, machine: Hardware) -> Fit:
    """As few processes as hold the step, each with a device of its own."""
    capacity = machine.memory_bytes
    formula = "per stage: weights + copies + gradients + optimizer + saved activations of the micro-batches in flight; one device a stage"
    if not capacity:
        why = f"a step takes {show_bytes(load.memory.peak)} over all stages; the memory of {machine.name} is not known here"
        return Fit("layer_pipelined", None, load.memory.peak, 0, why, None, formula)
    most = max(1, min(len(load.names), _MOST_PROCESSES))
    counts, work = range(1, most + 1), load.work
    fixed = [load.stage_bytes(i) for i in range(len(load.names))]

    def micro(batch_size: int, num_stages: int) -> list[int]:
        """What a micro-batch saves in each layer."""
        pieces = min(batch_size, _MICRO_BATCHES * num_stages)
        return [
            -(-layer.activations * batch_size // (load.memory.batch_size * pieces))
            for layer in load.memory.layers
        ]

    def fits(batch_size: int) -> bool:
        peak = load.memory.peak_at(batch_size)
        return any(
            can_split(work, fixed, micro(batch_size, n), n, capacity, load.trains, peak) for n in counts
        )

    batch = load.memory.batch_size
    split = (
        split_stages(
            work, fixed, micro(batch, n), n, capacity, machine.num_cores or 1, load.trains, load.memory.peak
        )
        for n in counts
    )
    stages = next((found for found in split if found is not None), None)
    largest = search_batch(fits, None)
    if stages is None:
        why = (
            f"a step takes {show_bytes(load.memory.peak)}, and no split of its {len(load.names)} layer(s) over up to {most} "
            f"process(es) with {show_bytes(capacity)} each holds its stages"
        )
        return Fit("layer_pipelined", False, load.memory.peak, capacity, why, largest, formula)
    needed = max((stage.memory_bytes for stage in stages), default=0)
    why = f"over {len(stages)} process(es), the fullest stage takes {show_bytes(needed)} of {show_bytes(capacity)}"
    by_work = tuple(replace(stage, cores_of=()) for stage in stages)  # a process has all cores of its device
    return Fit("layer_pipelined", True, needed, capacity, why, largest, formula, stages=by_work)
