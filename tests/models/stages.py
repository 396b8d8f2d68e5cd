"""A training step cut into stages that are run one after another here, as layer-pipelined processes would each run theirs."""

from __future__ import annotations

from typing import Any

import torch

from portwright.base_model import LossModule
from portwright.runtime.pipelined.cuts import choose_cuts, locate
from portwright.runtime.pipelined.program import make_programs
from portwright.runtime.pipelined.recorder import record
from portwright.runtime.pipelined.weights import StandIns, weights_of


def run_in_stages(module: LossModule, batch: Any, num_stages: int) -> torch.Tensor:
    """The loss; gradients are left in the parameters. Tensors pass between stages without their history, as through a wire."""
    device = torch.device("cpu")
    tape = record(module, batch, StandIns(module.net, device), None, device)
    programs = make_programs(tape, locate(tape, choose_cuts(tape, num_stages, None)))
    assert len(programs) == num_stages
    weights, passed = weights_of(module.net), []
    given: Any = ()
    for program in programs:
        taken = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in given]
        given = program.run(taken, batch, weights, "cpu")
        passed.append((taken, given))
    gradients: list[Any] = [torch.ones_like(given[0])]
    for taken, made in reversed(passed):
        pairs = [(o, g) for o, g in zip(made, gradients, strict=True) if o.requires_grad and g is not None]
        if pairs:
            torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
        gradients = [tensor.grad for tensor in taken]
    loss: torch.Tensor = given[0].detach()
    return loss
