"""The module that SambaFlow converts and traces: the user's model on flat, named tensors."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor, nn

from portwright.runtime.base_model import LossModule, split_loss
from portwright.runtime.batches import map_tensors, walk_tensors

PREFIX = "net."  # of the weights' names in the converted module


class Step(nn.Module):
    """Takes the tensors of a batch one by one, and gives the loss."""

    def __init__(self, module: LossModule) -> None:
        super().__init__()
        self.net = module.net
        self.__dict__["whole"] = module  # not registered a second time
        self.__dict__["batch"] = None  # whose structure the flat tensors have

    def like(self, batch: Any) -> None:
        """Inputs are to be put together as this batch is."""
        self.__dict__["batch"] = batch

    def forward(self, *tensors: Tensor) -> Tensor:
        left = iter(tensors)
        batch = map_tensors(self.__dict__["batch"], lambda _: next(left))
        return split_loss(self.__dict__["whole"].call(batch))[0]


def name_tensors(batch: Any) -> list[tuple[str, Tensor]]:
    """Each tensor of a batch with a name for the device: its key, or its place."""
    named: list[tuple[str, Tensor]] = []
    for path, tensor in walk_tensors(batch):
        name = re.sub(r"\W+", "_", path.removeprefix("batch")).strip("_")
        name = name if name and not name[0].isdigit() else f"input_{name}".rstrip("_")
        taken = {other for other, _ in named}
        while name in taken:
            name += "_"
        named.append((name, tensor))
    return named


def signature_of(batch: Any) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    return tuple((name, str(tensor.dtype), tuple(tensor.shape)) for name, tensor in name_tensors(batch))
