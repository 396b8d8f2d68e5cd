"""What a target can run: its kernel table, and the verdict on one op.

A table is data with its source in every row; what rows cannot say (an argument's value, a dtype that comes from mixed
precision) is a constraint, a small function that gives the reason for a refusal or None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from portwright.graph.graph import Graph, Node

How = Literal["native", "decomposed", "free", "refused"]  # free: a view or bookkeeping that costs no kernel


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a kernel table, as `portwright ops` shows it."""

    op: str  # 'aten.convolution', with its overload where only that one is meant
    api: tuple[str, ...]  # names that users write: 'torch.nn.Conv2d', 'torch.nn.functional.conv2d'
    how: How
    dtypes: tuple[str, ...]  # () for any
    constraints: tuple[str, ...]  # in words
    source: str  # where this is known from


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a target runs a node, and if not, why."""

    how: How
    reason: str = ""  # of a refusal: one sentence in plain words
    cure: str = ""  # the equal form, where there is one
    via: tuple[str, ...] = ()  # ops that it decomposes into


class KernelTable(Protocol):
    """What a target says of ops; one table a target, made on first use."""

    @property
    def label(self) -> str:
        """How far the table can be trusted, for people: 'checked against SDK 2.10.0', 'conservative'."""

    def rows(self) -> Iterable[Row]: ...

    def judge(self, graph: Graph, node: Node) -> Verdict: ...

    def casts(self) -> AbstractContextManager[Any]:
        """The target's own mixed precision, to be active while a step is captured; a null context where it has none."""


Constraint = Callable[["Graph", "Node"], "str | None"]
