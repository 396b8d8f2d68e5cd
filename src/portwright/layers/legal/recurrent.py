"""Recurrent layers unrolled over the steps of their input: the front end knows no fused ones.

The input projections of all steps are one matrix product; what remains a step is the product with the state.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from portwright.errors import UnsupportedError

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]

State = tuple[Tensor, ...]
Step = Callable[[Tensor, State, Tensor, Tensor | None], State]
"""From the input's share of the gates, the state, and the weight and bias of the product with the state to the next state."""


def _unroll(
    module: nn.RNNBase, step: Step, input: Tensor, initial: list[Tensor | None]
) -> tuple[Tensor, State]:
    """The output, and the last state of every layer and direction, of an input (steps, batch, features)."""
    num_directions = 2 if module.bidirectional else 1
    finals: list[State] = []
    for layer in range(module.num_layers):
        outputs: list[Tensor] = []
        for direction in range(num_directions):
            slot = layer * num_directions + direction
            w_ih, w_hh, *rest = module.all_weights[slot]
            b_ih, b_hh = rest[:2] if module.bias else (None, None)
            state = _initial_state(module, input, [None if s is None else s[slot] for s in initial])
            steps = list(F.linear(input, w_ih, b_ih).unbind(0))
            hiddens: list[Tensor] = []
            for gates in reversed(steps) if direction else steps:
                state = step(gates, state, w_hh, b_hh)
                if module.proj_size:
                    state = (F.linear(state[0], rest[-1]), *state[1:])
                hiddens.append(state[0])
            outputs.append(torch.stack(hiddens[::-1] if direction else hiddens))
            finals.append(state)
        input = outputs[0] if num_directions == 1 else torch.cat(outputs, -1)
        if module.dropout > 0 and layer < module.num_layers - 1:
            input = F.dropout(input, module.dropout, module.training)
    return input, tuple(torch.stack(parts) for parts in zip(*finals, strict=True))


def _initial_state(module: nn.RNNBase, input: Tensor, given: list[Tensor | None]) -> State:
    sizes = [module.proj_size or module.hidden_size, module.hidden_size][: len(given)]
    return tuple(
        torch.zeros(input.shape[1], size, dtype=input.dtype, device=input.device) if part is None else part
        for part, size in zip(given, sizes, strict=True)
    )


def _run(module: nn.RNNBase, step: Step, input: Tensor, given: list[Tensor | None]) -> tuple[Tensor, State]:
    """Torch's conventions around the unrolled steps: unbatched input, batch first, checked shapes."""
    if isinstance(input, PackedSequence):
        raise UnsupportedError(
            f"{type(module).__name__} got a PackedSequence: its number of steps depends on the data, and the target needs it fixed.",
            "Pass the padded tensor, and mask the loss where there is padding.",
        )
    if input.dim() not in (2, 3):
        raise ValueError(f"{type(module).__name__} takes an input of 2 or 3 dimensions, not {input.dim()}")
    batched = input.dim() == 3
    if not batched:
        input = input.unsqueeze(1)
        for part in given:
            if part is not None and part.dim() != 2:
                raise RuntimeError(f"an unbatched input needs states of 2 dimensions, not {part.dim()}")
        given = [None if part is None else part.unsqueeze(1) for part in given]
    elif module.batch_first:
        input = input.transpose(0, 1)
    if input.shape[0] == 0:
        raise RuntimeError(f"{type(module).__name__} needs at least one step, and the input has none")
    _check_shapes(module, input, given, batched)
    output, finals = _unroll(module, step, input, given)
    if not batched:
        return output.squeeze(1), tuple(part.squeeze(1) for part in finals)
    return (output.transpose(0, 1) if module.batch_first else output), finals


def _check_shapes(module: nn.RNNBase, input: Tensor, given: list[Tensor | None], batched: bool) -> None:
    if input.shape[-1] != module.input_size:
        raise RuntimeError(
            f"the input has {input.shape[-1]} features, and the layer takes {module.input_size}"
        )
    num_slots = module.num_layers * (2 if module.bidirectional else 1)
    sizes = [module.proj_size or module.hidden_size, module.hidden_size]
    for part, size in zip(given, sizes, strict=False):
        expected = (num_slots, input.shape[1], size)
        if part is not None and tuple(part.shape) != expected:
            received = tuple(part.shape) if batched else tuple(part.squeeze(1).shape)
            raise RuntimeError(f"the state must have the shape {expected}, not {received}")


class LSTM(nn.LSTM):
    """nn.LSTM, unrolled."""

    def forward(  # type: ignore[override]
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        given: list[Tensor | None] = [None, None] if hx is None else [hx[0], hx[1]]
        output, (hidden, cell) = _run(self, lstm_step, input, given)
        return output, (hidden, cell)


class GRU(nn.GRU):
    """nn.GRU, unrolled."""

    def forward(  # type: ignore[override]
        self, input: Tensor, hx: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        output, (hidden,) = _run(self, gru_step, input, [hx])
        return output, hidden


class RNN(nn.RNN):
    """nn.RNN, unrolled."""

    def forward(  # type: ignore[override]
        self, input: Tensor, hx: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        output, (hidden,) = _run(self, rnn_step(self), input, [hx])
        return output, hidden


def lstm_step(gates: Tensor, state: State, w_hh: Tensor, b_hh: Tensor | None) -> State:
    hidden, cell = state
    keep_in, forget, candidate, keep_out = (gates + F.linear(hidden, w_hh, b_hh)).chunk(4, -1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(keep_in) * torch.tanh(candidate)
    return torch.sigmoid(keep_out) * torch.tanh(cell), cell


def gru_step(gates: Tensor, state: State, w_hh: Tensor, b_hh: Tensor | None) -> State:
    in_reset, in_update, in_new = gates.chunk(3, -1)
    own_reset, own_update, own_new = F.linear(state[0], w_hh, b_hh).chunk(3, -1)
    update = torch.sigmoid(in_update + own_update)
    new = torch.tanh(in_new + torch.sigmoid(in_reset + own_reset) * own_new)
    return (new + update * (state[0] - new),)


def rnn_step(module: nn.RNN | nn.RNNCell) -> Step:
    activate = torch.relu if module.nonlinearity == "relu" else torch.tanh
    return lambda gates, state, w_hh, b_hh: (activate(gates + F.linear(state[0], w_hh, b_hh)),)


def _cell(module: nn.RNNCellBase, step: Step, input: Tensor, given: tuple[Tensor | None, ...]) -> State:
    """One step of a cell; a state that is not given is zero."""
    start = torch.zeros(*input.shape[:-1], module.hidden_size, dtype=input.dtype, device=input.device)
    state = tuple(start if part is None else part for part in given)
    for part in (input, *state):
        if part.dim() not in (1, 2) or part.dim() != input.dim():
            raise ValueError(
                f"{type(module).__name__} takes input and state of 1 or 2 dimensions both, not {part.dim()}"
            )
    return step(F.linear(input, module.weight_ih, module.bias_ih), state, module.weight_hh, module.bias_hh)


class LSTMCell(nn.LSTMCell):
    """nn.LSTMCell, written out."""

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        hidden, cell = _cell(self, lstm_step, input, (None, None) if hx is None else hx)
        return hidden, cell


class GRUCell(nn.GRUCell):
    """nn.GRUCell, written out."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return _cell(self, gru_step, input, (hx,))[0]


class RNNCell(nn.RNNCell):
    """nn.RNNCell, written out."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return _cell(self, rnn_step(self), input, (hx,))[0]
