"""Makes `import tensorflow` in a user's file return the API that the file was written for.

The file is not changed, so that line numbers stay: its import statement returns another module. TensorFlow's own files and
installed packages get the installed TensorFlow.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from portwright.compat.finder import NotLentError, NotLentModuleError, users_line
from portwright.compat.tensorflow_evidence import Api, is_users_file, judge_file, judge_program
from portwright.errors import UserError

VERSION_1 = "1.15.5"  # tf.__version__ in a file written for TensorFlow 1: the last release of that API
_PRIVATE_KERAS = "tensorflow.python.keras"  # was Keras itself until 2.5; today it is an unused remnant


class View(ModuleType):
    """A module that looks names up in several modules, in order."""

    def __init__(
        self, name: str, sources: Callable[[], Sequence[Any]], own: Mapping[str, Callable[[], Any]]
    ) -> None:
        super().__init__(name)
        self.__dict__.update(_sources=sources, _own=own)

    def __getattr__(self, name: str) -> Any:
        own, sources = self.__dict__["_own"], self.__dict__["_sources"]
        if name in own:
            return own[name]()
        for source in sources():
            found = getattr(source, name, _MISSING)
            if found is not _MISSING:
                return found
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotLentError(
            f"{users_line()}TensorFlow {_version()} has no {self.__name__}.{name}, and none is lent for it.",
            "See what took its place: https://www.tensorflow.org/guide/migrate, and docs/compat.md for what is lent.",
        )

    def __dir__(self) -> list[str]:
        return sorted(
            {*self.__dict__["_own"], *(n for source in self.__dict__["_sources"]() for n in dir(source))}
        )


_MISSING = object()


def _version() -> str:
    return str(getattr(sys.modules.get("tensorflow"), "__version__", ""))


class ImportGate:
    """Handles the imports of TensorFlow and Keras in the user's files; all other imports are Python's own."""

    def __init__(self, script: str) -> None:
        self._script = script
        self._import = builtins.__import__
        self._program: Api | None = None
        self._of_file: dict[str, Api] = {}
        self._views: dict[Api, View] = {}

    def install(self) -> None:
        builtins.__import__ = self._answer

    def remove(self) -> None:
        builtins.__import__ = self._import

    @property
    def program(self) -> Api:
        """The API that the program was written for, as far as the files read so far show."""
        if self._program is None:
            self._program = judge_program(self._script, *self._apis())
            self._behave()
        return self._program

    def _apis(self) -> tuple[Any, Any]:
        tensorflow: Any = importlib.import_module("tensorflow")
        return tensorflow.compat.v1, tensorflow

    def api_of(self, path: str) -> Api:
        """The API of one file; EITHER where its names do not show it: then the program's is used."""
        program = self.program
        if path not in self._of_file:
            found = self._of_file[path] = judge_file(path, *self._apis())
            if found is Api.V1 and program is Api.EITHER:
                self._program = Api.V1
                self._behave()
        return self._of_file[path]

    def _behave(self) -> None:
        if self._program is Api.V1:
            from portwright.compat.tensorflow_loaded import behave_as_v1

            behave_as_v1()

    def _answer(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        top = name.partition(".")[0]
        if level == 0 and top in ("tensorflow", "keras") and globals is not None:
            path = globals.get("__file__")
            if isinstance(path, str) and is_users_file(path):
                if top == "keras":
                    return self._keras(name, globals, locals, fromlist)
                return self._tensorflow(name, path, globals, locals, fromlist)
        return self._import(name, globals, locals, fromlist or (), level)

    def _keras(self, name: str, *rest: Any) -> Any:
        """Handles `import keras`: tf_keras for TensorFlow 1; an error otherwise, since an Estimator cannot use Keras 3's layers."""
        if self.program is not Api.V1:
            raise UserError(
                f"{users_line()}'import {name}' gives Keras 3, whose layers an Estimator cannot train.",
                "Write 'from tensorflow import keras' (Keras 2 under --compat estimator) or 'import tf_keras as keras', "
                "or run the script without --compat.",
            )
        return self._import(f"tf_keras{name.removeprefix('keras')}", *rest)

    def _tensorflow(self, name: str, path: str, *rest: Any) -> Any:
        _, _, fromlist = rest
        keras = _own_keras(name)
        if keras is None:
            found = self._imported(name, path, rest)
            if found is not None:
                return found
        elif fromlist:
            return keras
        api = self.api_of(path)
        if api is Api.V2 and keras is None:
            return self._import(name, *rest)
        if keras is None and name != "tensorflow":
            try:
                self._import(name, *rest)  # loads the submodule
            except ModuleNotFoundError:
                if not self._has(self._view_of(api), name):
                    raise
        return self._view_of(api)

    def _imported(self, name: str, path: str, rest: Any) -> Any:
        """The module of `from tensorflow.a.b import c`; None if the view of tensorflow itself serves."""
        fromlist = rest[2]
        if not fromlist or name == "tensorflow":
            return None
        part = name.split(".")[1]
        if part in ("compat", "contrib", "core", "python"):
            module = self._import(name, *rest)
            if part == "contrib":
                _check_lent(module, fromlist)
            return module
        api = self.api_of(path)
        found: Any = self._view_of(api)
        for step in name.split(".")[1:]:
            found = getattr(found, step, None)
        return found if found is not None and api is not Api.V2 else self._import(name, *rest)

    def _has(self, view: Any, name: str) -> bool:
        for part in name.split(".")[1:]:
            if not hasattr(view, part):
                return False
            view = getattr(view, part)
        return True

    def _view_of(self, api: Api) -> Any:
        if api not in self._views:
            v1, v2 = self._apis()
            own: dict[str, Callable[[], Any]] = {"compat": lambda: v2.compat, "python": _python}
            of_v1: dict[str, Callable[[], Any]] = {
                **own,
                "estimator": lambda: importlib.import_module("tensorflow.compat.v1.estimator"),
                "contrib": lambda: importlib.import_module("tensorflow.contrib"),
                "examples": lambda: importlib.import_module("tensorflow.examples"),
                "__version__": lambda: VERSION_1,
                "VERSION": lambda: VERSION_1,
            }
            view = {
                Api.V1: View("tensorflow", lambda: (v1, v2), of_v1),
                Api.V2: View("tensorflow", lambda: (v2,), own),
                Api.EITHER: View("tensorflow", self._views_of_program, {}),
            }[api]
            # Tools and the import system read these of a module.
            for name in ("__file__", "__path__", "__spec__", "__package__"):
                view.__dict__[name] = getattr(v2, name, None)
            self._views[api] = view
        return self._views[api]

    def _views_of_program(self) -> Sequence[Any]:
        return (self._view_of(Api.V1 if self.program is Api.V1 else Api.V2),)


def _check_lent(module: Any, names: Sequence[str]) -> None:
    """Raises an error with a cure for a name that is not lent; Python's own ImportError has none."""
    for name in names:
        try:
            if name != "*":
                getattr(module, name)
        except NotLentError as error:
            raise NotLentModuleError(error.message, error.cure, f"{module.__name__}.{name}") from None


def _python() -> View:
    real: Any = importlib.import_module("tensorflow.python")
    return View("tensorflow.python", lambda: (real,), {"keras": lambda: _keras_2("")})


def _keras_2(path: str) -> ModuleType:
    return importlib.import_module(f"tf_keras.src{path}")


def _own_keras(name: str) -> ModuleType | None:
    """Keras 2 for a file that imports tensorflow.python.keras, its place until 2.5; None for other names."""
    if name != _PRIVATE_KERAS and not name.startswith(f"{_PRIVATE_KERAS}."):
        return None
    path = name.removeprefix(_PRIVATE_KERAS)
    for known in (path, path.replace(".mixed_precision.experimental", ".mixed_precision")):
        try:
            return _keras_2(known)
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("tf_keras"):
                raise
    return None
