"""What `modelzoo.common.pytorch` holds beside cb_model: names of modes, and the parts of the SDK that have a meaning here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn


class modes:
    """Names of the modes."""

    TRAIN = "train"
    EVAL = "eval"
    TRAIN_AND_EVAL = "train_and_eval"
    INFERENCE = "inference"

    @staticmethod
    def get_modes() -> tuple[str, ...]:
        return modes.TRAIN, modes.EVAL, modes.TRAIN_AND_EVAL, modes.INFERENCE

    @staticmethod
    def is_valid(mode: str) -> bool:
        return mode in modes.get_modes()


class StripPadding(nn.Module):
    """Tells a wafer which positions are padding and need no work (`enable_vts`); the values are the same."""

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        return values


cbtorch: Any = SimpleNamespace(nn=SimpleNamespace(StripPadding=StripPadding))
amp: Any = SimpleNamespace(get_init_params=dict)
AP_DISABLED = None


@contextlib.contextmanager
def name_scope(name: str) -> Iterator[None]:
    """Names a part of the graph for a compiler, of which there is none here."""
    yield None
