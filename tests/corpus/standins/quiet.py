"""Something that takes every call and does nothing: loggers and plotters of other people."""

from __future__ import annotations

from typing import Any


class Quiet:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Quiet:
        if name.startswith("__"):
            raise AttributeError(name)
        return Quiet()

    def __call__(self, *args: Any, **kwargs: Any) -> Quiet:
        return Quiet()
