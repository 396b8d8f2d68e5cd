"""Text as it is made: each piece once the tokens for it are complete."""

from __future__ import annotations

import sys
from typing import TextIO

from torch import Tensor

from portwright.errors import UserError
from portwright.generation.stopping import Decode

_HALF_A_CHARACTER = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """Writes the text of one sequence token by token; give it to `generate` as `on_tokens`.

    Bytes of a character wait for the rest of it. Call `close` at the end, which writes what is left.
    """

    def __init__(self, decode: Decode, out: TextIO | None = None) -> None:
        self._decode = decode
        self._out = sys.stdout if out is None else out
        self._ids: list[int] = []
        self._context = 0  # tokens from here on are decoded, since decoders join a token to the one before
        self._written = 0  # tokens before this one are written

    def __call__(self, tokens: Tensor) -> None:
        if tokens.numel() != 1:
            raise UserError(
                f"A stream got {tokens.numel()} sequences at once.", "Stream one prompt and one sample."
            )
        self._ids.append(int(tokens))
        self._write_new(is_last=False)

    def close(self) -> None:
        """Writes what waited for more, and ends the line."""
        self._write_new(is_last=True)
        self._out.write("\n")
        self._out.flush()

    def _write_new(self, is_last: bool) -> None:
        before = self._decode(self._ids[self._context : self._written])
        now = self._decode(self._ids[self._context :])
        if len(now) <= len(before) or (now.endswith(_HALF_A_CHARACTER) and not is_last):
            return
        self._out.write(now[len(before) :])
        self._out.flush()
        self._context, self._written = self._written, len(self._ids)
