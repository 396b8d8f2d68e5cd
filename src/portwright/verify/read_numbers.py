"""Numbers that remember the tensor from which a script read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from portwright.watching.place import Place

_UNARY = ("__neg__", "__abs__", "__pos__")
_BINARY = tuple(
    f"__{side}{name}__"
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
    for side in ("", "r")
)


class ReadNumber:
    """Mixin for a number read from `source`; arithmetic passes the source on to its results."""

    source: Tensor
    place: Place | None


class ReadFloat(ReadNumber, float):
    """A float read by `item`."""


class ReadInt(ReadNumber, int):
    """An int read by `item`."""


def follow_number(value: Any, source: Tensor, place: Place | None) -> Any:
    """The number with its source attached; a value that is no number is returned unchanged."""
    if type(value) not in (float, int):
        return value
    number: ReadFloat | ReadInt = ReadFloat(value) if type(value) is float else ReadInt(value)
    number.source, number.place = source, place
    return number


def iter_read_numbers(value: Any) -> Iterator[ReadNumber]:
    """Numbers with a source among arguments."""
    if isinstance(value, ReadNumber):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from iter_read_numbers(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from iter_read_numbers(part)


def _passing_on(base: type, name: str) -> Callable[..., Any]:
    plain = getattr(base, name)

    def operate(self: Any, *others: Any) -> Any:
        result = plain(self, *others)
        if result is NotImplemented and base is int and others and isinstance(others[0], float):
            result = getattr(float, name)(float(self), *others)
        return follow_number(result, self.source, self.place)

    return operate


for _base, _kind in ((float, ReadFloat), (int, ReadInt)):
    for _name in (*_UNARY, *_BINARY):
        setattr(_kind, _name, _passing_on(_base, _name))
