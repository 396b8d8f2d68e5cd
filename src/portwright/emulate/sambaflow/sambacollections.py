"""sambaflow.sambacollections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSet
from typing import TypeVar

T = TypeVar("T")


class OrderedSet(MutableSet[T]):
    """A set that is gone through in the order in which its members came."""

    def __init__(self, members: Iterable[T] = ()) -> None:
        self._members: dict[T, None] = dict.fromkeys(members)

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def __iter__(self) -> Iterator[T]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        return f"OrderedSet({list(self._members)!r})"

    def add(self, value: T) -> None:
        self._members[value] = None

    def discard(self, value: T) -> None:
        self._members.pop(value, None)
