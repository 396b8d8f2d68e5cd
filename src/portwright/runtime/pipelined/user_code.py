"""The line of the user's code that runs, and the attributes that it sets on its objects."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from portwright import base_model

_TORCH_FOLDER = str(Path(torch.__file__).parent)
_OWN_FILES = (str(Path(__file__).parent), base_model.__file__)
_REGISTRIES = ("_buffers", "_parameters", "_modules")
_CONTAINERS = (dict, list, set, deque)
USER_MODEL = "<model>"  # in place of a path: the object around the net


def user_line() -> str:
    """The line of the user's code that is running, as `model.py:31`."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_TORCH_FOLDER, *_OWN_FILES)):
            return f"{Path(name).name}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "the model"


class Attributes:
    """The attributes of a model's modules, to be put back after a trace, which leaves tensors without data in them."""

    def __init__(self, net: nn.Module, user_model: Any) -> None:
        self._holders: dict[str, Any] = dict(net.named_modules())
        if not isinstance(user_model, nn.Module):
            self._holders[USER_MODEL] = user_model
        self._before = {path: _attributes(holder) for path, holder in self._holders.items()}
        self._contents = {path: _contents(holder) for path, holder in self._holders.items()}

    def restore(self, stand_ins: Mapping[int, tuple[str, torch.Tensor]]) -> dict[str, list[str]]:
        """Names of what the code changed, by module."""
        changed = {
            path: _restore(holder, self._before[path], stand_ins) + _refill(holder, self._contents[path])
            for path, holder in self._holders.items()
        }
        return {path: names for path, names in changed.items() if names}


def _restore(
    holder: Any, before: Mapping[str, Any], stand_ins: Mapping[int, tuple[str, torch.Tensor]]
) -> list[str]:
    changed = []
    for name, old in before.items():
        now = holder.__dict__.get(name)
        if name in _REGISTRIES and isinstance(now, dict):
            for key in [key for key, value in now.items() if old.get(key) is not value]:
                # `self.count += 1` puts a buffer in its own place again, which is no change of what is there.
                weight = stand_ins.get(id(old.get(key)))
                if weight is None or now[key] is not weight[1]:
                    changed.append(key)
            if any(now.get(key) is not value for key, value in old.items()) or len(now) != len(old):
                now.clear()
                now.update(old)
        elif now is not old and _differs(now, old):
            changed.append(name)
            holder.__dict__[name] = old
    for name in [name for name in holder.__dict__ if name not in before]:
        changed.append(name)
        del holder.__dict__[name]
    return changed


def _attributes(holder: Any) -> dict[str, Any]:
    own = dict(vars(holder))
    for name in _REGISTRIES:
        if isinstance(own.get(name), dict):
            own[name] = dict(own[name])
    return own


def _contents(holder: Any) -> dict[str, list[Any]]:
    """What is in the lists, dicts and sets that a holder has as attributes."""
    return {
        name: list(value.items()) if isinstance(value, dict) else list(value)
        for name, value in vars(holder).items()
        if name not in _REGISTRIES and isinstance(value, _CONTAINERS)
    }


def _refill(holder: Any, before: Mapping[str, list[Any]]) -> list[str]:
    """Restores the contents of the containers; gives the names of those that had changed."""
    changed = []
    for name, now in _contents(holder).items():
        old = before.get(name)
        if old is None or (len(now) == len(old) and not any(map(_entry_differs, now, old))):
            continue
        changed.append(name)
        container = holder.__dict__[name]
        container.clear()
        (container.update if isinstance(container, dict | set) else container.extend)(old)
    return changed


def _entry_differs(new: Any, old: Any) -> bool:
    if isinstance(new, tuple) and isinstance(old, tuple) and len(new) == len(old):
        return any(map(_entry_differs, new, old))
    return new is not old and _differs(new, old)


def _differs(new: Any, old: Any) -> bool:
    if isinstance(new, torch.Tensor) or isinstance(old, torch.Tensor):
        return True
    try:
        return type(new) is not type(old) or bool(new != old)
    except Exception:  # whatever a user's __ne__ does
        return True
