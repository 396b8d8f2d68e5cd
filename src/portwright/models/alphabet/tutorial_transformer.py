"""Where seed 003 starts: a language model on torch.nn as tutorials write it, sequence first.

Only the diffs of docs/conversion.md and the tests read this file; pytorch_transformer.py is what trains.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import Embedding, TransformerEncoder, TransformerEncoderLayer


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
        self.encoder = Embedding(ntoken, d_model)
        self.pos_encoder = PositionalEncoding(d_model, dropout, max_len)
        layer = TransformerEncoderLayer(d_model, nhead, d_hid, dropout, activation)
        self.transformer_encoder = TransformerEncoder(layer, nlayers, enable_nested_tensor=False)
        self.decoder = nn.Linear(d_model, ntoken)
        self.init_weights()

    def init_weights(self) -> None:
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Letters [sequence, batch] to scores [sequence, batch, letters]."""
        src = self.encoder(src) * math.sqrt(self.d_model)
        src = self.pos_encoder(src)
        src = self.transformer_encoder(src, src_mask)
        return self.decoder(src)


class PositionalEncoding(nn.Module):
    """Adds a sine or a cosine of the position to each column, then drops out."""

    pe: Tensor

    def __init__(self, d_model: int, dropout: float = 0.1, max_len: int = 5000) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(max_len).unsqueeze(1)
        frequencies = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * frequencies)
        pe[:, 0, 1::2] = torch.cos(position * frequencies)
        self.register_buffer("pe", pe)

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings [sequence, batch, width]."""
        x = x + self.pe[: x.size(0)]
        return self.dropout(x)


def generate_square_subsequent_mask(sz: int, device: torch.device | None = None) -> Tensor:
    """The mask to add to attention scores, so that no letter sees a later one."""
    return torch.full((sz, sz), float("-inf"), device=device).triu(diagonal=1)
