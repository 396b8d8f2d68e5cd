"""Text generation: greedy, sampling and beam search over the networks, with cached keys and values.

    from portwright.generation import generate, GenerationOptions

    made = generate(network, input_ids, attention_mask, GenerationOptions(max_new_tokens=20, num_beams=4))

Names load on first use, so that the options can be read and checked without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from portwright.generation.api import Generated, generate
    from portwright.generation.inputs import left_pad, right_pad
    from portwright.generation.options import GenerationOptions
    from portwright.generation.streaming import TextStream

_PUBLIC = {
    "generate": "portwright.generation.api",
    "Generated": "portwright.generation.api",
    "left_pad": "portwright.generation.inputs",
    "right_pad": "portwright.generation.inputs",
    "GenerationOptions": "portwright.generation.options",
    "TextStream": "portwright.generation.streaming",
}
__all__ = ["Generated", "GenerationOptions", "TextStream", "generate", "left_pad", "right_pad"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'portwright.generation' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
