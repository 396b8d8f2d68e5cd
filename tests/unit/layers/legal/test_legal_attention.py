"""Multi-head attention under every kind of mask that torch takes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from unit.layers.legal.equality import assert_equal_modules, values

from portwright.layers import legal


class Attends(nn.Module):
    def __init__(self, options, call) -> None:
        super().__init__()
        self.attention, self.call = nn.MultiheadAttention(6, 2, **options).double(), call

    def forward(self, q, k, v):
        return self.attention(q, k, v, **self.call)


@settings(max_examples=50, deadline=None)
@given(data=st.data(), batched=st.booleans(), separate=st.booleans(), bias=st.booleans())
def test_masks(data, batched, separate, bias) -> None:
    num_queries, num_keys, size = 4, 5, 3
    call = {
        "need_weights": data.draw(st.booleans()),
        "average_attn_weights": data.draw(st.booleans()),
    }
    kind = data.draw(st.sampled_from(["none", "bool", "float"]))
    lead = (size * 2,) if batched and data.draw(st.booleans()) else ()
    hidden = values(*lead, num_queries, num_keys, seed=5) > 0.8
    hidden[..., 0] = False  # a row that sees nothing is not a number
    if kind != "none":
        call["attn_mask"] = hidden if kind == "bool" else values(*lead, num_queries, num_keys, seed=6)
    if kind == "none" or data.draw(st.booleans()):
        padding = values(size, num_keys, seed=7) > 0.5
        padding[:, 0] = False
        padding = padding if kind != "float" else values(size, num_keys, seed=8)
        call["key_padding_mask"] = padding if batched else padding[0]
    options = {"bias": bias, "dropout": data.draw(st.sampled_from([0.0, 0.4]))}
    if separate:
        options |= {"kdim": 3, "vdim": 4}
    theirs = Attends(options, call)
    ours = legal.legalise(Attends(options, call))
    middle = (size,) if batched else ()
    inputs = (
        values(num_queries, *middle, 6),
        values(num_keys, *middle, 3 if separate else 6, seed=1),
        values(num_keys, *middle, 4 if separate else 6, seed=2),
    )
    assert_equal_modules(theirs, ours.model, *inputs)
    assert [s.what for s in ours.swaps] == ["F.multi_head_attention_forward"]


def test_keys_that_are_added_stay_torchs() -> None:
    call = {"key_padding_mask": torch.zeros(3, 5, dtype=torch.bool)}
    ours = legal.legalise(Attends({"add_bias_kv": True}, call))
    ours.model(values(4, 3, 6), values(5, 3, 6), values(5, 3, 6))
    assert ours.swaps == ()


@pytest.mark.parametrize("eval_mode", [False, True])
def test_a_transformer_of_torchs_own(eval_mode) -> None:
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True).double().train(not eval_mode)
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    x = values(2, 5, 8)
    expected = model(x, x * 2, tgt_mask=mask)
    ours = legal.legalise(model)
    torch.testing.assert_close(ours.model(x, x * 2, tgt_mask=mask), expected)
    assert {s.form for s in ours.swaps} >= {"legal.TransformerEncoder", "legal.TransformerDecoder"}
