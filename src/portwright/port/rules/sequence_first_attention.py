from __future__ import annotations

from collections.abc import Iterator

from portwright.port.finding import Finding
from portwright.port.rewrite import has_star, is_constant, keyword
from portwright.port.rule import File, Rule


class SequenceFirstAttention(Rule):
    """Finds nn.Transformer layers and nn.MultiheadAttention that take the sequence first.

    ## Why
    Targets split and stream batches along the first dimension. The Cerebras loader wants every tensor of a batch to
    have the same first dimension.

    ## Example
    ```python
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(64, 4)
    ```

    ## Instead
    ```python
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
    ```

    ## Safety
    Manual: the inputs have to be turned where they are made, or transposed around the layer.
    """

    code = "PW314"
    name = "sequence-first-attention"
    targets = ("csx", "ipu", "rdu")
    safety = "manual"
    words = ("Transformer", "MultiheadAttention")
    cure = "Give batch_first=True and turn the inputs, masks stay as they are: batches must come first. portwright.layers has the same layers, batch first."

    def find(self, file: File) -> Iterator[Finding]:
        for name in (
            "Transformer",
            "TransformerEncoderLayer",
            "TransformerDecoderLayer",
            "MultiheadAttention",
        ):
            for call in file.calls(f"torch.nn.{name}"):
                given = keyword(call, "batch_first")
                if has_star(call) or (given is not None and not is_constant(given.value, False)):
                    continue
                yield self.report(file, call, f"nn.{name} takes the sequence first here")


RULE = SequenceFirstAttention()
