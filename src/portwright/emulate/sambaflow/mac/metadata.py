"""sambaflow.mac.metadata: hints to the compiler, which change no value."""

from __future__ import annotations

from typing import Any


class ConvTilingMetadata:
    """Accepted, no effect."""

    key = "conv_tiling"

    def __init__(self, original_size: Any = None, **options: Any) -> None:
        self.original_size = original_size
