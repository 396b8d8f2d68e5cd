"""Reflection and replication padding by slices: the front end has no backward of torch's own."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from portwright.layers.legal.layers import layer
from portwright.layers.legal.positions import take_positions

__all__ = [
    "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d",
    "ReplicationPad3d", "pad",
]  # fmt: skip


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """F.pad; a negative amount crops in every mode, as torch's does."""
    if mode not in ("reflect", "replicate"):
        return F.pad(input, list(pad), mode, value)
    num_dims = len(pad) // 2
    _check(input, pad, mode, num_dims)
    padded = input
    for place in range(num_dims):
        dim = input.dim() - 1 - place
        before, after = pad[2 * place], pad[2 * place + 1]
        if before or after:
            padded = take_positions(padded, dim, _positions(padded.shape[dim], before, after, mode))
    return padded.clone() if padded is input else padded


def _positions(size: int, before: int, after: int, mode: str) -> list[int]:
    wanted = range(-before, size + after)
    if mode == "replicate":
        return [min(max(at, 0), size - 1) for at in wanted]
    last = size - 1
    return [last - abs(last - abs(at)) for at in wanted]


def _check(input: Tensor, pad: Sequence[int], mode: str, num_dims: int) -> None:
    """Torch pads the last 1, 2 or 3 dimensions of an input that has one or two before them."""
    if len(pad) % 2 or num_dims not in (1, 2, 3) or input.dim() not in (num_dims + 1, num_dims + 2):
        raise NotImplementedError(
            f"{mode} padding takes 2, 4 or 6 amounts for an input of 2 or 3, 3 or 4, 4 or 5 dimensions, "
            f"not {len(pad)} for one of {input.dim()}"
        )
    for place, amount in enumerate(pad):
        size = input.shape[input.dim() - 1 - place // 2]
        if mode == "reflect" and amount >= size:
            raise RuntimeError(f"a reflection of {amount} needs a dimension larger than that, not {size}")
        if size == 0 or size + pad[place - place % 2] + pad[place - place % 2 + 1] < 1:
            raise RuntimeError(f"padding {tuple(pad)} leaves nothing of a dimension of {size}")


def _reflect(input: Tensor, padding: Sequence[int]) -> Tensor:
    return pad(input, padding, "reflect")


def _replicate(input: Tensor, padding: Sequence[int]) -> Tensor:
    return pad(input, padding, "replicate")


ReflectionPad1d = layer(nn.ReflectionPad1d, _reflect, "padding")
ReflectionPad2d = layer(nn.ReflectionPad2d, _reflect, "padding")
ReflectionPad3d = layer(nn.ReflectionPad3d, _reflect, "padding")
ReplicationPad1d = layer(nn.ReplicationPad1d, _replicate, "padding")
ReplicationPad2d = layer(nn.ReplicationPad2d, _replicate, "padding")
ReplicationPad3d = layer(nn.ReplicationPad3d, _replicate, "padding")
