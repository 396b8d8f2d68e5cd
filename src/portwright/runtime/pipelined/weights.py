"""A model's weights: where each is kept, and tensors without data that stand in for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy

from portwright.errors import UserError

# where each parameter and buffer is kept, by its first name
Weights = Mapping[str, tuple[dict[str, Any], str]]


def all_weights(net: nn.Module) -> Iterator[tuple[str, torch.Tensor, dict[str, Any], str]]:
    """Each name of each parameter and buffer, with the place where it is kept."""
    for path, module in net.named_modules(remove_duplicate=False):
        for held in (module._parameters, module._buffers):
            for key, tensor in held.items():
                if tensor is not None:
                    yield f"{path}.{key}" if path else key, tensor, held, key


def weights_of(net: nn.Module) -> Weights:
    """Where each parameter and buffer is kept."""
    first: dict[int, tuple[str, tuple[dict[str, Any], str]]] = {}
    for name, tensor, holder, key in all_weights(net):
        first.setdefault(id(tensor), (name, (holder, key)))
    return dict(first.values())


def named_weights(net: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers, saved or not, each once under its first name."""
    yield from net.named_parameters()
    yield from net.named_buffers()


class StandIns:
    """Tensors without data for a model's parameters and buffers, which outlive the weights that a process drops."""

    def __init__(self, net: nn.Module, device: torch.device) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._net, self._device = net, device
        self._of: dict[str, torch.Tensor] = {}
        for name, tensor in named_weights(net):
            if is_lazy(tensor):
                raise UserError(
                    f"parameter '{name}' has no shape yet: its module is lazy.",
                    "Give the module its sizes, or call the model once on a batch where it is built.",
                )
            with self.mode:
                stand_in = torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device
                )
            stand_in.requires_grad_(tensor.requires_grad)
            self._of[name] = stand_in

    def by_identity(self) -> dict[int, tuple[str, torch.Tensor]]:
        """The stand-in of each tensor that the model holds now."""
        return {id(tensor): (name, self._of[name]) for name, tensor in named_weights(self._net)}
