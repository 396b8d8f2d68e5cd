"""What a user's run.py passes to run(), found by running the script up to that call and no further."""

from __future__ import annotations

import inspect
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from portwright.errors import PortwrightError, UserError
from portwright.job.blame import blame
from portwright.runtime import run as run_module


class _Asked(BaseException):
    """Carries what a script passes to run() out of it; not an Exception, so that no script catches it."""

    def __init__(self, parts: dict[str, Any]) -> None:
        super().__init__()
        self.parts = parts


def ask_script(
    script: Path,
    cure: str = "Call it, as `portwright new` does.",
    explain: Callable[[Exception], PortwrightError] = blame,
) -> dict[str, Any]:
    """The arguments of the script's call of run(), by their names there and without `argv`.

    The script's folder stays on sys.path: its functions may import from there when they are called. `cure` is for a
    script that never calls run(), and `explain` for an exception of its own.
    """
    declared = inspect.signature(run_module.run)

    def stand_in(*given: Any, **named: Any) -> None:
        bound = declared.bind(*given, **named)
        bound.apply_defaults()
        raise _Asked({name: value for name, value in bound.arguments.items() if name != "argv"})

    sys.path.insert(0, str(script.parent))
    with mock.patch.object(run_module, "run", stand_in):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except _Asked as asked:
            return asked.parts
        except PortwrightError:
            raise
        except SystemExit as stop:
            raise UserError(f"{script} ended with {stop.code!r} before it called run().", cure) from stop
        except Exception as error:
            raise explain(error) from error
    raise UserError(f"{script} never calls portwright.run().", cure)
