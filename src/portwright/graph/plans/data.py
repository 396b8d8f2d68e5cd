"""What is known of a subject's training data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Data:
    """What is known of a subject's training data, for the key metrics; None is not known."""

    num_samples: int | None = None
    why_no_samples: str = ""
    paths: tuple[Path, ...] = ()  # that params name and that exist
