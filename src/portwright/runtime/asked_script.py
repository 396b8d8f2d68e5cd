"""What a user's run.py passes to run(), found by running the script up to that call and no further."""

from __future__ import annotations

import inspect
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from portwright.errors import PortwrightError, UserError
from portwright.job.arguments import Arguments, parse_arguments
from portwright.job.blame import blame
from portwright.job.model_list import find_config
from portwright.job.params import Params
from portwright.job.run_params import load_run_params
from portwright.patched import patched
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
    with patched(run_module, "run", stand_in):
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


@contextmanager
def loaded_script(
    script: Path,
    params: Path | None,
    overrides: Sequence[str],
    *,
    target: str | None,
    ask: Callable[[Path], Mapping[str, Any]] = ask_script,
) -> Iterator[tuple[run_module.Parts, Arguments, Params]]:
    """What a run.py passes to run(), with its arguments and params as in a training; sys.argv is set to match inside the block."""
    config = find_config(script.parent, str(params)) if params else script.parent / "configs/params.yaml"
    if not config.is_file():
        raise UserError(f"there is no params file '{config}'.", "Give one with --params.")
    words = [*([target] if target else []), "--mode", "train", "--params", str(config.resolve())]
    words += [word for text in overrides for word in ("-D", text)]
    with patched(sys, "argv", [str(script), *words]):
        parts = run_module.Parts(**ask(script))
        parts.check()
        arguments = parse_arguments(words, parts.extra_args_parser_fn)
        yield parts, arguments, load_run_params(arguments, parts.default_params_fn)
