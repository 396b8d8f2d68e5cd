"""Why a branch cannot be added, and where."""

from __future__ import annotations

import ast


class Refusal(Exception):
    """A structure that the branch's author has to look at; nothing is changed in its file."""

    def __init__(self, node: ast.AST, message: str, cure: str) -> None:
        super().__init__(message)
        self.node = node
        self.message = message
        self.cure = cure
