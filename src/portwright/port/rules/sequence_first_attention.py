from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Finding
from portwright.port.rule import File, Rule
from portwright.port.turned_models import find_layers, turn
from portwright.port.turned_tables import ATTENTION_LAYERS, OURS, STACKS, takes_sequence_first
from portwright.port.turned_values import StuckError


class SequenceFirstAttention(Rule):
    """Turns models around nn.Transformer layers and nn.MultiheadAttention from sequence first to batch first.

    ## Why
    Targets split and stream batches along the first dimension. The Cerebras loader wants every tensor of a batch to
    have the same first dimension.

    ## Example
    ```python
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(64, 4)
            self.head = nn.Linear(64, 10)

        def forward(self, x):
            return self.head(self.layer(x))

    net = Net()
    for x, y in loader:
        loss = F.cross_entropy(net(x.transpose(0, 1)).view(-1, 10), y.t().reshape(-1))
        loss.backward()
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
            self.head = nn.Linear(64, 10)

        def forward(self, x):
            return self.head(self.layer(x))

    net = Net()
    for x, y in loader:
        loss = F.cross_entropy(net(x).reshape(-1, 10), y.reshape(-1))
        loss.backward()
    ```

    ## Safety
    Safe: parameters and their names stay, and each value is followed through forward() and, where every call of the
    model is seen, through the loops around it. What treats positions alike, sizes, slices, sums and losses over all rows
    are turned with it; anywhere else a tensor is transposed back. Where callers may be unseen, inputs are turned where
    forward() begins and the result where it ends; where a method cannot be followed, around each call of the layer.
    Sums are added in another order, dropout draws for other elements from the same distribution, and the model itself
    is then given a batch. Layers that are reached into, given to something else or made outside of a class are left to
    you, with the reason.
    """

    code = "PW314"
    name = "sequence-first-attention"
    targets = ("csx", "ipu", "rdu")
    safety = "safe"
    words = ("Transformer", "MultiheadAttention")
    cure = "Give batch_first=True and turn the inputs; masks stay as they are."

    def find(self, file: File) -> Iterator[Finding]:
        seen: set[ast.Call] = set()
        for info in file.flow.module_classes:
            layers = find_layers(file, info)
            if not layers.made:
                continue
            calls = [call for call, _ in layers.made]
            first = min(calls, key=lambda c: (c.lineno, c.col_offset))
            name = next(kind for call, kind in layers.made if call is first)
            message = f"nn.{name} takes the sequence first here"
            seen.update(calls)
            try:
                edits = turn(file, layers)
            except StuckError as error:
                for call, kind in layers.made:
                    yield self.report(file, call, f"nn.{kind} takes the sequence first here, and {error}")
                continue
            yield self.report(
                file, first, message, edits,
                cure="Give batch_first=True; inputs are turned at their source, or transposed around the layer.",
            )  # fmt: skip
        for name in ATTENTION_LAYERS:
            if name in STACKS:
                continue
            for call in file.calls(f"torch.nn.{name}", f"{OURS}.{name}"):
                if call not in seen and takes_sequence_first(call, name):
                    yield self.report(
                        file, call, f"nn.{name} takes the sequence first here, where its calls are not seen"
                    )


RULE = SequenceFirstAttention()
