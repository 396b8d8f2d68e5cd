"""What a step of a model needs: by a formula over its weights, or from a step captured on tensors without data."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from portwright.base_model import LossModule, PyTorchBaseModel
from portwright.errors import UserError
from portwright.job.execution import StreamingSection
from portwright.patched import patched
from portwright.runtime.construct import stored_tensors
from portwright.runtime.inputs import Inputs
from portwright.runtime.precision import Precision
from portwright.runtime.speed_model import StreamedLayer
from portwright.runtime.world import World
from portwright.target import JobSpec
from portwright.watching.random_states import untouched_rng
from portwright.watching.trees import make_mover


@dataclass(frozen=True)
class StateBytes:
    """What a step keeps, independent of its batch."""

    weights: int  # and buffers
    gradients: int
    optimizer: int
    num_parameters: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


@dataclass(frozen=True)
class CapturedStep:
    """A step as the planner measures it."""

    peak_bytes: int  # everything resident
    gradient_bytes: int
    streamed_device_bytes: int
    streamed_host_bytes: int
    batch_size: int
    layers: tuple[StreamedLayer, ...]
    rest_flops: float


def weight_bytes(module: LossModule, precision: Precision) -> int:
    """Bytes of weights and buffers; takes a few microseconds."""
    widened = 2 if precision.name == "fp64" else 1  # from float32, when the session prepares them
    return widened * sum(tensor.nbytes for tensor in stored_tensors(module.net))


def count_state(job: JobSpec, module: LossModule, precision: Precision) -> StateBytes:
    """Counts weights, a gradient for each trained one, and the optimizer's state, by a formula."""
    from portwright.graph.graph import Value
    from portwright.graph.plans.optimizer_state import OptimizerCost

    weights = weight_bytes(module, precision)
    parameters = [(name, p) for name, p in module.net.named_parameters() if not is_lazy(p)]
    num_parameters = sum(parameter.numel() for _, parameter in parameters)
    if job.mode not in ("train", "train_and_eval"):
        return StateBytes(weights, 0, 0, num_parameters)
    cost = OptimizerCost(*optimizer_of(job, module))
    gradients = optimizer = 0
    for name, parameter in parameters:
        if parameter.requires_grad:
            dtype = "float64" if precision.name == "fp64" else str(parameter.dtype).removeprefix("torch.")
            value = Value(0, tuple(parameter.shape), dtype, "parameter", name, requires_grad=True)
            gradients += value.num_bytes
            optimizer += cost.bytes_of(value)
    return StateBytes(weights, gradients, optimizer, num_parameters)


def optimizer_of(job: JobSpec, module: LossModule) -> tuple[str, dict[str, Any]]:
    """Name and options of the optimizer; that of the user's own model is unknown until it is made."""
    user = module.__dict__["user_model"]
    own = getattr(type(user), "get_optimizer", None)
    if own is not None and own is not PyTorchBaseModel.get_optimizer:
        return "the model's own", {}
    spec = job.params.optimizer
    return spec.optimizer_type, spec.model_dump()


def capture_step(
    job: JobSpec, module: LossModule, device: torch.device, world: World, precision: Precision
) -> CapturedStep:
    """Runs one step on fake tensors, weights included, and measures it; raises UserError where that cannot be done.

    The module and all random generators are unchanged afterwards.
    """
    from portwright.graph.capturing.capture import capture
    from portwright.graph.plans.fit import measure_streamed
    from portwright.graph.plans.flops import count_flops
    from portwright.graph.plans.memory import measure_memory
    from portwright.graph.plans.optimizer_state import OptimizerCost
    from portwright.graph.plans.rows import Rows

    trains = job.mode in ("train", "train_and_eval")
    batch = _first_batch(job, "train_input" if trains else "eval_input", device, world)
    host = torch.device("cpu")
    move = make_mover(host, precision.batch_dtype)
    precision.prepare(module.net)
    name, options = optimizer_of(job, module)
    with _taking_host_for_device(module):
        graph = capture(
            lambda: module,
            batch if move is None else move(batch),
            trains=trains,
            casts=nullcontext() if precision.half is None else torch.autocast("cpu", dtype=precision.half),
            optimizer=name,
            fuses_attention=True,
        )
    broken = next((stop for stop in graph.stops if stop.is_last or stop.kind == "failure"), None)
    if broken is not None:
        raise UserError(f"the step cannot be captured: {broken.message}")
    rows = Rows(graph)
    memory = measure_memory(graph, rows, OptimizerCost(name if trains else "", options))
    flops = count_flops(graph, rows)
    section = job.params.runconfig.streaming
    names = [row.name for row in rows.rows]
    streamed = measure_streamed(memory, names, trains, section.slots)
    chosen = set(streamed.layers)
    num_passes = job.params.optimizer.grad_accum_steps if trains else 1
    scale = memory.batch_size * num_passes
    layers = tuple(
        _streamed_layer(
            memory.layers[i],
            flops.forward_of[i].total * scale,
            flops.backward_of[i].total * scale,
            num_passes,
            section,
        )
        for i in streamed.layers
    )
    return CapturedStep(
        # Accumulated gradients live through the next batch's passes; the captured step has only one batch.
        memory.peak + (memory.gradients if num_passes > 1 else 0),
        memory.gradients,
        streamed.device_bytes,
        streamed.host_bytes,
        memory.batch_size * num_passes,
        layers,
        scale * sum(flops.of(i).total for i in range(len(names)) if i not in chosen),
    )


def _streamed_layer(
    memory: Any, forward: float, backward: float, num_passes: int, section: StreamingSection
) -> StreamedLayer:
    sent = memory.weight_copies or memory.weights
    gradient = memory.gradients * sent // max(memory.weights, 1)
    state = memory.optimizer // (2 if section.state_dtype == "bf16" else 1)
    updated = gradient + 2 * (memory.weights + state) + sent if gradient else 0
    if num_passes > 1 and gradient:
        updated += num_passes * (gradient + 2 * memory.weights)  # into the sums, which are fp32
    on_disk = 2 * (memory.weights + state) if section.store is not None else 0
    return StreamedLayer(forward, backward, sent * num_passes, gradient * num_passes, updated, on_disk)


def _taking_host_for_device(module: LossModule) -> AbstractContextManager[None]:
    """A user's model that moves batches to its `device` finds its weights there: under capture all are on the host."""
    user = module.__dict__["user_model"]
    device = None if isinstance(user, torch.nn.Module) else getattr(user, "device", None)
    is_settable = isinstance(device, torch.device)
    return patched(user, "device", torch.device("cpu")) if is_settable else nullcontext()


def _first_batch(job: JobSpec, name: str, device: torch.device, world: World) -> Any:
    quiet: Callable[[str], None] = lambda line: None  # noqa: E731 - the session's own loader will tell it
    with untouched_rng(device):
        batches = Inputs(job, quiet, rank=world.rank, world_size=world.size).first_batches(name, 1)
    if not batches:
        raise UserError(f"{name} has no batch.")
    return batches[0]
