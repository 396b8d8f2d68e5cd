"""Text generation: greedy, sampling and beam search over the networks, by transformers' `generate`.

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

_MODULES = {
    "generate": "api",
    "Generated": "api",
    "left_pad": "inputs",
    "right_pad": "inputs",
    "GenerationOptions": "options",
}
__all__ = ["Generated", "GenerationOptions", "generate", "left_pad", "right_pad"]


def __getattr__(name: str) -> Any:
    if name == "TextStream":
        raise AttributeError(
            "portwright.generation.TextStream is gone. Give generate a streamer of transformers instead: "
            "streamer=TextStreamer(tokenizer, skip_prompt=True)."
        )
    if name not in _MODULES:
        raise AttributeError(f"module 'portwright.generation' has no attribute {name!r}")
    return getattr(importlib.import_module(f"portwright.generation.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
