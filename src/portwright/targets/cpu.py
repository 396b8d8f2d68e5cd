"""This machine's processor, through torch; several processes talk by gloo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from portwright.target import Backend, Flag, Target


def make_backend(flags: Mapping[str, Any], note: Callable[[str], None]) -> Backend:
    from portwright.runtime.backend import TorchBackend

    return TorchBackend("cpu", flags, note)


TARGET = Target(
    name="CPU",
    summary="this machine's processor",
    make_backend=make_backend,
    why_not=lambda: None,
    flags=(Flag(("-cpu", "--cpu"), "without a target: CPU", is_switch=True, chooses=True),),
    preference=1,
)
