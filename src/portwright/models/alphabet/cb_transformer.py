"""The model on the layers API, equal to pytorch_transformer.py number for number.

Seed 003's conversion alone would not be (literal_transformer.py): here the embedding is scaled before the positions
are added, their sinusoids are the tutorial's, dropout follows them, and every layer keeps its biases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor, nn

from portwright.layers import EmbeddingLayer, TransformerEncoder, TransformerEncoderLayer


class TransformerModel(nn.Module):
    """Embedded letters and their positions, an encoder that sees only what came before, and a score for each letter."""

    def __init__(
        self,
        ntoken: int,
        d_model: int,
        nhead: int,
        d_hid: int,
        nlayers: int,
        dropout: float = 0.5,
        activation: str = "gelu",
        max_len: int = 10,
    ) -> None:
        super().__init__()
        self.encoder = EmbeddingLayer(
            vocab_size=ntoken,
            embedding_size=d_model,
            position_embedding_type="fixed",
            max_position_embeddings=max_len,
            embedding_scale=math.sqrt(d_model),
            sinusoid_variant="tutorial",
            dropout=dropout,
        )
        layer = TransformerEncoderLayer(d_model, nhead, d_hid, dropout, activation, batch_first=True)
        self.transformer_encoder = TransformerEncoder(layer, nlayers, enable_nested_tensor=False)
        self.decoder = nn.Linear(d_model, ntoken)
        self.init_weights()

    def init_weights(self) -> None:
        nn.init.uniform_(self.encoder.word_embeddings.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Letters [batch, sequence] to scores [batch, sequence, letters]."""
        src = self.encoder(src)
        src = self.transformer_encoder(src, src_mask)
        return self.decoder(src)


def state_from_pytorch(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names the weights of pytorch_transformer.TransformerModel as this model does, for `load_state_dict`.

    Two names differ: `encoder.weight` is `encoder.word_embeddings.weight` here, and `pos_encoder.pe`, which is
    computed from the sizes, is left out, since the layers API does not save what it can compute.
    """
    renamed = {"encoder.weight": "encoder.word_embeddings.weight"}
    return {renamed.get(name, name): tensor for name, tensor in state.items() if name != "pos_encoder.pe"}
