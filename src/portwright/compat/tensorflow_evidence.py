"""Finds out from its source which of TensorFlow's two APIs a file was written for.

A name or an argument that only one of them has decides. Most files of a program have none of either; they go with
the program, that is with the files that its first script leads to.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cache
from importlib.machinery import PathFinder
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

_MISSING = object()
_ONLY_V1_PACKAGES = ("contrib", "examples", "models")  # folders that TensorFlow 1 shipped
_NO_EVIDENCE = ("estimator", "python", "compat", "core")  # parts of both APIs, or private ones
# Names that, in a file that imports tensorflow.compat.v1, show code of TensorFlow 1.15 or work only without eager execution.
_HABITS_OF_115 = ("placeholder", "placeholder_with_default", "Session", "InteractiveSession", "app", "flags")


class Api(Enum):
    """The API that `import tensorflow as tf` means in a file."""

    V1 = "TensorFlow 1"
    V2 = "TensorFlow 2"
    EITHER = "either"


def judge_file(path: str, v1: ModuleType, v2: ModuleType) -> Api:
    """The API that a file's own names show; `v1` and `v2` are the installed APIs, without lent names."""
    return judge(_parse(path), v1, v2)


def judge(tree: ast.AST, v1: ModuleType, v2: ModuleType) -> Api:
    """The API that a file's names show."""
    return _decide(_verdicts(tree, v1, v2))


def judge_program(script: str, v1: ModuleType, v2: ModuleType) -> Api:
    """The API of a script and the files that it imports."""
    return _decide(judge(tree, v1, v2) for tree in _files_of_program(script))


def _decide(verdicts: Iterable[Api]) -> Api:
    """One verdict for TensorFlow 1 decides, since what only that has works with no other."""
    found = Api.EITHER
    for verdict in verdicts:
        if verdict is Api.V1:
            return Api.V1
        if verdict is Api.V2:
            found = Api.V2
    return found


def _files_of_program(script: str) -> Iterator[ast.AST]:
    waiting = [script]
    for path in waiting:
        tree = _parse(path)
        yield tree
        waiting += [each for each in dict.fromkeys(_imported_files(tree, Path(path))) if each not in waiting]


@cache
def _parse(path: str) -> ast.Module:
    try:
        return ast.parse(Path(path).read_bytes(), path)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])  # Python reports the error itself when it runs the file


def _verdicts(tree: ast.AST, v1: ModuleType, v2: ModuleType) -> Iterator[Api]:
    names: set[str] = set()
    names_of_v1: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top, _, rest = alias.name.partition(".")
                if top != "tensorflow":
                    continue
                if rest.partition(".")[0] in _ONLY_V1_PACKAGES:
                    yield Api.V1
                if rest == "compat.v1" and alias.asname is not None:
                    names_of_v1.add(alias.asname)
                elif not rest or alias.asname is None:
                    names.add(alias.asname or "tensorflow")
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            top, _, rest = node.module.partition(".")
            if top == "tensorflow":
                prefix = tuple(rest.split(".")) if rest else ()
                for alias in node.names:
                    if node.module == "tensorflow.compat" and alias.name == "v1":
                        names_of_v1.add(alias.asname or "v1")
                    elif alias.name != "*":
                        yield _verdict((*prefix, alias.name), v1, v2)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            chain = _chain(node)
            if chain is not None and chain[0] in names:
                yield _verdict(chain[1:], v1, v2)
            elif chain is not None and chain[0] in names_of_v1 and chain[1] in _HABITS_OF_115:
                yield Api.V1
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            chain = _chain(node.func)
            if chain is not None and chain[0] in names:
                yield _verdict_of_call(chain[1:], [k.arg for k in node.keywords if k.arg], v1, v2)


def _chain(node: ast.expr) -> tuple[str, ...] | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, *reversed(parts)) if isinstance(node, ast.Name) else None


def _verdict(chain: tuple[str, ...], v1: ModuleType, v2: ModuleType) -> Api:
    if chain[0] in _ONLY_V1_PACKAGES:
        return Api.V1
    if chain[:2] == ("compat", "v1"):
        return Api.V2  # code written for TensorFlow 1 does not write tf.compat.v1
    if chain[0] in _NO_EVIDENCE or chain[0].startswith("_") or chain[:2] == ("keras", "estimator"):
        return Api.EITHER
    in_v1, in_v2 = _find(v1, chain), _find(v2, chain)
    if (in_v1 is _MISSING) == (in_v2 is _MISSING):
        return Api.EITHER
    return Api.V2 if in_v1 is _MISSING else Api.V1


def _verdict_of_call(chain: tuple[str, ...], keywords: list[str], v1: ModuleType, v2: ModuleType) -> Api:
    if not keywords or chain[0] in _NO_EVIDENCE:
        return Api.EITHER
    in_v1, in_v2 = _find(v1, chain), _find(v2, chain)
    if in_v1 is _MISSING or in_v2 is _MISSING or in_v1 is in_v2:
        return Api.EITHER
    taken_1, taken_2 = _parameters(in_v1), _parameters(in_v2)
    if taken_1 is None or taken_2 is None:
        return Api.EITHER
    if (taken_1 - taken_2).intersection(keywords):
        return Api.V1
    return Api.V2 if (taken_2 - taken_1).intersection(keywords) else Api.EITHER


def _find(api: ModuleType, chain: tuple[str, ...]) -> Any:
    found: Any = api
    for name in chain:
        try:
            found = getattr(found, name, _MISSING)
        except Exception:  # a lazy module whose package is missing
            return _MISSING
        if found is _MISSING:
            return _MISSING
    return found


def _parameters(function: Any) -> frozenset[str] | None:
    """The keywords that a function takes; None if it takes any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters)


def _imported_files(tree: ast.AST, path: Path) -> Iterator[str]:
    """The files that a script's import statements name, beside the script or on the user's own path."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names, level = [alias.name for alias in node.names], 0
        elif isinstance(node, ast.ImportFrom):
            names = [".".join(filter(None, (node.module, alias.name))) for alias in node.names]
            level = node.level
        else:
            continue
        for name in names:
            if level:
                yield from _files_of(name, [str(path.parents[min(level, len(path.parents)) - 1])])
            elif name.partition(".")[0] not in {"tensorflow", "numpy", *sys.stdlib_module_names}:
                yield from _files_of(name, [str(path.parent), *sys.path])


def _files_of(name: str, where: list[str]) -> Iterator[str]:
    """The user's files that importing a name below some folders runs; the last part may be a name in a module."""
    for whole in accumulate(name.split("."), "{}.{}".format):
        spec = PathFinder.find_spec(whole, where)
        if spec is None:
            return
        if spec.origin and is_users_file(spec.origin):
            yield spec.origin
        where = list(spec.submodule_search_locations or ())


@cache
def is_users_file(path: str) -> bool:
    """Whether a file belongs neither to Python, nor to an installed package, nor to Portwright."""
    full = Path(path).resolve()
    return not (
        path.startswith("<")
        or {"site-packages", "dist-packages"}.intersection(full.parts)
        or full.is_relative_to(Path(ast.__file__).resolve().parent)
        or full.is_relative_to(Path(__file__).resolve().parents[1])
    )
