"""The emulated device: weights and optimizer state of its own, and the sections of a program in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from portwright.emulate.sambaflow._refusal import SambaFlowError
from portwright.emulate.sambaflow._step import TracedStep
from portwright.emulate.sambaflow.samba.optim import SambaOptimizer
from portwright.errors import suggest
from portwright.watching.random_states import capture_rng, restore_rng, untouched_rng

ORDER = ("fwd", "bckwd", "gradnorm", "opt")
_CPU = torch.device("cpu")


@dataclass
class _Pass:
    """A forward pass that backward may still be asked about."""

    inputs: list[Tensor]
    generators: dict[str, Tensor]
    buffers: dict[str, Tensor]


@dataclass
class _Update:
    """One optimizer of the program: torch's rule over the device's own tensors."""

    owner: SambaOptimizer
    rule: torch.optim.Optimizer
    names: list[list[str]]  # a group each
    # float32 copies, where fp32_params asks for them
    masters: dict[str, Tensor] = field(default_factory=dict)

    def set(self, hyperparameters: Mapping[str, float], defaults: Sequence[Mapping[str, float]]) -> None:
        for group, compiled in zip(self.rule.param_groups, defaults, strict=True):
            for key in self.owner.hyperparameters:
                value = hyperparameters.get(self.owner.argin_region_name + key, compiled[key])
                group[key] = float(value)

    def load_state(self) -> None:
        """Takes the host's state, as it is after load_state_dict."""
        _copy_state(self.owner, self.rule)

    def store_state(self) -> None:
        """Gives the host the device's state."""
        _copy_state(self.rule, self.owner)


class Device:
    """What a PEF leaves on an RDU after tracing."""

    def __init__(self, model: nn.Module, step: TracedStep, optimizers: Sequence[SambaOptimizer]) -> None:
        self.step = step
        self.weights: dict[str, Tensor] = {}
        self.grads: dict[str, Tensor | None] | None = None
        self.last_grads: dict[str, Tensor | None] = {}  # for the host to look at; an update leaves them
        self.input_grads: list[Tensor | None] = []
        self.outputs: list[Tensor] = []
        self._pass: _Pass | None = None
        self._norm: Tensor | None = None
        self._buffers = [name for name, _ in model.named_buffers()]
        self.load(model)
        self.updates = [self._make_update(optimizer, model) for optimizer in optimizers]
        self.clips = any(optimizer.max_grad_norm is not None for optimizer in optimizers)

    def sections(self) -> tuple[str, ...]:
        if not self.updates:
            return ("fwd",)
        return ORDER if self.clips else tuple(name for name in ORDER if name != "gradnorm")

    # -- weights -------------------------------------------------------------------------------------------

    def load(self, model: nn.Module) -> None:
        """Takes the host's weights."""
        with torch.no_grad():
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                if name in self.weights:
                    self.weights[name].copy_(tensor)
                else:
                    self.weights[name] = torch.empty_like(tensor, requires_grad=False).copy_(tensor).detach()
            for update in getattr(self, "updates", ()):
                for name, master in update.masters.items():
                    master.copy_(self.weights[name])

    def store(self, model: nn.Module) -> None:
        """Gives the host the device's weights."""
        with torch.no_grad():
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                tensor.copy_(self.weights[name])

    def _make_update(self, optimizer: SambaOptimizer, model: nn.Module) -> _Update:
        known: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        masters: dict[str, Tensor] = {}
        groups, names = [], []
        for group in optimizer.param_groups:
            names.append([known[parameter] for parameter in group["params"]])
            tensors = [self.weights[name] for name in names[-1]]
            if optimizer.fp32_params:
                tensors = [tensor.float() if tensor.dtype != torch.float32 else tensor for tensor in tensors]
                masters |= {
                    name: tensor
                    for name, tensor in zip(names[-1], tensors, strict=True)
                    if tensor is not self.weights[name]
                }
            groups.append({"params": tensors} | {key: group[key] for key in optimizer.hyperparameters})
        update = _Update(optimizer, optimizer.make_torch(groups), names, masters)
        update.load_state()
        return update

    # -- sections ------------------------------------------------------------------------------------------

    def run(
        self,
        sections: Sequence[str],
        inputs: list[Tensor],
        output_grads: Sequence[Tensor] | None,
        hyperparameters: Mapping[str, float],
        defaults: Sequence[Sequence[Mapping[str, float]]],
    ) -> None:
        """Runs sections that `check_order` has let through."""
        if "bckwd" in sections:
            self._backward(inputs, output_grads or (), fresh="fwd" in sections)
        elif "fwd" in sections:
            self._forward(inputs)
        if "gradnorm" in sections:
            self._norm = self._gradient_norm()
        if "opt" in sections:
            self._update(hyperparameters, defaults)

    def _forward(self, inputs: list[Tensor]) -> None:
        if self.updates:
            buffers = {name: self.weights[name].clone() for name in self._buffers}
            kept = [tensor.clone() for tensor in inputs]
            self._pass = _Pass(kept, capture_rng(_CPU), buffers)
            self.grads = self._norm = None
        self.outputs = self.step.forward(self.weights, inputs)

    def _backward(self, inputs: list[Tensor], output_grads: Sequence[Tensor], *, fresh: bool) -> None:
        if fresh:
            results = self.step.train(self.weights, inputs, output_grads)
            self.outputs = results[0]
        else:
            # What forward drew and changed is drawn again from the same place, and changed in copies.
            assert self._pass is not None
            with untouched_rng(_CPU):
                restore_rng(self._pass.generators, _CPU)
                before = {**self.weights, **self._pass.buffers}
                results = self.step.train(before, self._pass.inputs, output_grads)
        self.grads = self.last_grads = results[1]
        self.input_grads, self._norm = results[2], None
        if fresh:
            self._pass = None

    def _gradient_norm(self) -> Tensor:
        """Of all gradients as one vector, whichever optimizer has them."""
        assert self.grads is not None
        norms = [torch.linalg.vector_norm(grad.float()) for grad in self.grads.values() if grad is not None]
        total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return total

    def _update(
        self, hyperparameters: Mapping[str, float], defaults: Sequence[Sequence[Mapping[str, float]]]
    ) -> None:
        assert self.grads is not None
        for update, compiled in zip(self.updates, defaults, strict=True):
            update.set(hyperparameters, compiled)
            factor = None
            if update.owner.max_grad_norm is not None and self._norm is not None:
                factor = (update.owner.max_grad_norm / (self._norm + 1e-6)).clamp(max=1.0)
            for group, names in zip(update.rule.param_groups, update.names, strict=True):
                for tensor, name in zip(group["params"], names, strict=True):
                    grad = self.grads.get(name)  # none of a weight that is frozen
                    if grad is not None:
                        grad = grad.to(tensor.dtype)
                        grad = grad if factor is None else grad * factor.to(tensor.dtype)
                    tensor.grad = grad
            update.rule.step()
            for group in update.rule.param_groups:
                for tensor in group["params"]:
                    tensor.grad = None
            for name, master in update.masters.items():
                self.weights[name].copy_(master)
        self.grads = self._norm = self._pass = None

    def check_order(self, sections: Sequence[str], inputs: Sequence[Tensor]) -> None:
        """Refuses sections that the program lacks, that are out of order, or whose turn it is not."""
        has = self.sections()
        for name in sections:
            if name not in ORDER:
                raise SambaFlowError(f"unknown section '{name}'.", suggest(name, has))
            if name not in has:
                why = (
                    "was compiled for inference"
                    if not self.updates
                    else "has no gradnorm: no optimizer has a max_grad_norm"
                )
                raise SambaFlowError(
                    f"section '{name}' was asked for, and the PEF {why}.", f"Its sections: {', '.join(has)}."
                )
        numbers = [ORDER.index(name) for name in sections]
        if numbers != sorted(set(numbers)):
            raise SambaFlowError(
                f"the sections are asked for as {', '.join(sections)}.",
                f"Each once and in this order: {', '.join(has)}.",
            )
        self._check_turn(sections, inputs)

    def _check_turn(self, sections: Sequence[str], inputs: Sequence[Tensor]) -> None:
        if "bckwd" in sections and "fwd" not in sections:
            if self._pass is None:
                raise SambaFlowError(
                    "section 'bckwd' was asked for before 'fwd': there is no forward pass to go back through.",
                    "Run ['fwd'] first, or ['fwd', 'bckwd'] together.",
                )
            if any(not one.equal(other) for one, other in zip(self._pass.inputs, inputs, strict=True)):
                raise SambaFlowError(
                    "section 'bckwd' was given other inputs than the 'fwd' before it.",
                    "Give both the same tensors.",
                )
        graded = self.grads is not None or "bckwd" in sections
        for name in ("gradnorm", "opt"):
            if name in sections and not graded:
                raise SambaFlowError(
                    f"section '{name}' was asked for before 'bckwd': there are no gradients that it could use.",
                    "Run 'bckwd' first, or with it; each 'opt' takes gradients of its own.",
                )
        if "opt" in sections and self.clips and "gradnorm" not in sections and self._norm is None:
            raise SambaFlowError(
                "section 'opt' was asked for without 'gradnorm', and an optimizer has a max_grad_norm.",
                "Run ['fwd', 'bckwd', 'gradnorm', 'opt'].",
            )


def _copy_state(source: torch.optim.Optimizer, target: torch.optim.Optimizer) -> None:
    """From the state of one optimizer to that of another over as many tensors."""
    for theirs, ours in zip(source.param_groups, target.param_groups, strict=True):
        for there, here in zip(theirs["params"], ours["params"], strict=True):
            if state := source.state.get(there):
                target.state[here] = {
                    key: value.detach().clone() if isinstance(value, Tensor) else value
                    for key, value in state.items()
                }
