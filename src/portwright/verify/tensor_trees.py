"""Finds and replaces tensors inside containers, named tuples, dataclasses and other plain objects."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from portwright.watching.place import Place

_DEEPEST = 8  # batches are shallow; deeper structures are unrelated objects


def iter_tensors(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """Every tensor in a value, in an order that depends only on its structure; modules are not entered."""
    if isinstance(value, Tensor):
        yield value
        return
    if depth > _DEEPEST:
        return
    if isinstance(value, Mapping):
        for part in value.values():
            yield from iter_tensors(part, depth + 1)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from iter_tensors(part, depth + 1)
    elif _is_plain_object(value):
        for part in vars(value).values():
            yield from iter_tensors(part, depth + 1)


def replace_tensors(value: Any, function: Callable[[Tensor], Any], depth: int = 0) -> Any:
    """Copies a structure with each tensor replaced; parts without tensors are not copied."""
    if isinstance(value, Tensor):
        return function(value)
    if depth > _DEEPEST or next(iter_tensors(value, depth), None) is None:
        return value
    if isinstance(value, Mapping):
        replaced = {key: replace_tensors(part, function, depth + 1) for key, part in value.items()}
        if type(value) is dict:
            return replaced
        twin = copy.copy(value)
        for key, part in replaced.items():
            twin[key] = part  # type: ignore[index]
        return twin
    if isinstance(value, tuple | list):
        parts = [replace_tensors(part, function, depth + 1) for part in value]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*parts)
        return type(value)(parts) if type(value) is not torch.Size else value
    twin = copy.copy(value)
    for name, part in vars(value).items():
        object.__setattr__(twin, name, replace_tensors(part, function, depth + 1))
    return twin


def _is_plain_object(value: Any) -> bool:
    """Whether it is an object of a user's or library's class, such as a Batch: no code, module or torch object."""
    kind = type(value)
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, type | nn.Module | torch.optim.Optimizer)
        and not callable(value)
        and kind.__module__ not in ("builtins", "types", "enum")
        and not kind.__module__.startswith(("torch.", "numpy"))
    )


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
