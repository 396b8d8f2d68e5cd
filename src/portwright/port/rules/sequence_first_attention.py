from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.rewrite import argument, const, has_star
from portwright.port.rule import File, Findings, Rule
from portwright.port.tree import is_method_call

_BATCH_FIRST = {  # position of the argument batch_first
    "Transformer": 10,
    "TransformerEncoderLayer": 6,
    "TransformerDecoderLayer": 6,
    "MultiheadAttention": 8,
}


class SequenceFirstAttention(Rule):
    """Finds attention layers that take the sequence first in files that turn no batch.

    ## Why
    Targets cut a batch along its first dimension, into micro-batches or for replicas. Where the step is given the sequence
    first, they cut sequences apart. The Cerebras loader also wants all tensors of a batch to have one first dimension, and
    text cut into columns with flattened targets has two. The layers themselves are no obstacle: Cerebras's front end
    (SDK 2.10.0) accepts those of `portwright.layers` (PW340) with the sequence first.

    ## Example
    ```python
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(64, 4)

        def forward(self, x):
            return self.layer(x)

    net = Net()
    for x, y in loader:
        loss = F.mse_loss(net(x), y)
        loss.backward()
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)

        def forward(self, x):
            return self.layer(x)

    net = Net()
    for x, y in loader:
        loss = F.mse_loss(net(x), y)
        loss.backward()
    ```

    ## Safety
    Manual: which dimension of its data is the batch, only the author knows, and the loader changes with the model. A file
    with a function that swaps the first two dimensions of a value (`x.t()`, `x.transpose(0, 1)`, `x.permute(1, 0, 2)`) is taken
    to do so between loader and layer, and is left alone.
    """

    code = "PW314"
    needs = ("batch_first",)
    words = ("Transformer", "MultiheadAttention")
    cure = (
        "If the step is given the sequence first, load it batch first and give batch_first=True, masks as they are. "
        "Where the batch is first in the step and turned elsewhere, nothing is to be done."
    )

    def find(self, file: File) -> Findings:
        if any(_turns_batch(file, call) for call in file.tree.all(ast.Call)):
            return
        for name, position in _BATCH_FIRST.items():
            for call in _makers(file, frozenset({f"torch.nn.{name}", f"portwright.layers.{name}"})):
                given = argument(call, position, "batch_first")
                if not has_star(call) and (given is None or const(given) is False):
                    yield self.report(file, call, f"nn.{name} takes the sequence first here")


def _makers(file: File, names: frozenset[str]) -> Iterator[ast.Call]:
    """Calls that make a layer of these names, and super().__init__() calls of its subclasses."""
    yield from file.calls(*names)
    for call in file.methods("__init__"):
        info = file.tree.class_of(call)
        if info is not None and not names.isdisjoint(file.names.bases_of(info.node)):
            yield call


def _turns_batch(file: File, call: ast.Call) -> bool:
    """Whether a call swaps the first two dimensions of a variable, outside __init__() and module level."""
    function = file.tree.function_of(call)
    if not is_method_call(call) or getattr(function, "name", "__init__") == "__init__":
        return False
    name, root = call.func.attr, call.func.value
    parts = [*call.args, *(k.value for k in call.keywords)]
    if isinstance(root, ast.Name) and file.resolve(root) == "torch" and parts:
        root = parts[0]
    numbers = [n for part in parts for n in map(const, getattr(part, "elts", [part])) if isinstance(n, int)]
    if name == "permute":
        swaps = numbers[:2] == [1, 0]
    else:
        swaps = name == "t" or (name in ("transpose", "swapaxes", "swapdims") and sorted(numbers) == [0, 1])
    while isinstance(root, (ast.Call, ast.Attribute, ast.Subscript)):
        root = root.func if isinstance(root, ast.Call) else root.value
    return swaps and isinstance(root, ast.Name) and file.resolve(root) is None
