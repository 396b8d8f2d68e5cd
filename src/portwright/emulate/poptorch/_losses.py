"""Where PopTorch starts the gradients: torch's losses and identity_loss, of which one must be the last.

PopTorch puts an identity loss behind each loss function that it knows, whether or not its result is returned. A loss that
another loss is computed from counts as a part of that one; what is left must be one. What the model does with the result of
that one afterwards (a factor, a mean) has no part in the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from portwright.graph.graph import Node
from portwright.watching.place import Place

# Those of PopTorch 3.4's user guide, which are the handlers that end in an identity loss: LossOps.cpp, AtenHandlers.gen.cpp.
NAMES = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "ctc_loss",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
)
_OTHER_NAMES = ("cross_entropy_loss", "nll_loss2d", "nll_loss_nd")


def _find_functions() -> dict[Any, str]:
    """All that torch calls these losses: in nn.functional, in torch itself, and below."""
    found: dict[Any, str] = {}
    for home in (F, torch, torch._C._nn):
        for name in (*NAMES, *_OTHER_NAMES):
            function = getattr(home, name, None)
            if function is not None:
                found[function] = name
    return found


FUNCTIONS = _find_functions()


@dataclass(frozen=True)
class Loss:
    """One loss of a trace: its value's number, the tensor, and where it was made."""

    value: int
    tensor: Tensor
    name: str
    place: Place | None

    def __str__(self) -> str:
        return f"{self.name} at {self.place}" if self.place else self.name


def find_last(
    losses: Sequence[Loss], nodes: Iterable[Node], refuse: Callable[[str, Place | None], Exception]
) -> Loss:
    """The one loss that no other loss is computed from."""
    if not losses:
        raise refuse(
            "the model computes no loss, so there is nothing to train on: PopTorch takes the loss functions of torch.nn that it "
            "knows, and what is given to poptorch.identity_loss. Compute the loss inside of forward, and mark one of your own by "
            "poptorch.identity_loss(loss, reduction='none')",
            None,
        )
    needs: dict[int, set[int]] = {}  # value -> losses that it is computed from
    numbers = {loss.value for loss in losses}
    used: set[int] = set()
    for node in nodes:
        if node.phase != "forward":
            continue
        sources: set[int] = set()
        for value in node.inputs:
            sources |= needs.get(value, set())
            if value in numbers:
                sources.add(value)
        for value in node.outputs:
            if value in numbers:
                used |= sources
            if sources:
                needs[value] = needs.get(value, set()) | sources
    last = [loss for loss in losses if loss.value not in used]
    if len(last) > 1:
        listed = "; ".join(str(loss) for loss in last)
        raise refuse(
            f"{len(last)} losses are independent of each other ({listed}), and PopTorch trains on one. Add them, and mark the sum: "
            "poptorch.identity_loss(first + second, reduction='none'). A loss that is only looked at counts, too: leave it out of "
            "the training model",
            last[-1].place,
        )
    return last[0]


def is_continued(loss: Loss, results: Iterable[int], nodes: Iterable[Node]) -> bool:
    """Whether a returned scalar is computed from the loss, which looks as if it were trained on."""
    derived = {loss.value}
    for node in nodes:
        if node.phase == "forward" and derived.intersection(node.inputs):
            derived.update(node.outputs)
    return any(value in derived and value != loss.value for value in results)
