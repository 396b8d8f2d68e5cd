"""Python stand-ins for custom operations, whose real forms are C++ for an IPU.

`poptorch.custom_op` raises for an operation that has none. A model that uses one is emulated by saying what it computes:

    from portwright.emulate.poptorch import _custom
    _custom.register("Cube", "com.acme", lambda x: x**3)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portwright.errors import UserError

_stand_ins: dict[tuple[str, str], Callable[..., Any]] = {}


def register(name: str, domain: str, function: Callable[..., Any]) -> None:
    """Has custom_op(name, domain) compute `function(*inputs, **attributes)`, with torch's ops so that it has a gradient."""
    if not callable(function):
        raise UserError(
            f"the stand-in of {domain}.{name} is {type(function).__name__}.", "Give a function of tensors."
        )
    _stand_ins[name, domain] = function


def find(name: str, domain: str) -> Callable[..., Any] | None:
    return _stand_ins.get((name, domain))


def registered() -> list[str]:
    return sorted(f"{domain}.{name}" for name, domain in _stand_ins)
