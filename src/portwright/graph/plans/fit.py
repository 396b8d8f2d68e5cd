"""Whether a step fits a machine, in which execution mode, and what it would take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from portwright.errors import UserError, suggest
from portwright.graph.plans.estimate import Rectangle, Shares, place, share_cores
from portwright.graph.plans.load import Fit, Load, search_batch
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


PIPELINED_PARAMETERS = 10**9  # PSC Neocortex: layer pipelined is for models of less than a billion parameters
_SPELLINGS = {"pipeline": "layer_pipelined", "pipelined": "layer_pipelined", "streaming": "weight_streaming"}
# The value of runconfig.execution for a mode, on machines where a run has the choice.
_EXECUTIONS = {"resident": "resident", "layer_pipelined": "pipelined", "weight_streaming": "streaming"}


def parse_mode(text: str | None) -> ExecutionMode | None:
    if text is None or text == "auto":
        return None
    mode = _SPELLINGS.get(text.lower(), text.lower().replace("-", "_"))
    if mode not in _FIT_OF_MODE:
        raise UserError(f"unknown execution mode '{text}'.", suggest(mode, ["auto", *_FIT_OF_MODE]))
    return mode  # type: ignore[return-value]


def choose_fit(load: Load, machine: Hardware, forced: ExecutionMode | None = None) -> Fit:
    """Layer pipelined where it fits and the model is small enough, weight streaming otherwise, or what is forced."""
    modes = machine.modes or ("resident",)
    if forced is not None and forced not in modes:
        raise UserError(f"{machine.name} has no execution mode {forced}.", f"It has: {', '.join(modes)}.")
    tried = {mode: _try(mode, load, machine) for mode in (modes if forced is None else (forced,))}
    if forced is not None:
        return replace(tried[forced], why_mode="asked for with --mode")
    if len(modes) == 1:
        return replace(tried[modes[0]], why_mode=f"the only one that {machine.name} has")
    if "resident" in tried:
        return as_a_run_chooses(tried)
    pipelined, streaming = tried.get("layer_pipelined"), tried.get("weight_streaming")
    is_small = load.num_parameters < PIPELINED_PARAMETERS
    size = f"{load.num_parameters:,} parameters"
    if pipelined is not None and pipelined.fits and is_small:
        return replace(
            pipelined, why_mode=f"{size} are below a billion, and all layers fit on the chip together"
        )
    if streaming is not None:
        why = f"{size} are a billion or more"
        if is_small and pipelined is not None:
            why = f"{size} are below a billion, but pipelined they do not fit: {pipelined.why}"
        return replace(streaming, why_mode=why)
    best = next((fit for fit in tried.values() if fit.fits), next(iter(tried.values())))
    return replace(best, why_mode="the first that fits" if best.fits else "none fits; this one comes first")


def _try(mode: ExecutionMode, load: Load, machine: Hardware) -> Fit:
    fit = _FIT_OF_MODE[mode](load, machine)
    return replace(fit, execution=_EXECUTIONS[mode]) if _is_chosen_by_run(machine) else fit


def _is_chosen_by_run(machine: Hardware) -> bool:
    """Whether it is a device with a host beside it, on which runconfig.execution says where weights live."""
    return "resident" in machine.modes and len(machine.modes) > 1


def _resident(load: Load, machine: Hardware) -> Fit:
    memory, capacity = load.memory, machine.memory_bytes
    best = largest_batch(memory.moments, memory.batch_size, capacity - memory.resident) if capacity else None
    formula = "weights + optimizer + most at once of gradients, copies of weights, inputs and activations"
    if not capacity:
        why = f"a step takes {show_bytes(memory.peak)}; the memory of {machine.name} is not known here"
        return Fit("resident", None, memory.peak, 0, why, None, formula)
    fits = memory.peak <= capacity
    why = f"a step takes {show_bytes(memory.peak)} of {show_bytes(capacity)}"
    return Fit("resident", fits, memory.peak, capacity, why, best, formula)


def _streamed(load: Load, machine: Hardware) -> Fit:
    """One layer at a time is on the chip, with its weights, gradients and activations; all others are outside."""
    if _is_chosen_by_run(machine):
        return streamed_from_host(load, machine)
    memory, capacity = load.memory, _on_chip(machine)
    moments = tuple(
        Moment(work.scaled, work.fixed + (layer.weight_copies or layer.weights) + layer.gradients)
        for work, layer in zip(memory.working, memory.layers, strict=True)
    )
    needed = most_bytes(moments, memory.batch_size, memory.batch_size)
    best = largest_batch(moments, memory.batch_size, capacity)
    formula = (
        "most over layers of its weights (in the dtype that it computes in) + their gradients + what it makes and reads at once; "
        "all weights, optimizer state and what other layers save for the backward pass are beside the chip where they do not fit on it"
    )
    beside = memory.weights + memory.optimizer + max(0, memory.saved - (capacity - needed))
    why = (
        f"the largest layer takes {show_bytes(needed)} of {show_bytes(capacity)} on the chip, for {memory.batch_size} sample(s); "
        f"{show_bytes(beside)} are beside it"
    )
    if machine.streaming_bytes is not None and beside > machine.streaming_bytes:
        why += f", where {show_bytes(machine.streaming_bytes)} have room"
        return Fit("weight_streaming", False, beside, machine.streaming_bytes, why, 0, formula)
    return Fit("weight_streaming", needed <= capacity, needed, capacity, why, best, formula)


def _pipelined(load: Load, machine: Hardware) -> Fit:
    if _is_chosen_by_run(machine):
        return split_over_processes(load, machine)
    if machine.fabric is None:
        return _split_over_chips(load, machine)
    return _placed(load, machine, machine.fabric)


def _placed(load: Load, machine: Hardware, fabric: tuple[int, int]) -> Fit:
    """All layers side by side on one fabric, each on cores that hold its weights, state and activations in flight."""
    core_bytes = machine.core_memory_bytes or machine.memory_bytes / math.prod(fabric)
    available, capacity = fabric[0] * fabric[1], _on_chip(machine)
    memory, num_layers = load.memory, len(load.names)

    def needs(batch_size: int) -> list[int]:
        return [
            load.stage_bytes(i)
            + -(-memory.layers[i].activations // memory.batch_size) * load.in_flight(i, batch_size)
            for i in range(num_layers)
        ]

    def fits(batch_size: int) -> bool:
        return sum(max(1, math.ceil(need / core_bytes)) for need in needs(batch_size)) <= available

    bytes_of = needs(memory.batch_size)
    needed = sum(bytes_of)
    least = [need / core_bytes for need in bytes_of]
    best = search_batch(fits, 2 * num_layers)
    formula = (
        "sum over layers of weights + copies + gradients + optimizer + activations of one sample * samples in flight, "
        "min(batch, 2 * (layers behind it) + 1); in whole cores"
    )
    why = f"all layers together take {show_bytes(needed)} of {show_bytes(capacity)} on the chip"
    shares, rectangles = _lay_out(load.work, least, load.wanted_cores, fabric)
    if rectangles is None or shares is None:
        if fits(memory.batch_size):
            why += (
                f"; their {num_layers} rectangles do not fit on the fabric of {fabric[0]} x {fabric[1]} cores"
            )
        return Fit("layer_pipelined", False, needed, capacity, why, best, formula)
    return Fit("layer_pipelined", True, needed, capacity, why, best, formula, tuple(rectangles), shares)


def _lay_out(
    work: Sequence[float], least: Sequence[float], wanted: float, fabric: tuple[int, int]
) -> tuple[Shares | None, list[Rectangle] | None]:
    """Cores and rectangles; on a full fabric rounding takes some room, so a little less is tried."""
    available = fabric[0] * fabric[1]
    for fill in (1.0, 0.99, 0.98, 0.97, 0.96, 0.95, 0.94, 0.92, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5):
        shares = share_cores(work, least, wanted, fill * available)
        if shares is None:
            continue
        rectangles = place([max(1, math.ceil(c - 1e-6)) for c in shares.cores], fabric)
        if rectangles is not None:
            return shares, rectangles
    return None, None


def _split_over_chips(load: Load, machine: Hardware) -> Fit:
    """Contiguous stages of layers, one chip each; as few stages as hold the step."""
    memory = load.memory
    chip_bytes = machine.memory_bytes // machine.num_chips
    chip_cores = (machine.num_cores or machine.num_chips) // machine.num_chips

    def saved(batch_size: int, num_stages: int) -> list[int]:
        return [-(-layer.activations * batch_size // memory.batch_size) for layer in memory.layers]

    stages, largest = load.split(range(1, machine.num_chips + 1), chip_bytes, chip_cores, saved)
    formula = (
        "per stage: weights + copies + gradients + optimizer + saved activations * batches in flight, 2 * (stages behind it) + 1; "
        "one stage: the peak of the step"
    )
    capacity = machine.memory_bytes
    if stages is None:
        why = (
            f"a step takes {show_bytes(memory.peak)}, and no split over {machine.num_chips} chip(s) of "
            f"{show_bytes(chip_bytes)} holds its stages"
        )
        return Fit("layer_pipelined", False, memory.peak, capacity, why, largest, formula)
    needed = sum(stage.memory_bytes for stage in stages)
    why = f"{len(stages)} stage(s) take {show_bytes(needed)} on {len(stages)} chip(s) of {show_bytes(chip_bytes)}"
    return Fit("layer_pipelined", True, needed, capacity, why, largest, formula, stages=tuple(stages))


def _on_chip(machine: Hardware) -> int:
    """Memory for layers: that of the usable cores where their number is known."""
    if machine.fabric is not None and machine.core_memory_bytes is not None:
        return min(machine.memory_bytes, math.prod(machine.fabric) * machine.core_memory_bytes)
    return machine.memory_bytes


_FIT_OF_MODE: dict[str, Callable[[Load, Hardware], Fit]] = {
    "resident": _resident,
    "layer_pipelined": _pipelined,
    "weight_streaming": _streamed,
}


def fit_as_json(fit: Fit) -> dict[str, Any]:
    return {
        "fits": fit.fits,
        "mode": fit.mode,
        "why_mode": fit.why_mode,
        "why_fits": fit.why,
        "needed_bytes": fit.needed_bytes,
        "capacity_bytes": fit.capacity_bytes or None,
        "host_bytes": fit.host_bytes,
        "execution": fit.execution,
        "largest_batch": fit.largest_batch,
        "largest_batch_note": fit.batch_note or None,
    }
