from __future__ import annotations

import ast

from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import last_name


class TiedWeights(Rule):
    """Finds weights that two layers share.

    ## Why
    A target that spreads a model over chips may give each use a copy of its own, which then train apart.

    ## Example
    ```python
    class Net(nn.Module):
        def __init__(self, encoder, decoder):
            super().__init__()
            self.encoder, self.decoder = encoder, decoder
            self.decoder.weight = self.encoder.weight
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def __init__(self, encoder):
            super().__init__()
            self.encoder = encoder

        def decode(self, x):
            return F.linear(x, self.encoder.weight)
    ```

    ## Safety
    Manual: where a layer is placed is yours to say.
    """

    code = "PW310"
    needs = ("no_shared_weights",)
    words = (".weight",)
    cure = "Put both uses on one device or stage, and check after wrapping that they are still one tensor."

    def find(self, file: File) -> Findings:
        for node in file.tree.all(ast.Assign):
            target, value = node.targets[0], node.value
            are_weights = isinstance(target, ast.Attribute) and isinstance(value, ast.Attribute)
            if are_weights and last_name(target) == last_name(value) == "weight" and file.tree.class_of(node):
                message = f"{file.segment(target)} and {file.segment(value)} are one tensor"
                yield self.report(file, node, message)
