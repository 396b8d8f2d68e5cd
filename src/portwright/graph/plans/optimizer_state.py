"""What an optimizer keeps and computes, by its name: bytes a parameter and operations an update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from portwright.graph.graph import Value
from portwright.job.optimizer import OPTIMIZERS

# Tensors of the parameter's size that are kept, and arithmetic an element of one update.
_KEPT: Mapping[str, tuple[int, int]] = {
    "Adadelta": (2, 12),
    "Adagrad": (1, 6),
    "Adam": (2, 13),
    "AdamW": (2, 15),
    "Adamax": (2, 10),
    "ASGD": (1, 6),
    "Lamb": (2, 19),
    "Lion": (1, 8),
    "NAdam": (2, 15),
    "RAdam": (2, 15),
    "RMSprop": (1, 8),
    "Rprop": (2, 8),
    "SGD": (0, 2),
}


@dataclass(frozen=True)
class OptimizerCost:
    """The optimizer of a plan."""

    name: str  # '' for none: the step does not train
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        return not self.name or self._canonical in OPTIMIZERS

    @property
    def _canonical(self) -> str:
        names = {name.lower(): name for name in OPTIMIZERS}
        return names.get(self.name.lower(), self.name)

    def state_bytes(self, parameters: Iterable[Value]) -> int:
        return sum(self.bytes_of(value) for value in parameters if value.requires_grad)

    def bytes_of(self, value: Value) -> int:
        """State of one parameter, in the parameter's own dtype; step counters are left out."""
        if not self.name:
            return 0
        name, options = self._canonical, self.options
        item = value.num_bytes // value.num_elements if value.num_elements else 0
        if name == "Adafactor":
            kept = value.num_elements if options.get("beta1") is not None else 0
            if len(value.shape) >= 2:
                matrices = math.prod(value.shape[:-2])
                return (kept + matrices * (value.shape[-2] + value.shape[-1])) * item
            return (kept + value.num_elements) * item
        if name == "Muon":
            return value.num_bytes * (1 if self._is_orthogonal(value) else 2)
        tensors = _KEPT.get(name, (2, 13))[0]
        if name in ("SGD", "RMSprop") and options.get("momentum"):
            tensors += 1
        if (name in ("Adam", "AdamW") and options.get("amsgrad")) or (
            name == "RMSprop" and options.get("centered")
        ):
            tensors += 1
        return tensors * value.num_bytes

    def update_flops(self, parameters: Iterable[Value]) -> int:
        """Arithmetic of one update of all weights."""
        if not self.name:
            return 0
        total = 0
        for value in parameters:
            if not value.requires_grad:
                continue
            name = self._canonical
            if name == "Muon" and self._is_orthogonal(value):
                short, long = sorted((value.shape[0], value.num_elements // max(value.shape[0], 1)))
                # Each Newton-Schulz iteration: x x', (x x')^2 and their product with x.
                iteration = 2 * short * short * long * 2 + 2 * short**3
                total += int(self.options.get("ns_steps", 5)) * iteration + 4 * value.num_elements
                continue
            total += value.num_elements * (12 if name == "Adafactor" else _KEPT.get(name, (2, 13))[1])
        return total

    def _is_orthogonal(self, value: Value) -> bool:
        """Whether Muon itself trains this weight, with one momentum: a matrix or more, and none that it leaves to AdamW."""
        by_adamw = self.options.get("adamw_params") or ()
        return len(value.shape) >= 2 and not any(part in value.name for part in by_adamw)

    @property
    def formula(self) -> str:
        if not self.name:
            return "no optimizer: the step does not train"
        if self._canonical == "Adafactor":
            return "Adafactor: a row and a column of each matrix, whole vectors" + (
                ", and a first moment" if self.options.get("beta1") is not None else ""
            )
        if self._canonical == "Muon":
            return "Muon: one momentum of a matrix, two moments of vectors and of what adamw_params names"
        if not self.is_known:
            return (
                f"{self.name} is not known here: two tensors of each parameter's size are assumed, as Adam's"
            )
        one = Value(0, (1,), "float32", "parameter", requires_grad=True)
        return (
            f"{self.name}: {self.bytes_of(one) // 4} tensor(s) of each trained parameter's size, in its dtype"
        )
