"""A callable of a user's file, as FILE.py:NAME names it, and the params that go with it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from portwright.errors import PortwrightError, UserError, suggest
from portwright.graph.plans.request import Request
from portwright.job.blame import blame


def find_callable(request: Request, kind: str, makes: str) -> tuple[Callable[..., Any], Path]:
    """What FILE.py:NAME names, and its folder; `kind` stands for the name in messages, and `makes` says what to name."""
    file_name, _, name = request.path.rpartition(":")
    file = Path(file_name)
    if not file.is_file():
        raise UserError(f"there is no file '{file}'.", f"Give FILE.py:{kind}.")
    file = file.resolve()
    sys.path.insert(0, str(file.parent))
    # Under its own name, unless a module that is in use has it.
    module_name = file.stem if file.stem not in sys.modules else f"_planned_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except PortwrightError:
        raise
    except Exception as error:
        raise blame(error) from error
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [k for k, v in vars(found).items() if not k.startswith("_") and callable(v)]
            raise UserError(f"{file} has no '{name}'.", suggest(part, public))
        found = getattr(found, part)
    if not callable(found):
        raise UserError(f"'{name}' of {file} is {type(found).__name__}.", f"Name {makes}.")
    return found, file.parent


def plain_params(request: Request) -> dict[str, Any] | None:
    """The params file as it is written, where one was given."""
    from portwright.job.params import load_params

    if request.params is None:
        if request.overrides:
            raise UserError("-D was given without --params.", "Say which params file it changes.")
        return None
    return load_params(request.params, overrides=request.overrides).values


def check_batch_size(request: Request) -> None:
    if request.batch_size is not None and request.batch_size < 1:
        raise UserError(f"--batch-size is {request.batch_size}.", "Give a number from 1 on.")
