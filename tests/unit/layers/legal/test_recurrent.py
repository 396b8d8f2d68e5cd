"""Recurrent layers: directions, depth, projection, dropout, given states, unbatched; and what cannot be."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from unit.layers.legal.equality import assert_equal_modules, values

from portwright.errors import UnsupportedError
from portwright.layers import legal

KINDS = {"LSTM": (nn.LSTM, legal.LSTM), "GRU": (nn.GRU, legal.GRU), "RNN": (nn.RNN, legal.RNN)}


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    num_layers=st.integers(1, 3),
    bidirectional=st.booleans(),
    batch_first=st.booleans(),
    bias=st.booleans(),
    proj_size=st.sampled_from([0, 2]),
    relu=st.booleans(),
    given_state=st.booleans(),
    batched=st.booleans(),
    num_steps=st.integers(1, 5),
)
def test_recurrent(
    kind, num_layers, bidirectional, batch_first, bias, proj_size, relu, given_state, batched, num_steps
):
    theirs_class, ours_class = KINDS[kind]
    options = {"bidirectional": bidirectional, "batch_first": batch_first, "bias": bias}
    proj_size = proj_size if kind == "LSTM" else 0
    if proj_size:
        options["proj_size"] = proj_size
    if kind == "RNN" and relu:
        options["nonlinearity"] = "relu"
    theirs = theirs_class(3, 4, num_layers, **options).double()
    ours = ours_class(3, 4, num_layers, **options).double()
    shape = (num_steps, 3) if not batched else (2, num_steps, 3) if batch_first else (num_steps, 2, 3)
    slots = num_layers * (2 if bidirectional else 1)
    lead = (slots, 2) if batched else (slots,)
    state = None
    if given_state:
        state = values(*lead, proj_size or 4, seed=1)
        if kind == "LSTM":
            state = (state, values(*lead, 4, seed=2))
    assert_equal_modules(theirs, ours, values(*shape), state)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_dropout_between_layers_draws_as_torch_does(kind):
    theirs_class, ours_class = KINDS[kind]
    theirs, ours = theirs_class(3, 4, 3, dropout=0.5).double(), ours_class(3, 4, 3, dropout=0.5).double()
    assert_equal_modules(theirs, ours, values(5, 2, 3), seed=7)
    assert_equal_modules(theirs.eval(), ours.eval(), values(5, 2, 3))


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("given_state", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell", "RNNCell_relu"])
def test_cells(kind, bias, given_state, batched):
    name, _, activation = kind.partition("_")
    options = {"nonlinearity": activation} if activation else {}
    theirs = getattr(nn, name)(3, 4, bias=bias, **options).double()
    ours = getattr(legal, name)(3, 4, bias=bias, **options).double()
    lead = (2,) if batched else ()
    state = values(*lead, 4, seed=1) if given_state else None
    if name == "LSTMCell" and given_state:
        state = (state, values(*lead, 4, seed=2))
    assert_equal_modules(theirs, ours, values(*lead, 3), state)


def test_a_long_sequence_in_single_precision():
    assert_equal_modules(nn.LSTM(8, 16), legal.LSTM(8, 16), values(128, 2, 8, dtype=torch.float32), rtol=1e-3)


def test_a_packed_sequence_is_refused_in_words():
    packed = pack_padded_sequence(torch.zeros(4, 2, 3), torch.tensor([4, 2]))
    with pytest.raises(UnsupportedError, match="PackedSequence"):
        legal.LSTM(3, 4)(packed)


@pytest.mark.parametrize(
    ("shape", "state"),
    [((5, 2, 9), None), ((0, 2, 3), None), ((2, 2, 2, 3), None), ((5, 2, 3), (1, 3, 4)), ((5, 3), (1, 1, 4))],
    ids=["features", "no_steps", "dimensions", "state", "unbatched_state"],
)
def test_wrong_shapes_raise(shape, state):
    hx = None if state is None else torch.zeros(state)
    with pytest.raises((RuntimeError, ValueError)):
        legal.GRU(3, 4)(torch.zeros(shape), hx)
