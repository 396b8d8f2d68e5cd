"""One step of a recurrent layer, written out in matrix products and pointwise functions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def lstm_step(
    gates: Tensor, hidden: Tensor, cell: Tensor, w_hh: Tensor, b_hh: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The next hidden and cell state; `gates` is the input's share of the four gates."""
    keep_in, forget, candidate, keep_out = (gates + F.linear(hidden, w_hh, b_hh)).chunk(4, -1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(keep_in) * torch.tanh(candidate)
    return torch.sigmoid(keep_out) * torch.tanh(cell), cell


def gru_step(gates: Tensor, hidden: Tensor, w_hh: Tensor, b_hh: Tensor | None) -> Tensor:
    """The next hidden state; `gates` is the input's share of the three gates."""
    in_reset, in_update, in_new = gates.chunk(3, -1)
    own_reset, own_update, own_new = F.linear(hidden, w_hh, b_hh).chunk(3, -1)
    update = torch.sigmoid(in_update + own_update)
    new = torch.tanh(in_new + torch.sigmoid(in_reset + own_reset) * own_new)
    return new + update * (hidden - new)


def rnn_step(
    gates: Tensor, hidden: Tensor, w_hh: Tensor, b_hh: Tensor | None, activate: Callable[[Tensor], Tensor]
) -> Tensor:
    """The next hidden state; `gates` is the input's share of it."""
    return activate(gates + F.linear(hidden, w_hh, b_hh))


def _start(module: nn.RNNCellBase, input: Tensor) -> Tensor:
    return torch.zeros(*input.shape[:-1], module.hidden_size, dtype=input.dtype, device=input.device)


def _check(module: nn.RNNCellBase, input: Tensor, *states: Tensor) -> None:
    for part in (input, *states):
        if part.dim() not in (1, 2) or part.dim() != input.dim():
            raise ValueError(
                f"{type(module).__name__} takes input and state of 1 or 2 dimensions both, not {part.dim()}"
            )


class LSTMCell(nn.LSTMCell):
    """nn.LSTMCell, written out."""

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        start = _start(self, input) if hx is None else None
        hidden, cell = (start, start) if hx is None else hx
        assert hidden is not None
        assert cell is not None
        _check(self, input, hidden, cell)
        return lstm_step(
            F.linear(input, self.weight_ih, self.bias_ih), hidden, cell, self.weight_hh, self.bias_hh
        )


class GRUCell(nn.GRUCell):
    """nn.GRUCell, written out."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        hidden = _start(self, input) if hx is None else hx
        _check(self, input, hidden)
        return gru_step(F.linear(input, self.weight_ih, self.bias_ih), hidden, self.weight_hh, self.bias_hh)


class RNNCell(nn.RNNCell):
    """nn.RNNCell, written out."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        hidden = _start(self, input) if hx is None else hx
        _check(self, input, hidden)
        activate = torch.relu if self.nonlinearity == "relu" else torch.tanh
        return rnn_step(
            F.linear(input, self.weight_ih, self.bias_ih), hidden, self.weight_hh, self.bias_hh, activate
        )
