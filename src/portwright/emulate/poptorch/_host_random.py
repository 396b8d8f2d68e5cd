"""Numbers that Python or numpy draw while a model is traced: they are constants of the program. A line of the log says so."""

from __future__ import annotations

import functools
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from portwright.emulate.poptorch._logging import logger

if TYPE_CHECKING:
    from portwright.emulate.poptorch._watch import Watch

_TORCH = str(Path(torch.__file__).parent) + "/"
_NO_DRAWS = ("seed", "getstate", "setstate", "get_state", "set_state")
_MEANING = (
    "is drawn once, while the model is compiled: each later call uses the same number, and takes the same branch. Draw with torch "
    "(torch.rand, torch.where), or give it to the model as an input"
)


@contextmanager
def told_draws(watch: Watch) -> Iterator[None]:
    """Warns of each line of the model that calls a function of `random` or `numpy.random`.

    Functions that were imported by name are seen by what they leave behind, without their line.
    """
    thread, told = threading.get_ident(), []

    def watched(name: str, draw: Any) -> Any:
        @functools.wraps(draw)
        def call(*args: Any, **kwargs: Any) -> Any:
            is_here = threading.get_ident() == thread and watch.phase == "forward" and not watch.is_paused
            if is_here and not sys._getframe(1).f_code.co_filename.startswith(_TORCH):
                told.append(name)
                watch.note_once(f"{name}() {_MEANING}")
            return draw(*args, **kwargs)

        return call

    numpy_random: Any = sys.modules.get("numpy.random")
    before = _states(numpy_random)
    with ExitStack() as stack:
        for home, owner in ((random, random._inst), (numpy_random, _global_state(numpy_random))):
            for name, draw in list(vars(home).items()) if home is not None else ():
                if name not in _NO_DRAWS and owner is not None and getattr(draw, "__self__", None) is owner:
                    called = f"{home.__name__}.{name}"
                    stack.enter_context(mock.patch.object(home, name, watched(called, draw)))
        yield
    for name, state in _states(numpy_random).items():
        if state != before.get(name) and not told:
            logger.warning("what forward() draws from %s %s", name, _MEANING)


def _global_state(numpy_random: Any) -> Any:
    return None if numpy_random is None else getattr(numpy_random.mtrand, "_rand", None)


def _states(numpy_random: Any) -> dict[str, Any]:
    states: dict[str, Any] = {"random": random.getstate()}
    if numpy_random is not None:
        kind, key, *rest = numpy_random.get_state()
        states["numpy.random"] = (kind, key.tobytes(), *rest)
    return states
