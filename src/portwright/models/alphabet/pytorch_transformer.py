"""The model on torch.nn after seed 003's three modifications: batch first, positions that fit, a half-precision mask.

The seed slices the positions `self.pe[: x.size(1)]`. After its transpose that is the axis of length 1, so that only
a sequence of exactly `max_len` letters would come out right; the axis to slice is the second.
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
        layer = TransformerEncoderLayer(d_model, nhead, d_hid, dropout, activation, batch_first=True)
        self.transformer_encoder = TransformerEncoder(layer, nlayers, enable_nested_tensor=False)
        self.decoder = nn.Linear(d_model, ntoken)
        self.init_weights()

    def init_weights(self) -> None:
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, src: Tensor, src_mask: Tensor) -> Tensor:
        """Letters [batch, sequence] to scores [batch, sequence, letters]."""
        src = self.encoder(src) * math.sqrt(self.d_model)
        src = self.pos_encoder(src)
        # torch.nn takes a mask only in the type of its input; the seed's is float16.
        src = self.transformer_encoder(src, src_mask.to(src.dtype))
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
        self.register_buffer("pe", pe.transpose(1, 0))

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings [batch, sequence, width]."""
        x = x + self.pe[:, : x.size(1)]
        return self.dropout(x)


def generate_square_subsequent_mask(sz: int, device: torch.device | None = None) -> Tensor:
    """The mask to add to attention scores, so that no letter sees a later one."""
    lowest = torch.finfo(torch.float16).min
    return torch.full((sz, sz), lowest, dtype=torch.float16, device=device).triu(diagonal=1)
