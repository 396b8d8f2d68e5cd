"""The step that is being recorded; what its losses depend on; an optimizer's options as plain values."""

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
    """The sizes of the lists of an open step when a root was called, and the node of its output in the graph."""

    outputs: int
    inputs: int
    draws: int
    node: Any = None


@dataclass
class OpenStep:
    """The step that is being recorded, until an update closes it."""

    losses: list[float] = field(default_factory=list)
    loss_dtype: str = ""
    loss_devices: list[str] = field(default_factory=list)
    asked: list[torch.Tensor] = field(default_factory=list)  # by autograd.grad: losses if there is no other
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
        """Forgets calls before the first one that the loss depends on, such as one that prints a model's shapes."""
        used = next((mark for mark in self.marks if mark.node in graph), None)
        if used is not None:
            del self.outputs[: used.outputs], self.inputs[: used.inputs], self.draws[: used.draws]
        self.marks.clear()


def graph_of(losses: list[torch.Tensor]) -> dict[Any, None]:
    """Every node of the autograd graph of the losses, depth first."""
    seen: dict[Any, None] = {}
    stack: list[Any] = [loss.grad_fn for loss in reversed(losses)]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen[node] = None
            stack += [following for following, _ in reversed(node.next_functions)]
    return seen


def leaves_of(losses: list[torch.Tensor]) -> list[torch.Tensor]:
    """The leaf tensors of that graph, which get the gradients."""
    leaves = (getattr(node, "variable", None) for node in graph_of(losses))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


_NOT_PLAIN = object()


def plain_options(group: dict[str, Any]) -> dict[str, Any]:
    """The options of a group without its parameters; only numbers, strings, None and sequences of numbers are kept."""
    options = {
        key: _plain_option(value) for key, value in group.items() if key not in ("params", "param_names")
    }
    return {key: value for key, value in options.items() if value is not _NOT_PLAIN}


def _plain_option(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 else _NOT_PLAIN
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.integer | np.floating):
        return float(value)
    if isinstance(value, list | tuple):
        items = [_plain_option(item) for item in value]
        if all(isinstance(item, int | float) and not isinstance(item, bool) for item in items):
            return tuple(float(item) for item in items)
    return _NOT_PLAIN
