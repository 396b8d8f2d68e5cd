"""The step that is being made, until an update closes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from portwright.verify.recording import Draw, Group, ModuleOutput, TensorDigest


@dataclass
class Mark:
    """Where the calls of one root begin, and the end of its graph."""

    outputs: int
    inputs: int
    draws: int
    node: Any = None


@dataclass
class OpenStep:
    """The step that is being made."""

    losses: list[float] = field(default_factory=list)
    loss_dtype: str = ""
    loss_devices: list[str] = field(default_factory=list)
    asked: list[torch.Tensor] = field(default_factory=list)  # by autograd.grad, a loss if there is no other
    batch: list[TensorDigest] = field(default_factory=list)
    inputs: list[TensorDigest] = field(default_factory=list)
    outputs: list[ModuleOutput] = field(default_factory=list)
    draws: list[Draw] = field(default_factory=list)
    stale: set[int] = field(default_factory=set)  # parameters that had a gradient before the first backward
    has_begun: bool = False
    gradients: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    no_gradient: list[str] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    updated: set[int] = field(default_factory=set)  # parameters of the optimizer
    is_by_hand: bool = False  # a backward that may be followed by an update without an optimizer
    marks: list[Mark] = field(default_factory=list)  # of each root's call, in the first step

    def drop_unused(self, graph: Mapping[Any, None]) -> None:
        """Forgets calls before the first one that the loss depends on, such as a look at a model's shapes."""
        used = next((mark for mark in self.marks if mark.node in graph), None)
        if used is not None:
            del self.outputs[: used.outputs], self.inputs[: used.inputs], self.draws[: used.draws]
        self.marks.clear()
