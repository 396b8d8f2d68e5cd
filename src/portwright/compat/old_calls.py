"""Calls and names that torch and other packages have dropped since release 1.6."""

from __future__ import annotations

import functools
from typing import Any

from torch.utils.data import DataLoader

from portwright.errors import UserError


def accept_old_calls() -> None:
    """Lets DataLoader take a prefetch_factor without workers, which it ignored before torch 2.0."""
    original = DataLoader.__init__
    if hasattr(original, "_portwright"):
        return

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("num_workers", args[5] if len(args) > 5 else 0):
            kwargs.pop("prefetch_factor", None)
        original(self, *args, **kwargs)

    init._portwright = True  # type: ignore[attr-defined]
    DataLoader.__init__ = init  # type: ignore[method-assign]


def dep_version_check(pkg: str, hint: str | None = None) -> None:
    """Checks nothing: the versions that release 1.6 requires are outdated."""


class _Dropped:
    """A class that its package dropped: importing it works, using it raises an error that says so."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise UserError(
            f"huggingface_hub dropped {type(self).__name__} in its release 1.0.",
            'Install an older one: pip install "huggingface_hub<1".',
        )


class HfFolder(_Dropped):
    pass


class Repository(_Dropped):
    pass
