"""The package's own text, so that a model trains without a download."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path

HELD_OUT = 10  # every tenth document is for evaluation

_FILE = Path(__file__).parent / "shipped.txt.gz"


@cache
def shipped_documents() -> tuple[str, ...]:
    """Sections of Portwright's documentation, as tools/make_shipped_text.py saved them."""
    return tuple(gzip.decompress(_FILE.read_bytes()).decode("utf-8").split("\n\f\n"))


def split_held_out(documents: tuple[str, ...], *, training: bool) -> list[str]:
    """The documents of training, or those held out for evaluation."""
    return [text for number, text in enumerate(documents) if (number % HELD_OUT == HELD_OUT - 1) != training]
