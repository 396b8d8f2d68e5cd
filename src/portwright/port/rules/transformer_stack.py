from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Finding
from portwright.port.legal_form import LegalForm
from portwright.port.rewrite import layers_import
from portwright.port.rule import File
from portwright.port.turned_tables import ATTENTION_LAYERS

_MASK = "torch.nn.Transformer.generate_square_subsequent_mask"


class TransformerStack(LegalForm):
    """Puts the layers API in the place of nn.Transformer, its encoders and decoders, and nn.MultiheadAttention.

    ## Why
    Torch's stacks look at the values of a mask to see whether it is causal, which reads them back to the host while the step
    is traced, and in evaluation their layers leave for fused paths that targets do not lower.

    ## Example
    ```python
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)
    ```

    ## Instead
    ```python
    from portwright import layers

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            layer = layers.TransformerEncoderLayer(64, 4, batch_first=True)
            self.encoder = layers.TransformerEncoder(layer, 2)
    ```

    ## Safety
    Safe: the arguments, the results, the parameters with their names in state_dict and the numbers they start from are
    torch's. A query to which every key is masked gets zeros where torch may give NaN. Left to you where the file hooks
    into modules, or where a subclass overrides more than forward().
    """

    code = "PW340"
    name = "transformer-stack"
    words = ("Transformer", "MultiheadAttention")
    reason = "torch's own reads back whether its mask is causal"
    cure = "Use the layer of the same name in portwright.layers, which computes the same and has the same weights."
    library = "portwright.layers"
    layers = {f"torch.nn.{name}": name for name in ATTENTION_LAYERS}

    def find(self, file: File) -> Iterator[Finding]:
        name, imports = layers_import(file)
        hooked = any(
            word in file.source.text for word in ("register_forward_hook", "register_forward_pre_hook")
        )
        for dotted, own in self.layers.items():
            for node in [*self._layer_uses(file, dotted), *_bases(file, dotted)]:
                call = file.tree.parents.get(node)
                place = call if isinstance(call, ast.Call) and call.func is node else node
                message = f"{dotted.replace('torch.', '')}: {self.reason}"
                if hooked:
                    cure = f"See that no hook needs torch's own parts, then use portwright.layers.{own}."
                    yield self.report(file, place, message, cure=cure)
                else:
                    yield self.report(file, place, message, [file.replace(node, f"{name}.{own}")], imports)
        for node in file.uses(_MASK):
            edits = [file.replace(node, f"{name}.generate_square_subsequent_mask")]
            yield self.report(file, node, "the layers API knows its own causal mask", edits, imports)


def _bases(file: File, dotted: str) -> Iterator[ast.expr]:
    """The base of a class that adds to nn.Transformer and overrides nothing inside of it."""
    if dotted != "torch.nn.Transformer":
        return
    for info in file.tree.classes.values():
        for base in info.node.bases:
            if file.resolve(base) == dotted and "_reset_parameters" not in info.methods:
                yield base


RULE = TransformerStack()
