"""The input pipeline."""

from portwright.data.loader import ResumableLoader

__all__ = ["ResumableLoader"]
