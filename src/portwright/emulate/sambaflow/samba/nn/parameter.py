"""SambaParameter: a weight of a converted model."""

from __future__ import annotations

from torch import Tensor, nn


class SambaParameter(nn.Parameter):
    """What from_torch_model_ makes of a parameter, in place; `sn_grad` is its gradient on the device after a `bckwd` section."""

    sn_name: str | None = None
    sn_grad: Tensor | None = None
