"""Vendors' packages that cannot be installed, as far as their public rules go: computed on this machine's CPU.

What runs here follows the rules of the real package strictly and is labelled `emulated`; no vendor's device or code is used.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from portwright.discover import find_targets
from portwright.errors import UserError, suggest

if TYPE_CHECKING:
    from portwright.graph.kernels import KernelTable
    from portwright.target import Target

PACKAGES = {"poptorch": "PopTorch 3.4", "sambaflow": "SambaFlow"}
"""The packages that can be lent, and what each stands for."""

CHILD_NOTE = "PORTWRIGHT_EMULATE_NOTE"
"""Names the file by which a process that an emulated script started tells that it made an executor."""


def target_of(package: str) -> Target:
    """The target whose machine an emulated package stands for."""
    return next(target for target in find_targets().values() if target.emulator == package)


def table_of(package: str) -> KernelTable:
    """What the target of an emulated package runs, and on which conditions."""
    kernels = target_of(package).kernels
    assert kernels is not None
    return kernels()


def note_made() -> None:
    """Tells `portwright emulate`, which may run in a parent of this process, that an executor was made."""
    if path := os.environ.get(CHILD_NOTE):
        with suppress(OSError):  # a process that outlives it has nobody to tell
            Path(path).touch()


def lend(package: str) -> ModuleType:
    """From here on, `import poptorch` (or `sambaflow`) in this process finds the emulator, and gives its top module."""
    if package not in PACKAGES:
        raise UserError(f"there is no emulator of '{package}'.", suggest(package, PACKAGES))
    there = sys.modules.get(package)
    if there is not None and not is_emulated(there):
        raise UserError(
            f"the real {package} was imported already, from {getattr(there, '__file__', None)}.",
            "Start the script with portwright emulate, without importing it before.",
        )
    if not any(isinstance(finder, _Finder) and finder.package == package for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(package))
    module = importlib.import_module(package)
    _name_errors(f"{__name__}.{package}")
    return module


def _name_errors(package: str) -> None:
    """What a traceback says is the name that the user's script knows, also of errors that the package does not export."""
    loaded = [there for name, there in list(sys.modules.items()) if f"{name}.".startswith(f"{package}.")]
    for module in loaded:
        for thing in list(vars(module).values()):
            if isinstance(thing, type) and issubclass(thing, Exception):
                thing.__module__ = thing.__module__.removeprefix(f"{__name__}.")


def is_emulated(module: ModuleType) -> bool:
    """Whether a module is one of ours, whatever name it was imported by."""
    return module.__name__.startswith(f"{__name__}.")


class _Finder(MetaPathFinder):
    """Answers for one package and what is in it, before Python's own finders."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.package and not fullname.startswith(f"{self.package}."):
            return None
        ours = f"{__name__}.{fullname}"
        found = find_spec(ours)
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(fullname, _SameModule(ours), origin=found.origin, is_package=is_package)


class _SameModule(Loader):
    """Gives the module of ours itself, so that an object has one class, whichever name it was imported by."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put in that of the other name
