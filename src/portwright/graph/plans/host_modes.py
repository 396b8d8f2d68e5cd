"""Modes of a device that has a host beside it, as runconfig.execution names them: resident, streaming, pipelined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from portwright.graph.plans.load import Fit, Load
from portwright.graph.plans.memory import Memory, Moment, largest_batch, most_bytes
from portwright.job.sizes import show_bytes
from portwright.target import ExecutionMode, Hardware

_MOST_PROCESSES = 64
_MICRO_BATCHES = 4  # by stage, without runconfig.pipeline.micro_batches


def as_a_run_chooses(tried: Mapping[ExecutionMode, Fit]) -> Fit:
    """Chooses as `runconfig.execution: auto` does with one process: resident if it fits, else streaming."""
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
    """A pipeline over as few processes as hold the step, each with its own device."""
    capacity = machine.memory_bytes
    formula = "per stage: weights + copies + gradients + optimizer + saved activations of the micro-batches in flight; one device a stage"
    if not capacity:
        why = f"a step takes {show_bytes(load.memory.peak)} over all stages; the memory of {machine.name} is not known here"
        return Fit("layer_pipelined", None, load.memory.peak, 0, why, None, formula)
    most = max(1, min(len(load.names), _MOST_PROCESSES))

    def micro(batch_size: int, num_stages: int) -> list[int]:
        """What a micro-batch saves in each layer."""
        pieces = min(batch_size, _MICRO_BATCHES * num_stages)
        return [
            -(-layer.activations * batch_size // (load.memory.batch_size * pieces))
            for layer in load.memory.layers
        ]

    stages, largest = load.split(range(1, most + 1), capacity, machine.num_cores or 1, micro)
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


SLOTS = 3  # runconfig.streaming.slots, where nothing else is said
_GRADIENT_SLOTS = 2  # on the device
_GRADIENT_RING = 4  # layers' gradients on the host, on their way to the update
FORMULA = (
    "on the device: slots * the largest layer's weights in the dtype that it computes in + 2 * its gradients + all that is outside the "
    "layers + the layers' inputs, kept for recomputing + most over layers of what one makes and reads at once; beside it: the layers' "
    "weights and optimizer state, half-precision copies to send, and 4 * the largest layer's gradients"
)


@dataclass(frozen=True)
class Streamed:
    """Bytes of a streamed step, for the batch that was captured."""

    device_bytes: int
    host_bytes: int
    moments: tuple[Moment, ...]  # on the device, by which a batch of another size is judged
    layers: tuple[int, ...]  # numbers of the layers that are streamed; the rest lives on the device


def streamed_layers(paths: Sequence[str]) -> tuple[int, ...]:
    """The layers that are items of lists; all layers of a model without lists."""
    items = tuple(i for i, path in enumerate(paths) if any(part.isdecimal() for part in path.split(".")))
    return (
        items
        or tuple(i for i, path in enumerate(paths) if path and path != "(model)")
        or tuple(range(len(paths)))
    )


def measure_streamed(memory: Memory, paths: Sequence[str], trains: bool, slots: int = SLOTS) -> Streamed:
    """Derives a streamed step from the measured resident step; `paths` are those of its layers."""
    chosen = tuple(i for i in streamed_layers(paths) if memory.layers[i].weights)
    rest = [i for i in range(len(memory.layers)) if i not in set(chosen)]
    layers = memory.layers
    sent = [_sent(memory, i) for i in chosen]
    gradients = [layers[i].gradients for i in chosen]
    on_device = min(slots, len(chosen)) * max(sent, default=0)
    on_device += min(_GRADIENT_SLOTS, len(chosen)) * max(gradients, default=0)
    on_device += sum(
        layers[i].weights + layers[i].weight_copies + layers[i].gradients + layers[i].optimizer for i in rest
    )
    kept = {
        i: (layers[i].entering if i in set(chosen) else layers[i].activations) for i in range(len(layers))
    }
    whole = sum(kept.values()) if trains else 0
    moments = tuple(
        Moment(
            work.scaled + memory.inputs + (whole - kept[i] if trains else 0),
            work.fixed + on_device,
        )
        for i, work in enumerate(memory.working)
    ) or (Moment(memory.inputs, on_device),)
    # Weights that are sent in their stored type need no copy.
    host = sum(layers[i].weights + layers[i].optimizer + layers[i].weight_copies for i in chosen)
    host += min(_GRADIENT_RING, len(chosen)) * max(gradients, default=0)
    return Streamed(most_bytes(moments, memory.batch_size, memory.batch_size), host, moments, chosen)


def _sent(memory: Memory, layer: int) -> int:
    """Bytes of a layer's weights as they are sent: in half precision where the device computes in that."""
    return memory.layers[layer].weight_copies or memory.layers[layer].weights
