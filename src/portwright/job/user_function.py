"""Functions of the user's code that params.yaml names."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from portwright.errors import UserError, suggest
from portwright.job.problems import show


@functools.cache
def find_function(name: str, key: str) -> Callable[..., Any]:
    """Imports `module:function`; `key` is the key of the params that holds the name."""
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module does when it is imported
        missing = isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]
        reason = "there is no such module" if missing else f"it fails with {type(error).__name__}: {error}"
        cure = f"Python looks for modules in {', '.join(sys.path[:3])}, ..." if missing else "Mend it."
        raise UserError(f"{key} '{name}': cannot import '{module_name}': {reason}.", cure) from error
    found: Any = module
    for part in function_name.split("."):
        if not hasattr(found, part):
            public = [
                item for item in vars(found) if not item.startswith("_") and callable(getattr(found, item))
            ]
            raise UserError(f"{key} '{name}': '{module_name}' has no '{part}'.", suggest(part, public))
        found = getattr(found, part)
    if not callable(found):
        raise UserError(f"{key} '{name}' is {show(found)}.", "Name a function.")
    function: Callable[..., Any] = found
    return function
