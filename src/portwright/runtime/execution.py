"""Where a run's weights live: all on the device, split over processes, or streamed; chosen before the model reaches the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from portwright.base_model import LossModule
from portwright.errors import UserError
from portwright.job.sizes import show_bytes
from portwright.runtime.construct import Made, construct
from portwright.runtime.precision import Precision, resolve_precision
from portwright.runtime.speed_model import (
    Expected,
    Verdict,
    expect_pipelining,
    expect_streaming,
    update_on_device,
)
from portwright.runtime.step_need import CapturedStep, StateBytes, capture_step, count_state, weight_bytes
from portwright.runtime.world import World
from portwright.target import JobSpec

Mode = Literal["resident", "pipelined", "streaming"]
Note = Callable[[str], None]

# Weights, a gradient each, and the most that an optimizer keeps (three tensors), and DDP's copy of the gradients.
_MOST_COPIES = 6
_SAFETY_FACTOR = 4  # state that takes a quarter of the memory at most counts as fitting, whatever the batch
_CAPTURE_MARGIN = 1.1  # a captured step does not show workspaces and fragmentation
_FORMULA_MARGIN = 1.25  # the formula leaves out activations too
_HOST = torch.device("cpu")
_WORTH_ESTIMATING = 2**28  # bytes of weights; a smaller model is streamed only as a test


@dataclass(frozen=True)
class Choice:
    """An execution mode, and why."""

    mode: Mode
    why: str
    expected: Expected | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    is_plain: bool = False  # the ordinary case, which is not logged

    @property
    def line(self) -> str:
        """What the log says of it."""
        said = f"execution: {self.mode}, {self.why}"
        if self.expected is None or self.mode == "resident":
            return f"{said}."
        expected = self.expected
        bound = expected.bound if expected.bound == "compute" else f"the {expected.bound}"
        said += f"; expected about {expected.share:.2f} of resident speed (estimated), bound by {bound}"
        if expected.share_if_clipped is not None:
            said += f"; about {expected.share_if_clipped:.2f} where max_gradient_norm acts in every step"
        if expected.not_counted:
            said += f". Not counted: {', '.join(expected.not_counted)}"
        return f"{said}."

    def as_json(self, rates: Mapping[str, float] | None = None) -> dict[str, Any]:
        """The choice as it stands in a run's outcome; `rates` were measured in that run."""
        document: dict[str, Any] = {"mode": self.mode, "why": self.why, **self.numbers}
        document["expected"] = None if self.expected is None else self.expected.as_json()
        document["measured"] = dict(rates) if rates else None
        return document


def device_capacity(device: torch.device, job: JobSpec, num_sharing: int = 1) -> int:
    """Bytes that a step may take on the device; 0 where unknown. Processes on one CPU share its memory."""
    cap = job.params.runconfig.streaming.device_memory
    if device.type == "cuda":
        free = int(torch.cuda.mem_get_info(device)[0])
        return free if cap is None else min(free, cap)
    if cap is not None:
        return cap
    from portwright.runtime.streaming.host_memory import read_host_memory

    return read_host_memory().limit_bytes // max(num_sharing, 1)


def sure_weight_bytes(capacity: int) -> int:
    """Weights of at most so many bytes certainly fit, together with their gradients and optimizer state."""
    return capacity // (_SAFETY_FACTOR * _MOST_COPIES)


def choose_execution(
    job: JobSpec,
    module: LossModule,
    device: torch.device,
    world: World,
    note: Note,
    *,
    capacity: int | None = None,
) -> Choice:
    """Decides as `runconfig.execution` says; auto: resident if a step fits, else streaming.

    The module is on the host, or on the device if it is small. For a small one the planner is not imported.
    """
    config = job.params.runconfig
    capacity = device_capacity(device, job, world.size) if capacity is None else capacity
    precision = resolve_precision(job.params.values, config.precision, device.type)
    asked = _asked_for(job)
    if config.wanted_execution == "resident":
        return Choice("resident", asked, Expected(1.0, "compute"), is_plain=True)
    if config.wanted_execution == "streaming":
        return _streamed(job, module, device, world, note, precision, asked, None)
    weights = weight_bytes(module, precision)
    if not capacity or weights <= sure_weight_bytes(capacity):
        return Choice(
            "resident",
            "since it fits",
            Expected(1.0, "compute"),
            {"weight_bytes": weights, "capacity_bytes": capacity or None},
            is_plain=True,
        )
    return _by_need(job, module, device, world, note, precision, capacity)


def prepare_execution(
    job: JobSpec, device: torch.device, world: World, note: Note, num_sharing: int = 1
) -> tuple[JobSpec, Choice]:
    """The mode of a job, and the job with the model that was made to find it; all processes come to the same mode."""
    wanted = job.params.runconfig.wanted_execution
    if wanted == "resident":
        return job, Choice("resident", _asked_for(job), Expected(1.0, "compute"), is_plain=True)
    if wanted == "pipelined":
        return job, choose_pipelined(job, world)

    def make_and_choose() -> tuple[Made, Choice]:
        # Refuses an impossible precision before the model is made.
        resolve_precision(job.params.values, job.params.runconfig.precision, device.type)
        capacity = device_capacity(device, job, num_sharing) if wanted == "auto" else 0
        limit = sure_weight_bytes(capacity) if capacity else None
        made = construct(job, device, limit) if wanted == "auto" else construct(job, _HOST, None)
        quiet_unless_main = note if world.is_main else _drop_note
        return made, choose_execution(job, made.module, device, world, quiet_unless_main, capacity=capacity)

    made, choice = world.agree_on_failure(make_and_choose)
    if "streaming" in world.gather(choice.mode) and choice.mode != "streaming":
        choice = Choice(
            "streaming", "since it does not fit the device of another process", None, choice.numbers
        )
    if choice.mode == "streaming":
        made.module.net.to(_HOST)  # a part of it may have gone to the device already
    elif made.was_kept_on_host and made.drew_meanwhile:
        return job, choice  # the session makes it anew, since the device draws other numbers
    return made.as_model_of(job), choice


def _drop_note(line: str) -> None:
    """The `note` of every process but the first, whose notes would be the same."""


def choose_pipelined(job: JobSpec, world: World) -> Choice:
    """A pipeline as asked for, with the share of time that it is filled."""
    section = job.params.runconfig.pipeline
    num_stages = section.stages or max(1, world.size // section.replicas)
    num_micro = section.micro_batches or (4 * num_stages if num_stages > 1 else 1)
    numbers = {"stages": num_stages, "replicas": section.replicas, "micro_batches": num_micro}
    expected = expect_pipelining(num_stages, num_micro)
    if num_stages > 1:
        left_out = ["stages that take unequally long", "what they send each other"]
        if section.schedule not in ("gpipe", "1f1b"):
            left_out.append(f"that {section.schedule} fills more than 1f1b")
        expected = replace(expected, not_counted=tuple(left_out))
    return Choice("pipelined", _asked_for(job), expected, numbers)


def _asked_for(job: JobSpec) -> str:
    config = job.params.runconfig
    if config.execution == "auto" and config.execution_strategy is not None:
        return f"as runconfig.execution_strategy: {config.execution_strategy} asks for"
    return f"as runconfig.execution: {config.execution} asks for"


def _by_need(
    job: JobSpec,
    module: LossModule,
    device: torch.device,
    world: World,
    note: Note,
    precision: Precision,
    capacity: int,
) -> Choice:
    config = job.params.runconfig
    state = count_state(job, module, precision)
    shards = world.size if config.distributed == "fsdp" else 1
    buckets = state.gradients if world.size > 1 and shards == 1 else 0
    least = state.total // shards + buckets
    numbers: dict[str, Any] = {
        "weight_bytes": state.weights,
        "gradient_bytes": state.gradients,
        "optimizer_bytes": state.optimizer,
        "parameters": state.num_parameters,
        "capacity_bytes": capacity,
    }
    where = f"{show_bytes(capacity)} {_memory_of(job, device, capacity)}"
    step: CapturedStep | None = None
    if least > capacity:  # even without any activations
        needed, fits = least, False
        why = f"since weights, gradients and optimizer state ({show_bytes(least)}) do not fit the {where}"
    else:
        step, reason = _try_to_capture(job, module, device, world, precision)
        if step is None:
            note(
                f"what a step needs is taken from its weights and optimizer alone, without activations: {reason}"
            )
            needed = int(_FORMULA_MARGIN * least)
        else:
            needed = int(_CAPTURE_MARGIN * (step.peak_bytes - state.total + least))
        fits = needed <= capacity
        verb = "fits" if fits else "does not fit"
        why = f"since a step of about {show_bytes(needed)} (estimated) {verb} the {where}"
    numbers["needed_bytes"] = needed
    numbers["needed_from"] = "the formula" if step is None else "a captured step"
    if fits:
        return Choice("resident", why, Expected(1.0, "compute"), numbers)
    obstacle = _obstacle(job)
    if obstacle is not None:
        return Choice("resident", f"{why.replace('since', 'though')}, because {obstacle}", None, numbers)
    chosen = _streamed(job, module, device, world, note, precision, why, state, step)
    streamed = chosen.numbers.get("device_bytes", 0)
    if streamed > capacity:
        chosen = replace(
            chosen,
            why=f"{why} (streamed it takes about {show_bytes(streamed)} (estimated): it may need a smaller batch)",
        )
    return replace(chosen, numbers={**numbers, **chosen.numbers})


def _obstacle(job: JobSpec) -> str | None:
    """What the params ask for that cannot be streamed."""
    if job.params.runconfig.compile:
        return "runconfig.compile does not go with streaming"
    if job.params.runconfig.distributed == "fsdp":
        return "runconfig.distributed: fsdp asks for resident shards"
    return None


def _streamed(
    job: JobSpec,
    module: LossModule,
    device: torch.device,
    world: World,
    note: Note,
    precision: Precision,
    why: str,
    state: StateBytes | None,
    step: CapturedStep | None = None,
) -> Choice:
    """Streaming, with the speed that it will probably have; a small model that is streamed for a test is not measured."""
    if state is None and weight_bytes(module, precision) < _WORTH_ESTIMATING:
        return Choice("streaming", why)
    if step is None:
        step, reason = _try_to_capture(job, module, device, world, precision)
        if step is None:
            note(f"the speed of streaming is not estimated: {reason}")
            return Choice("streaming", why)
    from portwright.runtime.speed_model import measure_rates

    section = job.params.runconfig.streaming
    half = precision.half or torch.float32
    rates = measure_rates(device, half, section.store is not None)
    layers, spec = step.layers, job.params.optimizer
    trains = job.mode in ("train", "train_and_eval")
    has_native = half is not torch.float32 and spec.optimizer_type in ("Adam", "AdamW")
    if device.type != "cpu" and trains and has_native and spec.is_plain and world.size == 1:
        layers = tuple(update_on_device(layers, section.share_on_device(True)))
    if world.size > 1:  # each process sends and updates its share
        layers = tuple(
            replace(
                layer,
                sent_bytes=layer.sent_bytes // world.size,
                gradient_bytes=layer.gradient_bytes // world.size,
                update_bytes=layer.update_bytes // world.size,
                disk_bytes=layer.disk_bytes // world.size,
            )
            for layer in layers
        )

    def expect(verdict: Verdict) -> Expected:
        return expect_streaming(
            layers,
            step.rest_flops,
            rates,
            slots=section.slots,
            trains=trains,
            shares_cores=device.type == "cpu",
            verdict=verdict,
        )

    clips = trains and spec.max_gradient_norm is not None
    has_verdict = clips or (trains and spec.loss_scaling_factor != 1.0)
    expected = expect("waited for" if has_verdict and spec.grad_accum_steps > 1 else "none")
    if clips and spec.grad_accum_steps == 1:
        expected = replace(expected, share_if_clipped=expect("repeats").share)
    expected = replace(expected, not_counted=tuple(_not_counted(job, world, has_verdict)))
    numbers: dict[str, Any] = {
        "device_bytes": step.streamed_device_bytes,
        "host_bytes": step.streamed_host_bytes // world.size,  # of each process
        "store": section.store,
        "rates": rates.as_json(),
    }
    if expected.step_seconds:
        numbers["expected_samples_per_second"] = step.batch_size * world.size / expected.step_seconds
    return Choice("streaming", why, expected, numbers)


def _not_counted(job: JobSpec, world: World, has_verdict: bool) -> Iterator[str]:
    """What is in force and changes the speed of streaming by an amount that the estimate does not know."""
    config = job.params.runconfig
    if has_verdict and job.params.optimizer.grad_accum_steps == 1:
        yield "what it costs that an update can be undone (max_gradient_norm, loss scaling)"
    if config.streaming.offload_activations:
        yield "streaming.offload_activations"
    if config.streaming.store is not None:
        yield "the own speed of the disk of streaming.store (3 GB/s are assumed)"
    if world.size > 1:
        yield "what the processes exchange"


def _try_to_capture(
    job: JobSpec, module: LossModule, device: torch.device, world: World, precision: Precision
) -> tuple[CapturedStep | None, str]:
    try:
        return capture_step(job, module, device, world, precision), ""
    except (
        Exception
    ) as error:  # the user's data function and model may raise anything; the run itself will show it
        said = error.message if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        return None, " ".join(said.split())[:300]


def _memory_of(job: JobSpec, device: torch.device, capacity: int) -> str:
    if capacity == job.params.runconfig.streaming.device_memory:
        return "that runconfig.streaming.device_memory allows"
    return "of this machine" if device.type == "cpu" else f"that are free on {device}"
