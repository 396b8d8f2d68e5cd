"""poptorch.Options from params.yaml."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from portwright.errors import UserError
from portwright.job.params import Params
from portwright.runtime.precision import resolve_precision
from portwright.targets.ipu.section import IpuSection


@dataclass(frozen=True)
class Settings:
    """A run's settings from params.yaml, with all defaults resolved."""

    section: IpuSection
    accumulation: int
    seed: int
    is_half: bool
    scales_loss: bool  # whether PopTorch chooses the loss scale

    @property
    def batches_per_step(self) -> int:
        return self.accumulation * self.section.replication_factor

    @property
    def batches_per_call(self) -> int:
        return self.batches_per_step * self.section.device_iterations

    @property
    def eval_iterations(self) -> int:
        stages = self.section.num_stages if self.section.is_pipelined else 1
        return self.section.eval_device_iterations or stages


def read_settings(params: Params, note: Callable[[str], None]) -> Settings:
    section = params.sections.get("ipu")
    section = section if isinstance(section, IpuSection) else IpuSection.model_validate({})
    # where half means float16
    precision = resolve_precision(params.values, params.runconfig.precision, "cuda")
    for line in precision.notes:
        note(line)
    if precision.name not in ("fp32", "fp16"):
        raise UserError(
            f"an IPU has no {precision.name}.", "Set runconfig.precision to fp32 or fp16, or leave it out."
        )
    is_half = precision.name == "fp16"
    if is_half:
        note("fp16 on IPU: weights and activations are float16, unlike mixed precision elsewhere.")
    if params.runconfig.compile:
        note(
            "runconfig.compile has no effect on IPU: PopTorch compiles every program, and takes none of torch.compile's."
        )
    spec = params.optimizer
    return Settings(
        section,
        _accumulation(section, params),
        params.runconfig.seed if section.random_seed is None else section.random_seed,
        is_half,
        is_half and spec.loss_scaling_factor == "dynamic",
    )


def _accumulation(section: IpuSection, params: Params) -> int:
    """The accumulation, which two keys can give; where both do, they must agree."""
    ours, theirs = params.optimizer.grad_accum_steps, section.gradient_accumulation
    if "gradient_accumulation" not in section.model_fields_set:
        return ours
    if "grad_accum_steps" in params.optimizer.model_fields_set and ours != theirs:
        raise UserError(
            f"{params.locate('ipu.gradient_accumulation')}: ipu.gradient_accumulation is {theirs} and "
            f"optimizer.grad_accum_steps {ours}, and both mean the same.",
            "Keep one of them.",
        )
    return theirs


def make_options(poptorch: Any, settings: Settings, *, trains: bool, is_offline: bool) -> Any:
    """The options of a training program, or of one for evaluation and prediction."""
    section = settings.section
    options = poptorch.Options()
    options.deviceIterations(section.device_iterations if trains else settings.eval_iterations)
    options.randomSeed(settings.seed)
    options.outputMode(getattr(poptorch.OutputMode, section.output_mode.capitalize() if trains else "All"))
    if trains:
        options.replicationFactor(section.replication_factor)
        options.broadcastBuffers(section.broadcast_buffers)
        options.Training.gradientAccumulation(settings.accumulation)
        options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
        if settings.scales_loss:
            options.Training.setAutomaticLossScaling(True)
    if section.partials == "half":
        options.Precision.setPartialsType(torch.half)
    if section.stochastic_rounding:
        options.Precision.enableStochasticRounding(True)
    if section.available_memory_proportion is not None:
        given = section.available_memory_proportion
        ipus = sorted({block.ipu for block in section.blocks} or {0})
        options.setAvailableMemoryProportion(
            given if isinstance(given, dict) else {f"IPU{ipu}": given for ipu in ipus}
        )
    if section.enable_executable_caching is not None:
        options.enableExecutableCaching(str(Path(section.enable_executable_caching).expanduser()))
    if section.synthetic_data:
        options.enableSyntheticData(True)
    if section.auto_round_num_ipus:
        options.autoRoundNumIPUs(True)
    if section.blocks:
        stages = [poptorch.Stage(name).ipu(ipu) for name, ipu in section.stages().items()]
        kind = poptorch.PipelinedExecution if section.is_pipelined else poptorch.ShardedExecution
        options.setExecutionStrategy(kind(*stages))
    if is_offline:
        options.useOfflineIpuTarget(section.offline_target)
    else:
        names = {"always": "Always", "on_demand": "OnDemand"}
        options.connectionType(getattr(poptorch.ConnectionType, names[section.connection_type]))
    return options


KEYS = {
    "deviceIterations": "device_iterations",
    "replicationFactor": "replication_factor",
    "broadcastBuffers": "broadcast_buffers",
    "gradientAccumulation": "gradient_accumulation",
    "setPartialsType": "partials",
    "outputMode": "output_mode",
    "setAvailableMemoryProportion": "available_memory_proportion",
    "setExecutionStrategy": "execution",
    "autoRoundNumIPUs": "auto_round_num_ipus",
    "enableExecutableCaching": "enable_executable_caching",
    "enableStochasticRounding": "stochastic_rounding",
    "randomSeed": "random_seed",
    "useOfflineIpuTarget": "offline_target",
    "enableSyntheticData": "synthetic_data",
    "connectionType": "connection_type",
}
"""PopTorch's options, and the keys of the section that set them."""
