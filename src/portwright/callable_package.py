"""Packages that are functions as well: `portwright.port(...)` and `portwright.verify(...)` beside what lies in them.

A name of `portwright` and a package in it cannot be two things: as soon as anything imports `portwright.port.api`, Python
itself sets `portwright.port` to the package. So the package is what is called. Type checkers do not know this; for them the
functions stand in `portwright.port.api` and `portwright.verify.api`.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """A package whose function of the same name, in its module `api`, can be reached by calling it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.__name__.rpartition(".")[2]
        return getattr(importlib.import_module(f"{self.__name__}.api"), name)(*args, **kwargs)


def make_callable(package: str) -> None:
    """Lets a package be called; its own `__init__` says so."""
    sys.modules[package].__class__ = _CallablePackage
