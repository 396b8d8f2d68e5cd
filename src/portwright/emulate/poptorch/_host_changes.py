"""What the host has done to its weights since the device last had them: the device does not see any of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch

from portwright.emulate.poptorch._errors import refuse
from portwright.emulate.poptorch._logging import logger

_MOST_NAMED = 4


class _Seen(NamedTuple):
    tensor: torch.Tensor  # alive, or another one could get its id
    version: int
    dtype: torch.dtype
    shape: torch.Size
    requires_grad: bool


class HostChanges:
    """Remembers the host's tensors as they were at the last copy in either direction."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._said: set[str] = set()

    def settle(self, host: Mapping[str, torch.Tensor], names: Iterable[str] | None = None) -> None:
        """The device and the host agree on these tensors now."""
        for name in host if names is None else names:
            self._seen[name] = _see(host[name])
        self._said.clear()

    def check_types(self, host: Mapping[str, torch.Tensor]) -> None:
        """Refuses a model that no longer has the tensors which it was compiled with."""
        if self._seen and (gone := sorted(set(self._seen) ^ set(host))):
            raise refuse(
                f"the model was compiled with other tensors than it has now: {_named(gone)}. Change a model before its first call, "
                "or destroy() the executor and compile it anew."
            )
        for name, before in self._seen.items():
            now = host[name]
            if (now.dtype, now.shape) != (before.dtype, before.shape):
                raise refuse(
                    f"{name} was {before.dtype} {list(before.shape)} when the model was compiled, and is {now.dtype} "
                    f"{list(now.shape)} now. Use .half(), .to() and the like before wrapping, or destroy() the executor and "
                    "compile it anew."
                )

    def check(self, host: Mapping[str, torch.Tensor], *, training: bool) -> None:
        """Says once what the device cannot know of."""
        self.check_types(host)
        now = {name: _see(host[name]) for name in self._seen}
        changed = [
            name
            for name, before in self._seen.items()
            if now[name].tensor is not before.tensor or now[name].version != before.version
        ]
        if changed and "values" not in self._said:
            self._said.add("values")
            logger.warning(
                "the host's %s changed since the device got a copy, which the device does not see: call copyWeightsToDevice(), "
                "or load_state_dict() of the executor",
                _named(changed),
            )
        frozen = [
            name for name, before in self._seen.items() if now[name].requires_grad != before.requires_grad
        ]
        if training and frozen and "frozen" not in self._said:
            self._said.add("frozen")
            logger.warning(
                "requires_grad of %s changed after the model was compiled, which has no effect: what is trained is part of the "
                "program. destroy() the executor, and the next call compiles anew",
                _named(frozen),
            )


def _see(tensor: torch.Tensor) -> _Seen:
    version = 0 if tensor.is_inference() else tensor._version
    return _Seen(tensor, version, tensor.dtype, tensor.shape, tensor.requires_grad)


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
