from __future__ import annotations

import ast

from portwright.port.rule import File, Findings, Rule

_NAMES = ("batch_size", "batchsize", "bsz", "bs", "nbatch", "batch_sz")


def _is_batch_size(file: File, node: ast.expr) -> bool:
    """Whether a node is named like a batch size, and is no local variable, which may be read off a tensor."""
    if isinstance(node, ast.Attribute):
        return node.attr.lower() in _NAMES
    if not isinstance(node, ast.Name) or node.id.lower() not in _NAMES:
        return False
    found = file.tree.scope_of(node).lookup(node.id)
    return found is None or found[0] is file.tree.scope


class BatchSizeInView(Rule):
    """Finds views and reshapes in a step that have the batch size written into them.

    ## Why
    A batch size that is written into the model must equal the one that the loader gives, in every mode, and on
    several devices it is the batch of one of them.

    ## Example
    ```python
    BATCH_SIZE = 32

    class Net(nn.Module):
        def forward(self, x):
            return x.view(BATCH_SIZE, -1)
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def forward(self, x):
            return x.view(x.size(0), -1)
    ```

    ## Safety
    Manual: which dimension is the batch is for you to say.
    """

    code = "PW104"
    needs = ("any_batch_size",)
    words = ("view(", "reshape(")
    cure = "Take the batch dimension from the tensor, x.size(0), and keep the other dimensions fixed."

    def find(self, file: File) -> Findings:
        for call in file.methods("view", "reshape"):
            if not call.args or not file.flow.in_forward(call):
                continue
            first = next(iter(getattr(call.args[0], "elts", ())), call.args[0])
            if _is_batch_size(file, first):
                yield self.report(
                    file, call, f"the batch size '{file.segment(first)}' is written into this shape"
                )
