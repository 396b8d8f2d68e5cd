"""Norms by name, and the two that torch lacks or has only in newer releases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from portwright.errors import UserError, suggest

NormFactory = Callable[..., nn.Module]

# Before 2.8 torch squares a half-precision input in its own type, which overflows float16 from 256 on.
_TORCH_IS_WIDE = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) >= (2, 8)


class RMSNorm(nn.RMSNorm):
    """torch's RMSNorm, computed in float32 or wider in every release and for weights of another type.

    Arguments and defaults are torch's; the model zoo's eps is 1e-6.
    """

    def forward(self, x: Tensor) -> Tensor:
        weight: Tensor | None = self.weight
        wide_type = torch.promote_types(x.dtype, torch.float32)
        # Without eps torch takes on some devices that of the input's type: 0.008 for bfloat16.
        eps = torch.finfo(wide_type).eps if self.eps is None else self.eps
        if (_TORCH_IS_WIDE or x.dtype == wide_type) and (weight is None or weight.dtype == x.dtype):
            return F.rms_norm(x, list(self.normalized_shape), weight, eps)
        dims = tuple(range(-len(self.normalized_shape), 0))
        x_wide = x.to(wide_type)
        normed = x_wide * torch.rsqrt(x_wide.square().mean(dim=dims, keepdim=True) + eps)
        return (normed if weight is None else normed * weight).to(x.dtype)


class BatchChannelNorm2D(nn.Module):
    """Batch norm, then a norm over groups of channels with one weight and bias a group (arXiv 1903.10520)."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if num_groups < 1 or num_channels < 1 or num_channels % num_groups:
            raise UserError(
                f"num_channels={num_channels} cannot be cut into num_groups={num_groups} equal groups.",
                "Give a number of groups that divides the number of channels.",
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = eps
        self.batchnorm = nn.BatchNorm2d(num_channels, eps=eps, momentum=momentum, device=device, dtype=dtype)
        self.weight = nn.Parameter(torch.empty(1, num_groups, 1, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(1, num_groups, 1, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets all weights to 1 and all biases to 0."""
        self.batchnorm.reset_parameters()
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x_nchw: Tensor) -> Tensor:
        normed = F.group_norm(self.batchnorm(x_nchw), self.num_groups, eps=self.eps)
        grouped = normed.reshape(x_nchw.shape[0], self.num_groups, -1)
        return (self.weight * grouped + self.bias).reshape(x_nchw.shape)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}"


_NORMS: dict[str, NormFactory] = {
    "layernorm": nn.LayerNorm,
    "biasless": partial(nn.LayerNorm, bias=False),
    "biasless-layernorm": partial(nn.LayerNorm, bias=False),
    "nonparametric-layernorm": partial(nn.LayerNorm, elementwise_affine=False, bias=False),
    "rmsnorm": RMSNorm,
    "group": nn.GroupNorm,
    "batchchannel": BatchChannelNorm2D,
    "batchchannel2d": BatchChannelNorm2D,
    "batchnorm1d": nn.BatchNorm1d,
    "batchnorm2d": nn.BatchNorm2d,
    "batchnorm3d": nn.BatchNorm3d,
    "instance1d": nn.InstanceNorm1d,
    "instance2d": nn.InstanceNorm2d,
    "instance3d": nn.InstanceNorm3d,
}


def get_norm(norm: str | NormFactory | None) -> NormFactory:
    """The factory of a norm: called with a width (`group` and `batchchannel`: groups, channels), it gives the module.

    A class or function is returned as it is; None makes an nn.Identity, whatever it is called with.
    """
    if norm is None:
        return nn.Identity
    if isinstance(norm, str):
        name = norm.strip().lower()
        if name not in _NORMS:
            raise UserError(f"Unknown norm {norm!r}.", suggest(name, _NORMS))
        return _NORMS[name]
    if isinstance(norm, nn.Module) or not callable(norm):
        given = f"a {type(norm).__name__} module" if isinstance(norm, nn.Module) else repr(norm)
        raise UserError(
            f"The norm is {given}, not what makes one.",
            f"Give a name or a class. {suggest('', _NORMS)}",
        )
    return norm
