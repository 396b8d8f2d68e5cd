"""When a row has ended: an end token, or a string that its text has come to."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from portwright.generation.options import GenerationOptions

Decode = Callable[[list[int]], str]

_SPARE_TOKENS = (
    8  # tokens that may stand for no text (special ones, halves of a character) beside those of a string
)


class StopRule:
    """Says of rows of new tokens [rows, new tokens] which have ended with their last one."""

    def __init__(self, options: GenerationOptions, device: torch.device, decode: Decode | None) -> None:
        self._eos = torch.tensor(options.eos_ids, device=device) if options.eos_ids else None
        self._strings = options.stops
        self._decode = decode
        longest = max((len(each.encode()) for each in self._strings), default=0)
        self._num_looked_at = longest + _SPARE_TOKENS

    @property
    def can_stop(self) -> bool:
        return self._eos is not None or bool(self._strings)

    @property
    def reads_text(self) -> bool:
        return bool(self._strings)

    def __call__(self, new_tokens: Tensor) -> Tensor:
        last = new_tokens[:, -1]
        ended = torch.zeros_like(last, dtype=torch.bool) if self._eos is None else torch.isin(last, self._eos)
        if self._decode is None or not self._strings:
            return ended
        # A token is at least a byte of text, so that older ones cannot be part of a string that ends now.
        tails = new_tokens[:, -self._num_looked_at :].tolist()
        texts = [self._decode(tail) for tail in tails]
        has_string = [any(stop in text for stop in self._strings) for text in texts]
        return ended | torch.tensor(has_string, device=last.device)
