from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from portwright.port.legal_form import LegalForm
from portwright.port.rewrite import layers_import
from portwright.port.rule import File, Findings

_KINDS = "Transformer TransformerEncoder TransformerEncoderLayer TransformerDecoder TransformerDecoderLayer MultiheadAttention"
_LOOKS_INSIDE = re.compile(
    r"register_\w*(forward|backward)\w*hook|\bprune\b|\b(weight|spectral)_norm\b|\bjit\b"
)
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
    Safe: each layer is a subclass of torch's, so that isinstance holds, and takes torch's arguments in torch's order. Its
    parameters have torch's names and order in state_dict, and the numbers that torch's start from. Tests hold results and
    gradients to torch's over random programs. Four things differ:

    - A query to which every key is masked gets zeros where torch gives NaN.
    - With batch_first=True dropout draws other elements, from the same distribution.
    - In evaluation without gradients torch's encoder layers take every number but 0 in a float mask as masked; here it is
      added, as torch itself does in training. Masks of 0 and -inf mean the same in both.
    - The output projection is called as a module, which torch's is not.

    So a file with hooks, pruning, weight_norm, spectral_norm or torch.jit is left to you, and so is a subclass, except one of
    nn.Transformer alone.
    """

    code = "PW340"
    reason = "torch's own reads back whether its mask is causal"
    cure = "Use the layer of the same name in portwright.layers, which computes the same and has the same weights."
    library = "portwright.layers"
    also = {f"torch.nn.{name}": name for name in _KINDS.split()}

    def find(self, file: File) -> Findings:
        name, imports = layers_import(file)
        looked_into = _LOOKS_INSIDE.search(file.source.text) is not None
        for dotted, own in self.layers.items():
            for node in [*self._layer_uses(file, dotted), *_in_subclasses(file, dotted)]:
                outer, place = file.tree.parents[node], file.tree.parent_call(node) or node
                message = f"{dotted.replace('torch.', '')}: {self.reason}"
                if looked_into:
                    cure = f"See that nothing needs torch's own parts, then use portwright.layers.{own}."
                    yield self.report(file, place, message, cure=cure)
                elif isinstance(outer, ast.ClassDef) and not _only_adds(file, outer):
                    cure = f"See that what {outer.name} overrides is there too, then derive it from portwright.layers.{own}."
                    yield self.report(file, place, message, cure=cure)
                else:
                    yield self.report(file, place, message, [file.replace(node, f"{name}.{own}")], imports)
        for node in file.uses(_MASK):
            edits = [file.replace(node, f"{name}.generate_square_subsequent_mask")]
            yield self.report(file, node, "the layers API knows its own causal mask", edits, imports)


def _in_subclasses(file: File, dotted: str) -> Iterator[ast.expr]:
    """Uses of a layer as a base class, and uses of its methods inside subclasses of nn.Transformer."""
    for node in file.uses(dotted):
        outer, around = file.tree.parents.get(node), file.tree.class_of(node)
        if isinstance(outer, ast.ClassDef) and node in outer.bases:
            yield node
        is_method = isinstance(outer, ast.Attribute) and file.resolve(outer) != _MASK
        if is_method and around is not None and _only_adds(file, around.node):
            yield node


def _only_adds(file: File, node: ast.ClassDef) -> bool:
    """Whether a class derives only from nn.Transformer, whose replacement has all its inner methods."""
    return len(node.bases) == 1 and file.resolve(node.bases[0]) == "torch.nn.Transformer"
