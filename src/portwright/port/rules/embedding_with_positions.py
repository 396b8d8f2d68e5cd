from __future__ import annotations

import ast
from collections.abc import Iterator

from portwright.port.finding import Edit, Finding
from portwright.port.position_modules import Pair, find_pairs, is_left_alone
from portwright.port.rewrite import layers_import, remove_statement
from portwright.port.rule import File, Rule


def layer_text(file: File, pair: Pair, layer: str, options: dict[str, str]) -> str:
    """The call of a layer, one option a line, as deep as the statement that it stands in."""
    statement = file.tree.statement_of(pair.made) or pair.made
    line_start, _ = file.source.line_span(statement.lineno)
    start, _ = file.source.span(statement)
    before = file.source.data[line_start:start].decode("utf-8")
    indent = before if not before.strip() else ""
    newline = file.source.newline
    inner = "".join(f"{indent}    {name}={text},{newline}" for name, text in options.items())
    return f"{layer}({newline}{inner}{indent})"


def shared_edits(file: File, pair: Pair) -> list[Edit]:
    """What goes whatever the new layer is: the positions, and the old name of the weights."""
    edits = []
    statement = file.tree.statement_of(pair.positions_made)
    if pair.is_last and statement is not None:
        edits += remove_statement(file, statement)
    for node in file.attributes("weight"):
        inner = node.value
        own = isinstance(inner, ast.Attribute) and file.segment(inner) == f"self.{pair.embedding}"
        if own and file.tree.class_of(node) is pair.info:
            _, end = file.source.span(inner)
            edits.append(Edit(end, end, ".word_embeddings"))
    return edits


def class_edit(file: File, pair: Pair) -> list[Edit]:
    """Takes the positions' class away with its blank lines, where nothing else uses it."""
    if not is_left_alone(file, pair):
        return []
    node = pair.module.node
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    while first > 1 and _line(file, first - 1).startswith(b"#"):
        first -= 1  # what is said right above the class goes with it
    start, _ = file.source.line_span(first)
    body = file.tree.module.body
    place = body.index(node)
    if place + 1 < len(body):
        after = body[place + 1]
        line = min([after.lineno, *(d.lineno for d in getattr(after, "decorator_list", []))])
        between = file.source.data[
            file.source.line_span(node.end_lineno or first)[1] : file.source.line_span(line)[0]
        ]
        if not between.strip():
            return [Edit(start, file.source.line_span(line)[0], "")]
    return [Edit(start, file.source.line_span(node.end_lineno or first)[1], "")]


def _line(file: File, number: int) -> bytes:
    start, end = file.source.line_span(number)
    return file.source.data[start:end]


class EmbeddingWithPositions(Rule):
    """Puts one EmbeddingLayer in the place of an nn.Embedding and a module that adds sinusoids to it.

    ## Why
    The layers API looks up, scales, adds positions and drops out in one layer, which targets know as a whole; a
    module of one's own is lowered operation by operation, and its table is carried in every checkpoint.

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
    from portwright import layers

    class Net(nn.Module):
        def __init__(self, ntoken, d_model):
            super().__init__()
            self.d_model = d_model
            self.encoder = layers.EmbeddingLayer(
                vocab_size=ntoken,
                embedding_size=d_model,
                embeddings_initializer=None,
                position_embedding_type="fixed",
                max_position_embeddings=500,
                embedding_scale=math.sqrt(d_model),
            )

        def forward(self, src):
            src = self.encoder(src)
            return src
    ```

    ## Safety
    Safe: the module's text is worked out on small tables and must give the tutorial's sinusoids, added along the second
    dimension, with dropout last or absent. Scale, dropout and the numbers that the weights start from stay. In
    state_dict `encoder.weight` becomes `encoder.word_embeddings.weight` and the table is no longer saved. Anything that
    differs, or uses one without the other, is left to you with the reason.
    """

    code = "PW341"
    name = "embedding-with-positions"
    targets = ("csx",)
    safety = "safe"
    words = ("Embedding(",)
    cure = "Use portwright.layers.EmbeddingLayer with position_embedding_type='fixed', embedding_scale and dropout."

    def find(self, file: File) -> Iterator[Finding]:
        name, imports = layers_import(file)
        for info in file.flow.module_classes:
            taken: set[str] = set()
            for found in find_pairs(file, info):
                if isinstance(found, tuple):
                    yield self.report(
                        file, found[0], f"positions are added outside of the embedding; {found[1]}"
                    )
                    continue
                if found.positions in taken:
                    continue  # two embeddings share the positions: one after the other
                taken.add(found.positions)
                message = (
                    f"self.{found.embedding} and self.{found.positions} are one layer of the layers API; in state_dict "
                    f"{found.embedding}.weight becomes {found.embedding}.word_embeddings.weight, and the table is not saved"
                )
                yield self.report(
                    file, found.made, message, _edits(file, found, f"{name}.EmbeddingLayer"), imports
                )


def _edits(file: File, pair: Pair, layer: str) -> list[Edit]:
    edits = [file.replace(pair.made, layer_text(file, pair, layer, pair.options))]
    edits += shared_edits(file, pair)
    for use in pair.uses:
        edits += use_edits(file, use.positions, use.scaled, file.segment(use.lookup))
    return [*edits, *class_edit(file, pair)]


def use_edits(file: File, positions: ast.Call, source: ast.expr, text: str) -> list[Edit]:
    """Puts what comes of the embedding where the positions were added."""
    if not isinstance(positions.args[0], ast.Name):
        return [file.replace(positions, text)]
    before = file.tree.statement_of(source)
    statement = file.tree.statement_of(positions)
    assert before is not None
    assert statement is not None
    if (
        isinstance(statement, ast.Assign)
        and statement.value is positions
        and len(statement.targets) == 1
        and file.segment(statement.targets[0]) == positions.args[0].id
    ):
        return [file.replace(source, text), *remove_statement(file, statement)]
    return [*remove_statement(file, before), file.replace(positions, text)]


RULE = EmbeddingWithPositions()
