from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from portwright.port.finding import Edit, Finding
from portwright.port.position_modules import Pair, find_pairs
from portwright.port.rewrite import remove_statement
from portwright.port.rule import File, Rule
from portwright.port.rules.embedding_with_positions import RULE as EQUAL
from portwright.port.rules.embedding_with_positions import class_edit, layer_text, shared_edits
from portwright.port.turned_tables import attention_layer

_ZOO = "modelzoo_layers"
_KEPT = ("vocab_size", "embedding_size", "pad_token_id", "position_embedding_type", "max_position_embeddings")


class LiteralConversion(Rule):
    """Writes the model zoo's own conversion of the tutorial transformer, to the letter, which is another model.

    ## Why
    The model zoo's guide replaces the embedding and its positions by an EmbeddingLayer with the zoo's defaults. People who
    compare with published runs of that guide want its form; everybody else wants PW341, which computes what the script did.

    ## Example
    ```python
    import math

    class PositionalEncoding(nn.Module):
        def __init__(self, d_model, max_len=500):
            super().__init__()
            position = torch.arange(max_len).unsqueeze(1)
            div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
            pe = torch.zeros(1, max_len, d_model)
            pe[0, :, 0::2] = torch.sin(position * div_term)
            pe[0, :, 1::2] = torch.cos(position * div_term)
            self.register_buffer("pe", pe)

        def forward(self, x):
            return x + self.pe[:, : x.size(1)]

    class Net(nn.Module):
        def __init__(self, ntoken, d_model):
            super().__init__()
            self.d_model = d_model
            self.encoder = nn.Embedding(ntoken, d_model)
            self.pos_encoder = PositionalEncoding(d_model)

        def forward(self, src):
            src = self.encoder(src) * math.sqrt(self.d_model)
            src = self.pos_encoder(src)
            return src
    ```

    ## Instead
    ```python
    import math
    from portwright.compat import modelzoo_layers

    class Net(nn.Module):
        def __init__(self, ntoken, d_model):
            super().__init__()
            self.d_model = d_model
            self.encoder = modelzoo_layers.EmbeddingLayer(
                vocab_size=ntoken,
                embedding_size=d_model,
                position_embedding_type="fixed",
                max_position_embeddings=500,
            )

        def forward(self, src):
            src = self.encoder(src) * math.sqrt(self.d_model)
            return src
    ```

    ## Safety
    Unsafe: the root of the width multiplies the positions too, the sinusoids have other wavelengths, nothing drops out
    after them, attention and feed-forward networks lose their biases and default to gelu, and the embedding starts from
    other weights. docs/conversion.md says by how much each changes the numbers. With `--unsafe` it is made in the place
    of PW341; `--ignore PW342` keeps the equal form.
    """

    code = "PW342"
    name = "literal-conversion"
    targets = ("csx",)
    safety = "unsafe"
    words = ("Embedding(",)
    cure = "Keep PW341's form, which is equal; take this one only to reproduce runs of the model zoo's guide."

    def find(self, file: File) -> Iterator[Finding]:
        for info in file.flow.module_classes:
            for found in find_pairs(file, info):
                if isinstance(found, Pair) and found.is_last:
                    message = (
                        "the model zoo's literal form of this embedding is another model: positions scaled, other wavelengths, "
                        "no dropout after them, no biases in the layers"
                    )
                    imports = (f"from portwright.compat import {_ZOO}",)
                    finding = self.report(file, found.made, message, _edits(file, found), imports)
                    yield replace(finding, instead_of=EQUAL.code)


def _edits(file: File, pair: Pair) -> list[Edit]:
    options = {name: pair.options[name] for name in _KEPT if name in pair.options}
    edits = [file.replace(pair.made, layer_text(file, pair, f"{_ZOO}.EmbeddingLayer", options))]
    edits += [*shared_edits(file, pair), *class_edit(file, pair)]
    for use in pair.uses:
        statement = file.tree.statement_of(use.positions)
        if isinstance(use.positions.args[0], ast.Name) and isinstance(statement, ast.Assign):
            name = use.positions.args[0].id
            if statement.value is use.positions and file.segment(statement.targets[0]) == name:
                edits += remove_statement(file, statement)
                continue
        edits.append(file.replace(use.positions, f"({file.segment(use.positions.args[0])})"))
    for node in ast.walk(pair.info.node):
        kind = attention_layer(file, node.func) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and kind is not None:
            edits.append(file.replace(node.func, f"{_ZOO}.{kind}"))
    return edits


RULE = LiteralConversion()
