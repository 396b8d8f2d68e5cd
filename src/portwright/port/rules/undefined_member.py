from __future__ import annotations

import ast

from portwright.port.names import members_of_enum
from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import last_name, words

_VENDORS = words("poptorch popart samba sambaflow cstorch cerebras torch nn htcore")


class UndefinedMember(Rule):
    """Finds members of the project's enumerations that do not exist, and vendor names that are never imported.

    ## Why
    Published ports use ComputeMode.IPU after adding only RDU, and poptorch without importing it: the branch for the
    accelerator fails as soon as it is taken.

    ## Example
    ```python
    from enum import Enum

    class ComputeMode(Enum):
        CPU = 0
        RDU = 6

    def choose(mode):
        return mode == ComputeMode.IPU
    ```

    ## Instead
    ```python
    from enum import Enum

    class ComputeMode(Enum):
        CPU = 0
        IPU = 5
        RDU = 6

    def choose(mode):
        return mode == ComputeMode.IPU
    ```

    ## Safety
    Manual: which value the member has is yours to say.
    """

    code = "PW604"
    needs = ("branches_that_run",)
    words = ("poptorch", "samba", "cstorch", "cerebras", "torch", "Enum", "ComputeMode", "Mode", ".")
    cure = "Define the member, or import the name, and guard an import that may fail."

    def find(self, file: File) -> Findings:
        for name in file.tree.all(ast.Name):
            if name.id not in _VENDORS or not isinstance(name.ctx, ast.Load):
                continue
            if isinstance(file.tree.parents.get(name), ast.Attribute) and file.names.is_undefined(name):
                yield self.report(file, name, f"'{name.id}' is used here and imported nowhere in the file")
        for node in file.tree.all(ast.Attribute):
            is_read = isinstance(node.ctx, ast.Load) and not node.attr.startswith("_")
            is_class = last_name(node.value)[:1].isupper()
            owner = (file.resolve(node.value) if is_read and is_class else None) or ""
            members = members_of_enum(file.names, owner) if "::" in owner else None
            if members is not None and node.attr not in members:
                enum = owner.rpartition("::")[2]
                message = f"{file.segment(node)} does not exist: {enum} has no {node.attr}"
                yield self.report(file, node, message)
