"""What torch and others took, or had, when release 1.6 was written, and do no longer."""

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
    """Checks nothing: the versions that release 1.6 asks for are those of its year."""


class _Dropped:
    """A class that its package dropped: it can be imported, and says so when it is used."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise UserError(
            f"huggingface_hub dropped {type(self).__name__} in its release 1.0.",
            'Install an older one: pip install "huggingface_hub<1".',
        )


class HfFolder(_Dropped):
    pass


class Repository(_Dropped):
    pass
