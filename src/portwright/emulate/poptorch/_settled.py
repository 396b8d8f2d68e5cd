"""The options of one executor: a frozen copy in which nothing is left to defaults, and checks of what they ask for."""

from __future__ import annotations

from typing import Any

import torch

from portwright.emulate.poptorch import enums
from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch._refused import not_emulated
from portwright.emulate.poptorch.options import Options, PipelinedExecution, ShardedExecution


def settle(options: Any, training: bool) -> Any:
    """A copy with an output mode of its own; the user's options are frozen."""
    if options is None:
        settled: Any = Options()
    elif isinstance(options, Options):
        options._freeze()
        settled = options.clone()
    else:
        raise refuse(f"options must be a poptorch.Options, not {type(options).__name__} ({options!r}).")
    if not training and settled.Training.gradient_accumulation != 1:
        more = ""
        strategy = settled._execution_strategy
        if isinstance(strategy, PipelinedExecution) and not isinstance(strategy, ShardedExecution):
            more = " To feed a pipeline enough batches a call, use Options.deviceIterations."
        raise refuse(
            "an inferenceModel accumulates no gradients: Options.Training.gradientAccumulation is "
            f"{settled.Training.gradient_accumulation}, and must be 1.{more}"
        )
    if settled.defaultOutputMode():
        settled.outputMode(enums.OutputMode.Final if training else enums.OutputMode.All)
    for anchor in settled.anchored_tensors.values():
        if anchor[1]:
            anchor[2] = settled.output_mode
            anchor[3] = settled.output_return_period if anchor[2] == enums.OutputMode.EveryN else 1
    return settled


def check_run_options(options: Any, model: torch.nn.Module) -> None:
    """Refuses what cannot be emulated, and names of buffers that the model does not have."""
    if options.Distributed.numProcesses > 1:
        raise not_emulated(
            "Options.Distributed with several processes",
            "run one process, with Options.replicationFactor for more replicas.",
        )
    known = dict(model.named_buffers())
    for name in options._Popart.options.get("updatableNamedBuffers") or []:
        if name not in known:
            raise refuse(
                f"Options.updatableNamedBuffers names {name!r}, which is no buffer of the model. "
                f"Valid: {', '.join(known) or 'none'}."
            )
