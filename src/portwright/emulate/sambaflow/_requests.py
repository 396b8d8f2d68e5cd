"""What a run is asked for: which outputs, with which hyperparameters, and where backward starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from portwright.emulate.sambaflow._device import Device
from portwright.emulate.sambaflow._refusal import SambaFlowError
from portwright.emulate.sambaflow._step import TracedStep
from portwright.emulate.sambaflow.logging import samba_logger
from portwright.emulate.sambaflow.samba.sambatensor import SambaTensor, to_torch
from portwright.errors import suggest


def find_outputs(outputs: Sequence[SambaTensor], asked: Any) -> list[int]:
    """The numbers of the outputs that are asked for, by their names; all where nothing is."""
    if asked is None:
        return list(range(len(outputs)))
    names = {tensor.sn_name: index for index, tensor in enumerate(outputs)}
    found = []
    for tensor in [asked] if isinstance(asked, Tensor) else asked:
        name = getattr(tensor, "sn_name", None)
        if name not in names:
            raise SambaFlowError(
                f"output_tensors has a tensor named {name!r}, which is no output of the program.",
                "Give model.output_tensors, or what trace_graph returned.",
            )
        found.append(names[name])
    return found


def check_hyperparameters(
    given: Mapping[str, float],
    model: nn.Module,
    device: Device,
    sections: Sequence[str],
    compiled: Sequence[Sequence[Mapping[str, float]]],
) -> dict[str, float]:
    """Refuses what the program has no such number for; `p` is the rate of every dropout."""
    valid = {u.owner.argin_region_name + key for u in device.updates for key in u.owner.hyperparameters}
    if any(isinstance(part, nn.Dropout) for part in model.modules()):
        valid.add("p")
    for key, value in given.items():
        if key not in valid:
            raise SambaFlowError(
                f"hyperparam_dict has '{key}', which this program has not.", suggest(str(key), valid)
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise SambaFlowError(f"hyperparam_dict['{key}'] is {value!r}.", "Give a finite number.")
    if "p" in given and not 0 <= given["p"] < 1:
        raise SambaFlowError(f"hyperparam_dict['p'] is {given['p']}.", "Give a rate from 0 to below 1.")
    if "opt" in sections:
        _tell_left_out(given, device, compiled)
    return {str(key): float(value) for key, value in given.items()}


def _tell_left_out(
    given: Mapping[str, float], device: Device, compiled: Sequence[Sequence[Mapping[str, float]]]
) -> None:
    """A hyperparameter that a run leaves out has the value that was compiled: told of a rate, and of what the host has otherwise."""
    for update, groups in zip(device.updates, compiled, strict=True):
        for key in update.owner.hyperparameters:
            if update.owner.argin_region_name + key in given:
                continue
            here = [group[key] for group in update.owner.param_groups]
            there = [group[key] for group in groups]
            if key == "lr" or here != there:
                samba_logger.warning(
                    f"no {key} in hyperparam_dict: the device uses the compiled one, {there[0]:g}, and the optimizer on the "
                    f"host says {here[0]:g}",
                    log_limit=1,
                )


@dataclass(frozen=True)
class Start:
    """Where backward starts, as a program was traced: `roots` are the outputs that loss_indices named."""

    outputs: Sequence[SambaTensor]
    roots: Sequence[int] | None
    init_output_grads: bool

    def gradients(
        self, step: TracedStep, wanted: Sequence[int], given: Sequence[Tensor | None] | Tensor | None
    ) -> list[Tensor]:
        """Gradients given for the outputs, else those set as sn_grad, else ones at the loss."""
        explicit = self._explicit(wanted, given)
        grads = [torch.zeros_like(output) for output in step.outputs]
        for index, grad in explicit.items():
            expected = step.outputs[index]
            if tuple(grad.shape) != tuple(expected.shape) or grad.dtype != expected.dtype:
                raise SambaFlowError(
                    f"the gradient of output {index} is {grad.dtype}{list(grad.shape)}, and the output "
                    f"{expected.dtype}{list(expected.shape)}.",
                    "Give it the output's shape and type, as model.output_tensors has them.",
                )
            grads[index] = to_torch(grad).detach().clone()
        if explicit:
            return grads
        if not self.init_output_grads:
            raise SambaFlowError(
                "section 'bckwd' has no gradient to start from: init_output_grads is False.",
                "Give grad_of_outputs, or set output.sn_grad, or trace with init_output_grads=True.",
            )
        for index in self._losses(step):
            grads[index] = torch.ones_like(step.outputs[index])
        return grads

    def _explicit(
        self, wanted: Sequence[int], given: Sequence[Tensor | None] | Tensor | None
    ) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {
            index: tensor.sn_grad for index, tensor in enumerate(self.outputs) if tensor.sn_grad is not None
        }
        if given is None:
            return found
        listed = [given] if isinstance(given, Tensor) else list(given)
        if len(listed) != len(wanted):
            raise SambaFlowError(
                f"grad_of_outputs has {len(listed)} gradient(s) for {len(wanted)} output(s).",
                "Give one for each.",
            )
        return found | {index: grad for index, grad in zip(wanted, listed, strict=True) if grad is not None}

    def _losses(self, step: TracedStep) -> Sequence[int]:
        """The outputs that were named, or the one that no other output is computed from."""
        if self.roots is not None:
            return self.roots
        sinks = step.sinks()
        if len(sinks) != 1:
            raise SambaFlowError(
                f"the model has {len(sinks)} outputs that could be its loss (numbers {', '.join(map(str, sinks))}).",
                "Return one loss, name it with trace_graph(..., loss_indices=[0]), or give grad_of_outputs.",
            )
        return sinks
