"""The import finder that lends old names: when old code imports a removed module, it makes one of Portwright's objects.

It is installed only with --compat, comes before Python's own finders, and answers only for the names it was given.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Any

from portwright.compat.tensorflow_evidence import is_users_file
from portwright.errors import UserError, suggest

Attributes = Mapping[str, str]
"""What a lent module holds: each name, and its place: `package.module`, `package.module:name` or `package.module:table:key`."""


def names_from(place: str, *names: str, **renamed: str) -> dict[str, str]:
    """What a lent module holds of one place; `renamed` are names that are others there."""
    return {
        name: f"{place}:{there}"
        for name, there in {**dict(zip(names, names, strict=True)), **renamed}.items()
    }


class LendingFinder(MetaPathFinder):
    """Finds lent modules, and the packages above them.

    `lent` maps module names to their contents. Modules under a name in `whole` are never taken from the disk; another
    lent module is, if it exists there and `prefer_disk` returns True for its name. Packages above a lent module are
    those on the disk, also namespace packages of several folders; a missing one is replaced by an empty package.
    `added` are names that installed modules once had, and that are added to them where they are missing.
    `cure` gives the advice for a name that is not lent; with it, the error also names the user's line.
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
        self._added = AfterLoading({name: partial(_add_names, held) for name, held in (added or {}).items()})
        self._cure = cure
        above = {name[:end] for name in lent for end, letter in enumerate(name) if letter == "."}
        self._parents = above - set(lent)

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
                # Submodules that are not lent may still be in the package's folder on the disk.
                on_disk = PathFinder.find_spec(fullname, path, target)
                spec.submodule_search_locations = list(
                    getattr(on_disk, "submodule_search_locations", None) or []
                )
            return spec
        if self._is_whole(fullname):
            parent = fullname.rpartition(".")[0]
            names = [name for name in self._lent if name.rpartition(".")[0] == parent]
            if self._cure is None:
                raise ModuleNotFoundError(
                    f"No module named '{fullname}' among those that Portwright lends. {suggest(fullname, names)}",
                    name=fullname,
                )
            raise NotLentModuleError(
                f"{users_line()}{fullname} is not among the modules that Portwright lends.",
                f"{self._cure(fullname)} {suggest(fullname, names)}",
                fullname,
            )
        if fullname in self._parents and PathFinder.find_spec(fullname, path, target) is None:
            return ModuleSpec(fullname, _LentLoader({}), origin="portwright", is_package=True)
        return self._added.find_spec(fullname, path, target)

    def _is_whole(self, name: str) -> bool:
        return any(name == top or name.startswith(f"{top}.") for top in self._whole)

    def install(self) -> None:
        """Puts the finder before all others; a lent module that was imported from elsewhere already is an error."""
        for name in self._lent:
            there = sys.modules.get(name)
            if there is not None and self._is_whole(name) and not isinstance(there.__loader__, _LentLoader):
                raise UserError(
                    f"'{name}' was imported from {getattr(there, '__file__', None)} before it could be lent.",
                    "Start the script with portwright run, without importing it before.",
                )
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Removes the finder and the modules that it lent."""
        sys.meta_path.remove(self)
        for name, module in list(sys.modules.items()):
            if isinstance(getattr(module, "__loader__", None), _LentLoader) and (
                name in self._lent or name in self._parents
            ):
                del sys.modules[name]


class _LentLoader(Loader):
    """Makes a module whose objects are imported at their first use."""

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


class AfterLoading(MetaPathFinder):
    """Calls a function with an installed module as soon as that is loaded; `then` gives the function by the module's name."""

    def __init__(self, then: Mapping[str, Callable[[Any], None]]) -> None:
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._then:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenLoader(spec.loader, self._then[fullname])
        return spec

    def install(self) -> None:
        for name, then in self._then.items():
            if name in sys.modules:
                then(sys.modules[name])
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        sys.meta_path.remove(self)


class _ThenLoader(Loader):
    def __init__(self, loader: Loader, then: Callable[[Any], None]) -> None:
        self._loader, self._then = loader, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # such as get_source

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._then(module)


def _add_names(attributes: Attributes, module: Any) -> None:
    for name, place in attributes.items():
        if not hasattr(module, name):
            setattr(module, name, _resolve(place))


def _resolve(place: str) -> Any:
    module, *names = place.split(":")
    found: Any = importlib.import_module(module)
    for name in names:
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    return found


class NotLentError(UserError, AttributeError):
    """A UserError for the command line, and an AttributeError for code that asks with hasattr."""


class NotLentModuleError(UserError, ModuleNotFoundError):
    """A UserError for the command line, and a ModuleNotFoundError for code that tries an import."""

    def __init__(self, message: str, cure: str = "", name: str = "") -> None:
        UserError.__init__(self, message, cure)
        self.name = name


def users_line() -> str:
    """`file:line: ` of the innermost frame in the user's code, or "" without one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_globals.get("__file__")
        if path is not None and frame.f_code.co_filename == path and is_users_file(path):
            return f"{path}:{frame.f_lineno}: "
        frame = frame.f_back
    return ""
