"""Seed 003's conversion to the letter: a change of the model, not a port of it.

The layers are those that the seed imports, with the model zoo's defaults, so that against pytorch_transformer.py the
square root of the width multiplies the positions too, the sinusoids have other wavelengths, nothing drops out after
them, attention and feed-forward networks have no biases, and the embedding starts from other weights.
docs/conversion.md says by how much each changes the numbers.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from portwright.compat.modelzoo_layers import EmbeddingLayer, TransformerEncoder, TransformerEncoderLayer


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
        self.d_model = d_model
        self.encoder = EmbeddingLayer(
            vocab_size=ntoken,
            embedding_size=d_model,
            position_embedding_type="fixed",
            max_position_embeddings=max_len,
        )
        layer = TransformerEncoderLayer(d_model, nhead, d_hid, dropout, activation, batch_first=True)
        self.transformer_encoder = TransformerEncoder(layer, nlayers, enable_nested_tensor=False)
        self.decoder = nn.Linear(d_model, ntoken)
        self.init_weights()

    def init_weights(self) -> None:
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Letters [batch, sequence] to scores [batch, sequence, letters]."""
        src = self.encoder(src) * math.sqrt(self.d_model)
        src = self.transformer_encoder(src, src_mask)
        return self.decoder(src)
