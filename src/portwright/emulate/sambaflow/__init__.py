"""SambaFlow as far as its public documents and examples go, computed on this machine's CPU; docs/emulated-sambaflow.md lists its names.

No RDU and no code of the vendor's is used. What is not emulated raises when it is called, and says so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from portwright.emulate.sambaflow import _no_effect
from portwright.emulate.sambaflow._names import NO_EFFECT, REFUSED
from portwright.emulate.sambaflow._refusal import not_emulated

__version__ = "1.21.0+emulated"
_PREFIX = f"{__package__}."


def _names_in(module: str) -> list[str]:
    """The names of the two tables that are in a module, or in a module of a package."""
    inside = f"{module.removeprefix(_PREFIX)}."
    return [name.removeprefix(inside) for name in (*REFUSED, *NO_EFFECT.split()) if name.startswith(inside)]


class ModuleMaker(MetaPathFinder, Loader):
    """Makes a module that has no file here: it holds only names that are refused, or accepted without effect."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        names = _names_in(fullname) if fullname.startswith(_PREFIX) else []
        return ModuleSpec(fullname, self, is_package=any("." in name for name in names)) if names else None

    def exec_module(self, module: ModuleType) -> None:
        where = module.__name__.removeprefix(_PREFIX)
        for name in _names_in(module.__name__):
            if "." not in name:
                is_refused = f"{where}.{name}" in REFUSED
                thing = not_emulated(f"{where}.{name}") if is_refused else getattr(_no_effect, name)
                setattr(module, name, thing)


sys.meta_path.append(ModuleMaker())
