"""Enough flow to keep rules quiet where nothing is wrong: what values are, and what runs in a step."""

from __future__ import annotations

from portwright.port.kinds import Kinds
from portwright.port.names import Names
from portwright.port.steps import Steps
from portwright.port.tree import Tree


class Flow(Steps, Kinds):
    """Both questions, asked of one file."""

    def __init__(self, tree: Tree, names: Names) -> None:
        Kinds.__init__(self, tree, names)
        Steps.__init__(self, tree, names)
