"""Small parts of models that `modelzoo.common.pytorch.model_utils` and `layers.utils` hold, on Portwright's own."""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import Tensor, nn

from portwright import layers


def get_clones(module: nn.Module, count: int) -> nn.ModuleList:
    """Copies of a module, with weights of their own."""
    return nn.ModuleList(copy.deepcopy(module) for _ in range(count))


def variance_scaling_(
    tensor: Tensor, scale: float = 1.0, mode: str = "fan_in", distribution: str = "truncated_normal"
) -> Tensor:
    spec = {"name": "variance_scaling", "scale": scale, "mode": mode, "distribution": distribution}
    return layers.get_initializer(spec)(tensor)


def _named(name: str) -> Callable[[Tensor], Tensor]:
    return lambda tensor: layers.get_initializer(name)(tensor)


lecun_normal_ = _named("lecun_normal")
lecun_uniform_ = _named("lecun_uniform")


class RotaryPositionEmbeddingHelper(layers.RotaryPositionEmbeddingHelper):
    """Ours, which may also be told how long the sequence is with what came before, as in release 1.6."""

    def rotate_tensor(  # type: ignore[override]
        self,
        x: Tensor,
        real_seq_length: int | None = None,
        offset: int = 0,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        return super().rotate_tensor(x, offset=offset, position_ids=position_ids)
