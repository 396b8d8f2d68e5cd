"""The import finder that lends old names: a module that code of another time imports is made of our objects.

It is installed only when compatibility is asked for, goes before Python's own finders, and answers for the names it
was given and nothing else.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from portwright.errors import UserError, suggest

Attributes = Mapping[str, str]
"""What a lent module holds: each name, and its place: `package.module`, `package.module:name` or `package.module:table:key`."""


class LendingFinder(MetaPathFinder):
    """Finds lent modules, and packages that must exist for them.

    `lent` maps module names to what they hold. Under a name in `whole` nothing comes from the disk; elsewhere
    a lent module gives way to one on the disk if `prefer_disk` says so of its name. Packages above a lent module
    are those of the disk, namespace packages of several folders too; where there is none, an empty one stands in.
    `added` are names that installed modules once had: they are put into them again, where they are missing.
    `cure` says what to do instead of a name that is not lent; with it, the error names the user's line too.
    """

    def __init__(
        self,
        lent: Mapping[str, Attributes],
        *,
        whole: Sequence[str] = (),
        prefer_disk: Callable[[str], bool] = lambda name: False,
        added: Mapping[str, Attributes] | None = None,
        cure: Callable[[str], str] | None = None,
    ) -> None:
        self._lent = dict(lent)
        self._whole = tuple(whole)
        self._prefer_disk = prefer_disk
        self._added = dict(added or {})
        self._cure = cure
        self._parents = {parent for name in lent for parent in _parents_of(name)} - set(lent)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._lent:
            if not self._is_whole(fullname) and self._prefer_disk(fullname):
                on_disk = PathFinder.find_spec(fullname, path, target)
                if on_disk is not None:
                    return on_disk
            is_package = any(name.startswith(f"{fullname}.") for name in self._lent)
            spec = ModuleSpec(
                fullname,
                _LentLoader(self._lent[fullname], self._cure),
                origin="portwright",
                is_package=is_package,
            )
            if is_package and not self._is_whole(fullname):
                # What is not lent may still lie in the package's folder on the disk.
                on_disk = PathFinder.find_spec(fullname, path, target)
                spec.submodule_search_locations = list(
                    getattr(on_disk, "submodule_search_locations", None) or []
                )
            return spec
        if self._is_whole(fullname):
            parent = fullname.rpartition(".")[0]
            names = [name for name in self._lent if name.rpartition(".")[0] == parent]
            if self._cure is not None:
                from portwright.compat.not_lent import NotLentModuleError, users_line

                raise NotLentModuleError(
                    f"{users_line()}{fullname} is not among the modules that Portwright lends.",
                    f"{self._cure(fullname)} {suggest(fullname, names)}",
                    fullname,
                )
            raise ModuleNotFoundError(
                f"No module named '{fullname}' among those that Portwright lends. {suggest(fullname, names)}",
                name=fullname,
            )
        if fullname in self._parents and PathFinder.find_spec(fullname, path, target) is None:
            return ModuleSpec(fullname, _LentLoader({}), origin="portwright", is_package=True)
        if fullname in self._added:
            installed = PathFinder.find_spec(fullname, path, target)
            if installed is not None and installed.loader is not None:
                installed.loader = _AddingLoader(installed.loader, self._added[fullname])
            return installed
        return None

    def _is_whole(self, name: str) -> bool:
        return any(name == top or name.startswith(f"{top}.") for top in self._whole)

    def install(self) -> None:
        """Goes before the other finders; a module that was imported from elsewhere already is an error."""
        for name in self._lent:
            there = sys.modules.get(name)
            if there is not None and self._is_whole(name) and not isinstance(there.__loader__, _LentLoader):
                raise UserError(
                    f"'{name}' was imported from {getattr(there, '__file__', None)} before it could be lent.",
                    "Start the script with portwright run, without importing it before.",
                )
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Takes the finder and what it lent out again."""
        sys.meta_path.remove(self)
        for name, module in list(sys.modules.items()):
            if isinstance(getattr(module, "__loader__", None), _LentLoader) and (
                name in self._lent or name in self._parents
            ):
                del sys.modules[name]


class _LentLoader(Loader):
    """Makes a module whose objects are found when they are first asked for."""

    def __init__(self, attributes: Attributes, cure: Callable[[str], str] | None = None) -> None:
        self._attributes = attributes
        self._cure = cure

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        attributes, name, cure = self._attributes, module.__name__, self._cure

        def find(attribute: str) -> Any:
            if attribute not in attributes:
                if cure is not None and not attribute.startswith("__"):
                    from portwright.compat.not_lent import NotLentError, users_line

                    whole = f"{name}.{attribute}"
                    raise NotLentError(
                        f"{users_line()}{whole} is not among what Portwright lends.",
                        f"{cure(whole)} {suggest(attribute, attributes)}",
                    )
                raise AttributeError(f"module '{name}', lent by Portwright, has no '{attribute}'")
            found = _resolve(attributes[attribute])
            setattr(module, attribute, found)
            return found

        module.__doc__ = f"What Portwright lends as {name}."
        module.__dict__["__getattr__"] = find
        module.__dict__["__dir__"] = lambda: sorted({*module.__dict__, *attributes})
        if attributes:
            module.__dict__["__all__"] = sorted(attributes)


class _AddingLoader(Loader):
    """Loads an installed module, and then adds what it no longer has."""

    def __init__(self, loader: Loader, attributes: Attributes) -> None:
        self._loader, self._attributes = loader, attributes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # where its source is, and the like

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for name, place in self._attributes.items():
            if not hasattr(module, name):
                setattr(module, name, _resolve(place))


def _resolve(place: str) -> Any:
    module, *names = place.split(":")
    found: Any = importlib.import_module(module)
    for name in names:
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    return found


def _parents_of(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]
