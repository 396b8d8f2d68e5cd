"""Clipping of gradients on the host, which does nothing where an executor trains: they stay on the IPU. A line of the log says so."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from portwright.emulate.poptorch import _active
from portwright.emulate.poptorch._logging import logger
from portwright.graph.capturing.places import PlaceFinder

_CURES = {
    "clip_grad_norm_": "Have the device clip them: max_grad_norm of poptorch.optim.SGD, Adam or AdamW",
    "clip_grad_value_": "The device clips by their norm alone: max_grad_norm of poptorch.optim.SGD, Adam or AdamW",
}
_told: set[tuple[str, str]] = set()


def watch_clipping(is_owned: Callable[[torch.Tensor], bool]) -> None:
    """From here on, torch's functions warn, once a line, when they are given a weight that `is_owned`.

    They are changed inside, where a script that has imported them by name finds the change, too.
    """
    for name, cure in _CURES.items():
        outer: Any = getattr(torch.nn.utils, name)
        for cell in outer.__closure__ or ():
            if getattr(cell.cell_contents, "__name__", None) == name:
                cell.cell_contents = _watched(cell.cell_contents, cure, is_owned)


def _watched(clip: Any, cure: str, is_owned: Callable[[torch.Tensor], bool]) -> Any:
    @functools.wraps(clip)
    def call(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if _active.current() is None and any(map(is_owned, given)):
            place, _ = PlaceFinder().find(sys._getframe(1), ())
            if (clip.__name__, str(place)) not in _told:
                _told.add((clip.__name__, str(place)))
                logger.warning(
                    "%s() on the host clips nothing: the gradients of a poptorch.trainingModel stay on the IPU, and the weights are "
                    "updated by the time it returns. %s (%s)",
                    clip.__name__,
                    cure,
                    place,
                )
        return clip(given, *args, **kwargs)

    return call
